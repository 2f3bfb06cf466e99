"""The one part that is compiled; all else stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "hybridkv.tiers.device._copyloop",
            ["tiers/device/_copyloop.c"],
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra"],
            optional=True,  # without a compiler a system call copies batches: docs/decisions/0014
        )
    ]
)
