"""What the facade answers with: plain values that a servicer packs and a client unpacks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.acquires import AcquireReply
from hybridkv.migration.reserves import ReserveReply
from hybridkv.tiers.states import Tier

__all__ = ["AcquireReply", "Attached", "DrainReport", "LimitsInfo", "LookupReply", "PoolInfo", "ReserveReply"]


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """One pool. `index` is what slots and regions name it by; `kind` is "host", "cuda" or "disk"."""

    index: int
    tier: Tier
    device: int
    kind: str
    capacity_bytes: int
    extent_bytes: int


@dataclass(frozen=True, slots=True)
class LimitsInfo:
    """What a client has to keep to."""

    keys_per_call_count: int
    message_bytes: int
    part_bytes: int
    lease_s: float
    reservation_s: float
    grace_s: float


@dataclass(frozen=True, slots=True)
class Attached:
    """A session as its owner is told of it. `token` proves to the side socket that the asker is the owner."""

    session: int
    token: bytes
    epoch: int
    fingerprint: bytes
    block_bytes: int
    key_bytes: int
    pools: tuple[PoolInfo, ...]
    limits: LimitsInfo


@dataclass(frozen=True, slots=True)
class LookupReply:
    """Outcome of each key and its highest tier (meaningless for a MISS), uint8 [n] each."""

    states: NDArray[np.uint8]
    tiers: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class DrainReport:
    """Blocks a drain brought to disk, and blocks that are in volatile tiers only."""

    written: int
    left: int
