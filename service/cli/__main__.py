"""`python -m hybridkv.service.cli` is `hybridkv`."""

from hybridkv.service.cli import main

if __name__ == "__main__":
    main()
