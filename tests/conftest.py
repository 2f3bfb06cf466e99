"""What holds for every test."""

from hypothesis import settings

# A busy machine is slow, not wrong: examples have no deadline, and every run tries the same ones.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")
