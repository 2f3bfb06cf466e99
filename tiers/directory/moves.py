"""Transfers: a copy on its way, from the decision to its commit or failure.

The source stays readable until the destination is committed, the destination is unreadable before. Bookkeeping only: the
lanes (migration/) carry the bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter

import numpy as np

from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import DiskBook, Slots
from hybridkv.tiers.directory.copies import Copies
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.points import point
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import BlockState, Priority, Reason


class Stage(IntEnum):
    """QUEUED: decided. RUNNING: bytes are moving. The rest are ends."""

    QUEUED = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    CANCELLED = 4


# An enum's attribute is looked up by a Python function: too slow once per block.
_QUEUED, _RUNNING = Stage.QUEUED, Stage.RUNNING


_REMOVED = BlockState.REMOVED
_ROW, _TARGET_SLOT, _KEEPS, _DEADLINE = map(attrgetter, ("row", "target_slot", "keep_source", "give_up_at"))


@dataclass(slots=True, eq=False)
class Transfer:
    """One block's copy from pool `source` to pool `target`. `via` is a lane's CPU slot when they are no neighbours."""

    row: int
    size: int
    source: int
    target: int
    source_slot: int
    target_slot: int
    reason: Reason
    priority: Priority
    keep_source: bool
    decided_at: float
    stage: Stage = Stage.QUEUED
    via: int | None = None
    give_up_at: float | None = None
    """Not begun by then, and waited for by nobody, it is not wanted any more."""
    space: int = 0
    key: bytes = b""
    """Whose block it is: the row may be another's once the transfer has ended."""
    figures: tuple[tuple[str, ...], tuple[float, ...]] | None = None
    """For whoever explains it: names and values of what it was decided on. Shared between transfers."""
    ended_at: float = 0.0

    @property
    def demotes(self) -> bool:
        """It exists to take the copy away from its source."""
        return not self.keep_source


class Moves:
    """Begins and ends transfers. Called under the lock. A block has at most one transfer in flight."""

    def __init__(self, state: State, copies: Copies) -> None:
        self._state = state
        self._copies = copies

    def begin(
        self,
        rows: Rows,
        source: int,
        target: int,
        reason: Reason,
        priority: Priority,
        *,
        keep_source: bool,
        slots: Slots | None = None,
    ) -> list[Transfer]:
        """Transfers for the first of `rows` (one size, sealed, not in flight) that find room in `target`.

        `slots`: where they go, taken for them as INCOMING already."""
        state, blocks = self._state, self._state.blocks
        if not len(rows):
            return []
        size = state.size_of(int(rows[0]))
        if slots is None:
            slots = state.books[target].take(size, rows, SlotUse.INCOMING, limited=source != target)
        rows = rows[: len(slots)]
        blocks.busy[rows] = 1
        now = state.clock.now()
        numbers = rows.tolist()
        begun = [
            Transfer(
                row, size, source, target, source_slot, slot, reason, priority, keep_source, now, _QUEUED, None, None,
                space, key,
            )
            for row, source_slot, slot, space, key in zip(
                numbers,
                blocks.slot[source][rows].tolist(),
                slots.tolist(),
                blocks.namespace[rows].tolist(),
                blocks.keys.of(rows),
                strict=True,
            )
        ]  # fmt: skip
        state.transfers.update(zip(numbers, begun, strict=True))
        point("move.decided", state.books[source].id.tier, state.books[target].id.tier)
        return begun

    def start(self, transfer: Transfer) -> bool:
        """Bytes are about to move. False when it is not wanted any more: it has ended as CANCELLED."""
        return not self.start_all([transfer])

    def start_all(self, transfers: Sequence[Transfer]) -> list[Transfer]:
        """Bytes are about to move. Those not wanted any more have ended as CANCELLED, and are returned."""
        cancelled = []
        doubtful = set(self._doubtful(transfers))
        for number, transfer in enumerate(transfers):
            if number in doubtful and self._unwanted(transfer):
                self.cancel(transfer)
                cancelled.append(transfer)
            else:
                transfer.stage = _RUNNING
        return cancelled

    def _doubtful(self, transfers: Sequence[Transfer]) -> list[int]:
        """Positions of those that need a closer look, from columns: most batches have none."""
        blocks = self._state.blocks
        if not transfers:
            return []
        rows = rows_of(transfers)
        look = blocks.state[rows] == _REMOVED
        in_use = blocks.holds[rows] > 0
        for leases in blocks.leases:
            in_use |= leases[rows] > 0
        if in_use.any():
            look |= in_use & ~np.fromiter(map(_KEEPS, transfers), np.bool_, len(rows))
        deadlines = [*map(_DEADLINE, transfers)]
        if deadlines.count(None) < len(deadlines):
            look |= np.array([at is not None for at in deadlines], np.bool_)
        doubtful: list[int] = np.flatnonzero(look).tolist()
        return doubtful

    def cancel(self, transfer: Transfer) -> None:
        """A QUEUED transfer, out of every queue, ends without a byte moved."""
        self.fail([transfer], stage=Stage.CANCELLED)

    def _unwanted(self, transfer: Transfer) -> bool:
        blocks, row = self._state.blocks, transfer.row
        if blocks.state[row] == BlockState.REMOVED:
            return True
        if self.overdue(transfer):
            return True
        in_use = blocks.leases[transfer.source][row] or blocks.holds[row]
        return bool(transfer.demotes and in_use and transfer.reason is not Reason.DRAIN)

    def overdue(self, transfer: Transfer) -> bool:
        """Its deadline is over and nobody waits for it."""
        return (
            transfer.give_up_at is not None
            and transfer.give_up_at <= self._state.clock.now()
            and not self._state.blocks.waiting[transfer.row]
        )

    def commit(self, transfers: Sequence[Transfer], places: Slots | Sequence[int] | None = None) -> None:
        """The bytes of these (one source, target and size) have arrived; `places`: segments, when the target is
        DISK."""
        blocks = self._state.blocks
        if places is not None and isinstance(self._state.books[transfers[0].target], DiskBook):
            for transfer, place in zip(transfers, np.asarray(places).tolist(), strict=True):
                transfer.target_slot = place
        arrived = self._still_wanted(transfers)
        if not arrived:
            return
        first = arrived[0]
        rows = rows_of(arrived)
        slots = np.fromiter(map(_TARGET_SLOT, arrived), np.int64, len(arrived))
        # Placed before it has ended: were placing refused, these would still be in flight, for the caller to fail.
        if first.source == first.target:
            self._copies.relocate(rows, first.source, slots)
        else:
            self._copies.place(rows, first.target, slots, moved=True)
        self._end_all(arrived, rows, Stage.DONE)
        blocks.moved_at[rows] = self._state.clock.now()
        self._state.setbacks.forget(rows)
        way = self._state.books[first.source].id.tier, self._state.books[first.target].id.tier
        if first.source == first.target:
            point("move.relocated", *way)
            return
        point("move.committed", *way)
        leaving = ~np.fromiter(map(_KEEPS, arrived), np.bool_, len(arrived))
        # A lease taken meanwhile wins: its copy stays, and the block simply has one copy more.
        leaving &= blocks.leases[first.source][rows] == 0
        self._state.feed.moved(arrived, rows, leaving)
        self._copies.drop(rows[leaving], first.source, moved=True)
        point("move.source_freed" if leaving.any() else "move.source_kept", *way)

    def _still_wanted(self, transfers: Sequence[Transfer]) -> Sequence[Transfer]:
        """Without those whose block was removed meanwhile, or whose very copy was to move and is leased now: these have
        ended as CANCELLED."""
        blocks, first = self._state.blocks, transfers[0]
        rows = rows_of(transfers)
        unwanted = blocks.state[rows] == _REMOVED
        if first.source == first.target:
            unwanted |= blocks.leases[first.source][rows] > 0
        if not unwanted.any():
            return transfers
        for number in np.flatnonzero(unwanted).tolist():
            transfer = transfers[number]
            self._copies.disown(transfer.row, transfer.target, transfer.target_slot)
            self.fail([transfer], stage=Stage.CANCELLED)
        return [transfers[number] for number in np.flatnonzero(~unwanted).tolist()]

    def fail(self, transfers: Sequence[Transfer], *, source_lost: bool = False, stage: Stage = Stage.FAILED) -> None:
        """The bytes did not arrive. `source_lost`: the source cannot be read any more, so that copy is gone too."""
        for transfer in transfers:
            self._end(transfer, stage)
            book = self._state.books[transfer.target]
            slot = np.array([transfer.target_slot], np.int64)
            row = np.array([transfer.row], np.int64)
            book.give(transfer.size, slot, SlotUse.INCOMING, row)
            if source_lost and self._state.blocks.slot[transfer.source][transfer.row] != NO_SLOT:
                self._copies.drop(row, transfer.source)
            self._copies.sweep(row)

    def _end(self, transfer: Transfer, stage: Stage) -> None:
        self._end_all([transfer], np.array([transfer.row], np.int64), stage)

    def _end_all(self, transfers: Sequence[Transfer], rows: Rows, stage: Stage) -> None:
        """`rows` are the transfers'."""
        self._state.blocks.busy[rows] = 0
        under_way, now = self._state.transfers, self._state.clock.now()
        for transfer in transfers:
            transfer.stage = stage
            transfer.ended_at = now
            under_way.pop(transfer.row, None)


def rows_of(transfers: Sequence[Transfer]) -> Rows:
    """Their rows, int64 [n]."""
    return np.fromiter(map(_ROW, transfers), np.int64, len(transfers))
