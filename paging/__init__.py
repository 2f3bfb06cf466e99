"""Sequences: paged address spaces over blocks. The `Sequences` service is not part of this version."""
