"""What the model knows: workers, their sequences, and which bytes each block has. Plain records."""

import hashlib
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.tickets import Ticket
from hybridkv.paging.replies import FaultReply

BLOCK = 4096
TOKENS = 16
CHAINS = 3
DEPTH = 12

Place = tuple[int, int]
"""(pool, offset)."""


@cache
def key_of(chain: int, depth: int) -> bytes:
    """The key of a block of the model's chains, 16 bytes."""
    return hashlib.blake2b(bytes((chain, depth)), digest_size=16).digest()


def stamp_of(chain: int, depth: int) -> int:
    """What a worker that computes the chain writes at this depth; other stamps are above these."""
    return chain * DEPTH + depth


@cache
def content_of(stamp: int) -> NDArray[np.uint8]:
    seed = hashlib.blake2b(stamp.to_bytes(8, "little"), digest_size=64).digest()
    content = np.tile(np.frombuffer(seed, np.uint8), BLOCK // 64)
    content.flags.writeable = False
    return content


@dataclass(eq=False)
class Worker:
    """A session. A `lapsed` one lost its stream and grace; its process goes on writing into what it had."""

    session: int
    broken_at: float | None = None
    lapsed: bool = False
    haunted: list[Place] = field(default_factory=list)


@dataclass(eq=False)
class Space:
    """A sequence. `stamps[block]` says which bytes it has; a block that is not in it was never written, or is lost.
    `writable` are blocks whose slot the worker may write in place."""

    number: int
    worker: Worker
    chain: int
    tokens: int
    stamps: dict[int, int] = field(default_factory=dict)
    writable: set[int] = field(default_factory=set)

    @property
    def blocks(self) -> int:
        return -(-self.tokens // TOKENS)


@dataclass(eq=False)
class Pending:
    """A fault that waits; `stamps` are to be written once it is served (None: a read)."""

    space: Space
    ticket: Ticket[FaultReply]
    blocks: list[int]
    stamps: list[int] | None


@dataclass(eq=False)
class Held:
    """Leased blocks: their bytes stay where they are while it is held."""

    space: Space
    lease: int
    places: list[tuple[Place, int]]
    expires_at: float
