"""Copies come and go: what happens to slots, headers, policies and chain counts when they do."""

import numpy as np

from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import DiskBook, MappedBook, Slots
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.points import point
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import BlockState, Reason, Tier

# Plain numbers: looking an enum member up costs as much as the operation it is for.
_REMOVED = int(BlockState.REMOVED)
_SEALED = int(BlockState.SEALED)


class Copies:
    """Places and drops copies. Called under the lock."""

    def __init__(self, state: State) -> None:
        self._state = state

    # ------------------------------------------------------------------------------------------------ come

    def place(self, rows: Rows, pool: int, slots: Slots, *, moved: bool = False) -> None:
        """The bytes of sealed `rows` (one size) are complete in `slots`, which were taken for them: publish. `moved`: they
        came from another pool, and the caller tells the feed of it."""
        state, blocks, book = self._state, self._state.blocks, self._state.books[pool]
        now = state.clock.now()
        book.policy.inserted(rows, now)  # first: it refuses what is here already, and nothing has changed by then
        book.settle(state.size_of(int(rows[0])), rows, slots)
        blocks.slot[pool][rows] = slots
        blocks.arrived_at[pool][rows] = now
        self._publish_headers(rows, book, slots)
        state.standings.placed(rows, pool)
        self._tiers_changed(rows)
        if not moved:
            state.feed.sealed(rows, pool)

    def _publish_headers(self, rows: Rows, book: MappedBook | DiskBook, slots: Slots) -> None:
        if not isinstance(book, MappedBook) or book.headers is None:
            return
        blocks = self._state.blocks
        space = self._state.spaces[blocks.namespace[rows[0]]]
        book.headers.publish(
            book.table.header_indices(slots),
            fingerprint=space.fingerprint,
            keys=blocks.keys.padded(rows),
            parents=blocks.parent_keys.padded(rows),
            lengths=np.full(len(rows), space.block_bytes, np.uint64),
            checksums=blocks.checksum[rows],
            sealed_at=blocks.sealed_at[rows],
            access_count=blocks.accesses[rows],
            last_access=blocks.last_access[rows],
            checked=blocks.checked[rows],
            private=blocks.private[rows],
        )

    def adopt(self, rows: Rows, pool: int, slots: Slots) -> None:
        """Bytes and headers of sealed `rows` (one size) lie in free slots since a daemon before this one; the row used first
        comes first. Nobody reads them before they are verified."""
        state, blocks, book = self._state, self._state.blocks, self._state.mapped(pool)
        now = state.clock.now()
        book.policy.inserted(rows, now)
        book.take_at(state.size_of(int(rows[0])), slots, rows, SlotUse.RESIDENT)
        blocks.slot[pool][rows] = slots
        blocks.arrived_at[pool][rows] = now
        state.unverified.add(rows)
        self._tiers_changed(rows)

    def learn_checksums(self, rows: Rows) -> None:
        """Checksums of `rows` became known. Headers that were published without say so from now on."""
        blocks = self._state.blocks
        for pool in self._state.pools_in(Tier.CPU):
            book = self._state.mapped(pool)
            here = rows[blocks.slot[pool][rows] != NO_SLOT]
            if book.headers is not None and len(here):
                indices = book.table.header_indices(blocks.slot[pool][here])
                book.headers.learn_checksums(indices, blocks.checksum[here], blocks.checked[here])

    # ------------------------------------------------------------------------------------------------ go

    def drop(self, rows: Rows, pool: int, reason: Reason = Reason.LOSS, *, moved: bool = False) -> None:
        """These copies go. A sealed block that loses its last one is gone: findable no more. `moved`: they are elsewhere
        now, and the feed has been told."""
        if not len(rows):
            return
        state, blocks, book = self._state, self._state.blocks, self._state.books[pool]
        slots = blocks.slot[pool][rows]
        book.policy.removed(rows)
        state.standings.dropped(rows, pool)
        state.speculation.left(rows, pool)
        state.unverified.left(rows, pool)
        self._retire(rows, slots, book)
        blocks.slot[pool][rows] = NO_SLOT
        for size, some in state.by_size(rows):
            book.give(size, slots[np.isin(rows, some)] if len(some) < len(rows) else slots, SlotUse.RESIDENT, some)
        self._tiers_changed(rows)
        self._tell_left(rows, pool)
        if not moved:
            state.feed.dropped(rows, pool, reason)
        self.bury(rows[blocks.copies(rows) == 0])
        point("evict.freed")

    def relocate(self, rows: Rows, pool: int, slots: Slots) -> None:
        """The copies' bytes now lie in other slots of the same pool. Their place in the policy's order is unchanged."""
        blocks, book = self._state.blocks, self._state.mapped(pool)
        old = blocks.slot[pool][rows]
        self._retire(rows, old, book)
        book.settle(0, rows, slots)
        blocks.slot[pool][rows] = slots
        self._publish_headers(rows, book, slots)
        self._tell_left(rows, pool)
        book.give(0, old, SlotUse.RESIDENT, rows)

    def _retire(self, rows: Rows, slots: Slots, book: MappedBook | DiskBook) -> None:
        if isinstance(book, DiskBook):
            blocks, spaces = self._state.blocks, self._state.spaces
            removed = blocks.state[rows] == _REMOVED
            for gone, some in ((book.to_remove, removed), (book.to_delete, ~removed)):
                fingerprints = [spaces[number].fingerprint for number in blocks.namespace[rows[some]].tolist()]
                gone += zip(fingerprints, blocks.keys.of(rows[some]), slots[some].tolist(), strict=True)
        elif book.headers is not None:
            book.headers.retire(book.table.header_indices(slots))

    def disown(self, row: int, pool: int, slot: int) -> None:
        """Bytes arrived in a place that will not be listed. On disk they would come back with a restart: delete them."""
        book = self._state.books[pool]
        if isinstance(book, DiskBook):
            self._retire(np.array([row], np.int64), np.array([slot], np.int64), book)

    def remove(self, rows: Rows, reason: Reason = Reason.REMOVE) -> None:
        """The sealed blocks are gone at once for everybody who looks; leased and moving copies follow when they can."""
        if not len(rows):
            return
        blocks = self._state.blocks
        self._state.feed.removed(rows, reason)
        blocks.unindex(rows)
        blocks.state[rows] = _REMOVED
        point("remove.unfindable")
        self._tell_gone(rows)
        self._mark_removed(rows)
        self.sweep(rows)

    def _mark_removed(self, rows: Rows) -> None:
        """Copies that stay for their readers are not to come back with the next daemon."""
        blocks = self._state.blocks
        for pool in self._state.pools_in(Tier.CPU):
            book = self._state.mapped(pool)
            here = rows[blocks.slot[pool][rows] != NO_SLOT]
            if book.headers is not None and len(here):
                book.headers.mark_removed(book.table.header_indices(blocks.slot[pool][here]))

    def sweep(self, rows: Rows) -> None:
        """Drop what removed blocks still have and nobody holds; recycle the rows that nothing holds any more."""
        blocks = self._state.blocks
        removed = blocks.state[rows] == _REMOVED
        if not removed.any():
            return
        # A lease may name a block twice; its copy goes once.
        rows = np.unique(rows[removed & (blocks.busy[rows] == 0)])
        for pool in range(len(self._state.books)):
            here = rows[(blocks.slot[pool][rows] != NO_SLOT) & (blocks.leases[pool][rows] == 0)]
            self.drop(here, pool)
        self._recycle(rows[blocks.state[rows] == _REMOVED])

    def bury(self, rows: Rows) -> None:
        """Sealed blocks that lost their last copy."""
        blocks = self._state.blocks
        rows = rows[blocks.state[rows] == _SEALED]
        if len(rows):
            blocks.unindex(rows)
            blocks.state[rows] = _REMOVED
            self._tell_gone(rows)
            self._recycle(rows)

    def _recycle(self, rows: Rows) -> None:
        blocks = self._state.blocks
        unheld = (blocks.holds[rows] == 0) & (blocks.busy[rows] == 0) & (blocks.copies(rows) == 0)
        rows = rows[unheld]
        if len(rows):
            warming = self._state.warming
            for row in rows.tolist() if warming else ():
                warming.pop(row, None)
            self._state.speculation.forget(rows)
            self._state.setbacks.forget(rows)
            blocks.recycle(rows)

    # ------------------------------------------------------------------------------------------------ sequences

    def _tell_left(self, rows: Rows, pool: int) -> None:
        mapped = rows[self._state.blocks.mapped[rows] > 0]
        if len(mapped) and self._state.mapper is not None:
            self._state.mapper.left(mapped, pool)

    def _tell_gone(self, rows: Rows) -> None:
        mapped = rows[self._state.blocks.mapped[rows] > 0]
        if len(mapped) and self._state.mapper is not None:
            self._state.mapper.gone(mapped)

    # ------------------------------------------------------------------------------------------------ tiers

    def _tiers_changed(self, rows: Rows) -> None:
        state, blocks = self._state, self._state.blocks
        highest, before = blocks.highest_of(rows), blocks.highest[rows]
        blocks.set_highest(rows, highest)
        if state.top is not Tier.GPU:
            return
        for pool in state.pools_in(Tier.CPU):
            shadowed = state.shadowed[pool]
            below = (blocks.slot[pool][rows] != NO_SLOT) & (highest < Tier.CPU)
            for row in rows[~below & (before < Tier.CPU)].tolist() if shadowed else ():
                shadowed.pop(row, None)
            if below.any():
                shadowed.update(dict.fromkeys(rows[below].tolist()))
