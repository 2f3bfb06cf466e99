"""What the model knows: workers, what they write and what they read. Plain records."""

import hashlib
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.reserves import ReserveReply
from hybridkv.migration.tickets import Ticket

CHAINS = 6
DEPTH = 14

Place = tuple[int, int]
"""(pool, offset)."""


@cache
def key_of(space: int, chain: int, depth: int) -> bytes:
    """The key of a block of the model's universe, 16 bytes."""
    return hashlib.blake2b(bytes((space, chain, depth)), digest_size=16).digest()


@cache
def content_of(space: int, key: bytes, block_bytes: int) -> NDArray[np.uint8]:
    """The bytes of a block: they derive from its key alone."""
    seed = hashlib.blake2b(bytes((space,)) + key, digest_size=64).digest()
    content = np.tile(np.frombuffer(seed, np.uint8), block_bytes // 64)
    content.flags.writeable = False
    return content


@dataclass(eq=False)
class Worker:
    """A session. A `lapsed` one has lost its stream and its grace, but its process still writes and reads."""

    session: int
    space: int
    maps: bool
    broken_at: float | None = None
    lapsed: bool = False


@dataclass(eq=False)
class Writing:
    """A reservation. `open` are positions it may still seal, `haunted` those it lost by lapsing and still writes to."""

    worker: Worker
    reservation: int
    keys: list[bytes]
    places: dict[int, Place]
    expires_at: float
    open: set[int] = field(default_factory=set)
    haunted: set[int] = field(default_factory=set)
    lapsed: bool = False


@dataclass(eq=False)
class Waiting:
    """A reservation that waits for room."""

    worker: Worker
    ticket: Ticket[ReserveReply]
    keys: list[bytes]
    expires_at: float


@dataclass(eq=False)
class Reading:
    """A lease. `places` are the copies its owner looks at: their bytes stay while it is `trusted`."""

    worker: Worker
    lease: int
    keys: list[bytes]
    views: bool
    expires_at: float
    places: dict[int, Place] = field(default_factory=dict)
    lapsed: bool = False

    @property
    def trusted(self) -> bool:
        """It lives, or it lapsed and its slots are in quarantine."""
        return not self.lapsed or (self.views and self.worker.maps)
