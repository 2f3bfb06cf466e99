"""The directory: the one truth of which block has which copies, who holds them, and what is on its way."""

from hybridkv.tiers.directory.directory import Directory

__all__ = ["Directory"]
