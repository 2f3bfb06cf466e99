"""Names of the places blocks can be: pools, slots, and what a worker is told about a slot."""

from dataclasses import dataclass

import numpy as np

from hybridkv.tiers.states import Tier

BLOCK_ALIGN_BYTES = 512
MIN_BLOCK_BYTES = 4096
MAX_EXTENT_BYTES = 64 << 20

SLOT_DTYPE = np.dtype(
    [
        ("offset", "<u8"),  # bytes from the start of the pool's memory
        ("generation", "<u8"),  # the slot's generation; even = sealed and readable
        ("extent_epoch", "<u8"),  # the extent's epoch; even = carved and in use
        ("header", "<u4"),  # index of the slot's header in the pool's header region
        ("extent", "<u2"),
        ("pool", "<u2"),  # index into the pools of the attach reply
    ]
)
"""A translation as it travels to a worker: 32 bytes, little-endian."""


@dataclass(frozen=True, slots=True)
class PoolId:
    """One pool: a tier, and for the GPU tier the device's index."""

    tier: Tier
    device: int = 0

    def __str__(self) -> str:
        return f"gpu{self.device}" if self.tier is Tier.GPU else self.tier.name.lower()


def extent_bytes_for(capacity_bytes: int) -> int:
    """Extent size of a pool: min(64 MiB, capacity/16), a multiple of 4 KiB, at least one page."""
    return max(4096, min(MAX_EXTENT_BYTES, capacity_bytes // 16) // 4096 * 4096)
