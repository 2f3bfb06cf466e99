"""The command line `hybridkv`."""

from hybridkv.service.cli.app import app, main

__all__ = ["app", "main"]
