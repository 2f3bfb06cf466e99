"""What belongs to one page fault: what was asked for, what it waits for, and its answer. Plain records."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.acquires import AcquireReply
from hybridkv.migration.reserves import ReserveReply
from hybridkv.migration.tickets import Ticket
from hybridkv.paging.backing import Blocks
from hybridkv.paging.replies import FaultReply
from hybridkv.paging.sequence import Sequence
from hybridkv.tiers.directory.holds import Reservation, Session
from hybridkv.tiers.errors import HybridKVError

Missing = list[tuple[Sequence, Blocks]]
"""Blocks to bring up, by sequence."""

Unwritten = dict[Sequence, Blocks]
"""Blocks that need a slot to be written in, by sequence."""


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks of one sequence that a fault was asked for."""

    sequence: Sequence
    blocks: Blocks
    write: bool


@dataclass(slots=True, eq=False)
class Fresh:
    """Blocks of sequences that become WRITABLE, in one order with the positions of the reservation they get."""

    parts: list[tuple[Sequence, Blocks]]
    reservation: Reservation
    ticket: Ticket[ReserveReply]

    def places(self) -> Iterator[tuple[Sequence, Blocks, NDArray[np.int64]]]:
        """Blocks of each sequence, and their positions in the reservation."""
        first = 0
        for sequence, blocks in self.parts:
            yield sequence, blocks, np.arange(first, first + len(blocks))
            first += len(blocks)


@dataclass(slots=True, eq=False)
class Fault:
    session: Session
    parts: list[Part]
    hold: bool
    life_s: float
    began_at: float
    ticket: Ticket[FaultReply]
    planned: bool = False
    acquires: list[Ticket[AcquireReply]] = field(default_factory=list)
    reserves: list[Fresh] = field(default_factory=list)
    copying: int = 0
    copied: bool = False
    entered: int = 0
    minor: int = 0
    major: int = 0
    reply: FaultReply | None = None
    error: HybridKVError | None = None
