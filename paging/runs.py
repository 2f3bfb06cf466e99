"""Adjacent slots: blocks of a page are brought into a run of slots, or moved into one, as far as there is a run.

A page of several blocks is one entry when its blocks lie in adjacent slots. Nothing here evicts or waits: where there is no
run, or a block may not move, the page stays split, and is tried again.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.reclaim import Reclaim
from hybridkv.paging.backing import Blocks
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import Slots
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Priority, Reason

_NOWHERE = -1


class Runs:
    """Called under the directory's lock. `send` queues transfers."""

    def __init__(self, directory: Directory, reclaim: Reclaim, send: Callable[[Iterable[Transfer]], None]) -> None:
        self._directory = directory
        self._reclaim = reclaim
        self._send = send

    def coming(self, sequence: Sequence, pages: int) -> bool:
        """So many runs are not free, but memory is being carved that gives some: who waits for it finds them."""
        book = self._directory.state.mapped(sequence.pool)
        size, length = sequence.block_bytes, sequence.page_blocks
        if length == 1 or pages == 0:
            return False
        if book.table.carving_slots(size):
            return True
        missing = pages - len(book.table.free_runs(size, length, pages))
        return missing > 0 and self._reclaim.carve_for(book, size, missing * length) > 0

    # ------------------------------------------------------------------------------------------------ up

    def bring(self, sequence: Sequence, blocks: Blocks, *, ahead: bool = False) -> None:
        """Begin to bring up the pages of `blocks` that lie wholly below, each into a run of its own; `ahead` of need."""
        size = sequence.page_blocks
        if size == 1:
            return
        pages = np.unique(blocks // size)
        rows, sources = self._rows_below(sequence, pages)
        book = self._directory.state.mapped(sequence.pool)
        starts = book.table.free_runs(sequence.block_bytes, size, len(rows))
        steps = np.arange(size) * sequence.block_bytes
        for row, source, start in zip(rows, sources.tolist(), starts.tolist(), strict=False):
            reason, priority = (Reason.PREFETCH, Priority.PREFETCH) if ahead else (Reason.DEMAND, Priority.DEMAND)
            self._begin(row, int(source), sequence.pool, start + steps, reason, priority, keep_source=True)

    def _rows_below(self, sequence: Sequence, pages: Blocks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows [n, page_blocks] of the pages that can come as a whole, and the pool each comes from. No row twice."""
        size, table = sequence.page_blocks, self._directory.blocks
        spread = (pages[:, None] * size + np.arange(size)).ravel()
        rows = sequence.backing.rows(spread)
        fit = (sequence.backing.kinds(spread) == Backed.SEALED) & (table.busy[rows] == 0)
        fit &= table.slot[sequence.pool][rows] == NO_SLOT
        sources = np.full(len(rows), _NOWHERE, np.int64)
        for pool in reversed(range(len(table.slot))):
            sources[table.slot[pool][rows] != NO_SLOT] = pool
        of_page, from_pool = rows.reshape(-1, size), sources.reshape(-1, size)
        whole = fit.reshape(-1, size).all(1) & (from_pool == from_pool[:, :1]).all(1)
        of_page, from_pool = of_page[whole], from_pool[whole]
        _, first = np.unique(of_page, return_index=True)
        once = np.zeros(of_page.size, np.bool_)
        once[first] = True
        alone = once.reshape(-1, size).all(1)
        return of_page[alone], from_pool[alone, 0]

    # ------------------------------------------------------------------------------------------------ together

    def join(self, sequence: Sequence, pages: Blocks, limit: int) -> list[Transfer]:
        """Begin to move blocks of split pages next to one another, where that can be; about `limit` blocks. No block moves
        that lies right already."""
        begun: list[Transfer] = []
        for page in pages.tolist():
            if len(begun) >= limit:
                break
            begun += self._join(sequence, page)
        return begun

    def could_join(self, sequence: Sequence) -> bool:
        """Some split page of the sequence lacks nothing but a run of slots."""
        size, column = sequence.page_blocks, self._directory.blocks.slot[sequence.pool]
        for page in sequence.table.scattered().tolist():
            blocks = page * size + np.arange(size)
            rows = sequence.backing.rows(blocks)
            sealed = (sequence.backing.kinds(blocks) == Backed.SEALED).all()
            if sealed and (column[rows] != NO_SLOT).all() and self._may_move(sequence, rows):
                return True
        return False

    def make_room(self, sequence: Sequence) -> list[Transfer]:
        """There is no run of free slots, but there are free slots: clear the run that costs the fewest copies."""
        book, size = self._directory.state.mapped(sequence.pool), sequence.block_bytes
        length = sequence.page_blocks
        if book.free_slots(size) < length or len(book.table.free_runs(size, length, 1)):
            return []
        found = book.table.window_to_clear(size, length, lambda rows: self._movable(sequence.pool, rows))
        if found is None:
            return []
        slots, rows = found
        around = int(slots[-1]) - (length - 1) * size, int(slots[0]) + length * size
        targets = book.table.free_offsets(size, len(rows), around)
        if len(targets) < len(rows):
            return []
        pool = sequence.pool
        return self._begin(rows, pool, pool, targets, Reason.PAGE_SIZE, Priority.BACKGROUND, keep_source=False)

    def _join(self, sequence: Sequence, page: int) -> list[Transfer]:
        size = sequence.page_blocks
        blocks = page * size + np.arange(size)
        if not (sequence.backing.kinds(blocks) == Backed.SEALED).all():
            return []
        rows = sequence.backing.rows(blocks)
        slots = self._directory.blocks.slot[sequence.pool][rows]
        if (slots == NO_SLOT).any() or len(np.unique(rows)) < size:
            return []
        target = self._place(sequence, slots)
        if target is None:
            return []
        moving = np.flatnonzero(target != slots)
        if not self._may_move(sequence, rows[moving]):
            return []
        pool, slots = sequence.pool, target[moving]
        return self._begin(rows[moving], pool, pool, slots, Reason.PAGE_SIZE, Priority.DEMAND, keep_source=False)

    def _may_move(self, sequence: Sequence, rows: Rows) -> bool:
        """Nobody holds these very copies. (A request or a sticky page holds the block, not its place.)"""
        return bool(self._movable(sequence.pool, rows).all())

    def _movable(self, pool: int, rows: Rows) -> NDArray[np.bool_]:
        table, haunted = self._directory.blocks, self._directory.state.mapped(pool).haunted_slots
        still = (table.leases[pool][rows] == 0) & (table.busy[rows] == 0)
        if haunted:
            slots = table.slot[pool][rows].tolist()
            still &= np.fromiter((slot not in haunted for slot in slots), np.bool_, len(rows))
        return np.asarray(still)

    def _place(self, sequence: Sequence, slots: Slots) -> Slots | None:
        """Adjacent places for the blocks in `slots`: those around as many as possible that stay, else a free run."""
        size, steps = sequence.block_bytes, np.arange(len(slots)) * sequence.block_bytes
        table = self._directory.state.mapped(sequence.pool).table
        best: Slots | None = None
        most = 0
        for start in np.unique(slots - steps).tolist():
            target = start + steps
            stays = target == slots
            extents = target // table.extent_bytes
            if int(stays.sum()) <= most or start < 0 or extents[0] != extents[-1]:
                continue
            if table.are_free(target[~stays], size).all():
                best, most = target, int(stays.sum())
        if best is None and len(runs := table.free_runs(size, len(slots), 1)):
            best = runs[0] + steps
        return best

    def _begin(
        self,
        rows: Rows,
        source: int,
        pool: int,
        slots: Slots,
        reason: Reason,
        priority: Priority,
        *,
        keep_source: bool,
    ) -> list[Transfer]:
        if source != pool and len(self._directory.fitting(rows, pool)) < len(rows):
            return []
        size = self._directory.state.size_of(int(rows[0]))
        self._directory.state.mapped(pool).take_at(size, slots, rows, SlotUse.INCOMING)
        begun = self._directory.moves.begin(rows, source, pool, reason, priority, keep_source=keep_source, slots=slots)
        self._send(begun)
        return begun
