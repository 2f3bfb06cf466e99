"""Stores that `hybridkv bench compare` runs side by side: each module is one process, in that store's own environment."""
