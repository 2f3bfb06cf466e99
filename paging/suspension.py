"""Suspension: a sequence leaves its pool as a whole, and comes back in one batch."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.migrator import Migrator
from hybridkv.migration.tickets import Ticket
from hybridkv.paging.answers import Answer
from hybridkv.paging.mappings import Mappings
from hybridkv.paging.replies import SuspendReply
from hybridkv.paging.sequence import Sequence
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.points import point
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import BlockState, Priority, Reason
from hybridkv.tiers.victims import choose_victims


@dataclass(slots=True, eq=False)
class _Leaving:
    """Sequences of one pool on their way down."""

    pool: int
    rows: Rows
    keys: list[bytes]
    answer: Answer[SuspendReply] = field(default_factory=Answer)


class Suspension:
    """Suspensions under way. Called under the directory's lock."""

    def __init__(self, migrator: Migrator, mappings: Mappings) -> None:
        self._migrator = migrator
        self._directory = migrator.directory
        self._mappings = mappings
        self._leaving: list[_Leaving] = []

    def __len__(self) -> int:
        return len(self._leaving)

    def start(self, sequences: list[Sequence]) -> list[Ticket[SuspendReply]]:
        """What sequences alone have leaves its pool: one ticket a pool. They are marked, and let go what they hold."""
        for sequence in sequences:
            if not sequence.suspended:
                self._mappings.hold(sequence, sequence.sticky, -1)
                self._mappings.hold(sequence, sequence.kept, -1)
                sequence.kept.clear()
                sequence.suspended = True
        pools = sorted({sequence.pool for sequence in sequences})
        return [self._start([sequence for sequence in sequences if sequence.pool == pool], pool) for pool in pools]

    def _start(self, sequences: list[Sequence], pool: int) -> Ticket[SuspendReply]:
        blocks = self._directory.blocks
        mine = [sequence.backing.rows(sequence.sealed()) for sequence in sequences]
        rows = np.unique(np.concatenate(mine))
        rows = rows[blocks.slot[pool][rows] != NO_SLOT]
        leaving = _Leaving(pool, rows, [blocks.keys[row] for row in rows.tolist()])
        for sequence in sequences:
            self._leave_entries(sequence)
        self._leaving.append(leaving)
        point("sequence.suspending")
        if self._go_on(leaving):
            leaving.answer.ticket.finish()
        return leaving.answer.ticket

    def _leave_entries(self, sequence: Sequence) -> None:
        """Its blocks are where they are, but it has no entries for them until it is resumed or faults."""
        sequence.table.unmap(sequence.sealed())

    def _go_on(self, leaving: _Leaving) -> bool:
        """Lower what still may go. True when nothing is on its way any more."""
        rows = self._staying(leaving)
        going = rows[self._unused(rows, leaving.pool)]
        choice = self._directory.choice
        picked = choose_victims(
            [going[::-1]],
            choice.may_go(leaving.pool, None),
            choice.blocking_children(leaving.pool),
            choice.parents_above(leaving.pool),
            len(going),
        )
        freed, started = self._migrator.reclaim.lower(leaving.pool, picked, Reason.SUSPEND, Priority.BACKGROUND)
        left = self._staying(leaving)
        if freed + started and len(left):
            return False
        if (self._directory.blocks.busy[left] > 0).any():
            return False
        self._leaving.remove(leaving)
        point("sequence.suspended")
        leaving.answer.give(SuspendReply(len(leaving.rows) - len(left), len(left)))
        return True

    def _staying(self, leaving: _Leaving) -> Rows:
        """Its blocks that are in the pool still: a row may stand for another block by now."""
        blocks = self._directory.blocks
        same = [
            row
            for row, key in zip(leaving.rows.tolist(), leaving.keys, strict=True)
            if blocks.state[row] == BlockState.SEALED and blocks.keys[row] == key
        ]
        rows = np.array(same, np.int64)
        here: Rows = rows[blocks.slot[leaving.pool][rows] != NO_SLOT]
        return here

    def _unused(self, rows: Rows, pool: int) -> NDArray[np.bool_]:
        """Blocks that no sequence uses which is awake in this pool."""
        sequences = self._mappings.sequences
        uses = self._mappings.reverse.of
        unused = (
            all(sequences[number].suspended or sequences[number].pool != pool for number, _ in uses(row))
            for row in rows.tolist()
        )
        return np.fromiter(unused, np.bool_, len(rows))

    def advance(self) -> list[Ticket[SuspendReply]]:
        """Something ended: those that are done."""
        return [leaving.answer.ticket for leaving in list(self._leaving) if self._go_on(leaving)]
