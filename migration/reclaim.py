"""Making room: carve, drop what lies lower too, demote, empty another layout's extent; evict only as the last resort.

Called under the directory's lock. Decides and returns at once: bytes move in the lanes, memory is committed by the
carver. Nobody here waits, so lanes and pools cannot wait for one another.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.allowance import Allowance
from hybridkv.migration.ledger import MoveLedger
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.extents import ExtentState, SlotUse
from hybridkv.tiers.points import point
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Priority, Reason, Tier

_KEEP_THE_LAST = (Reason.IDLE, Reason.FEW_ACCESSES, Reason.SUSPEND, Reason.WINDOW, Reason.QUOTA)
"""Rules that move blocks down but are no reason to lose one."""


class Reclaim:
    """Frees slots on demand. `send` queues transfers, `carve` queues an extent to be committed, `release` one whose
    memory goes back (pool, extent)."""

    def __init__(
        self,
        directory: Directory,
        moves: MoveLedger,
        send: Callable[[Iterable[Transfer]], None],
        carve: Callable[[int, int], None],
        release: Callable[[int, int], None],
        *,
        admit_min_accesses: float = 0.0,
    ) -> None:
        self._directory = directory
        self._moves = moves
        self._send = send
        self._carve = carve
        self._release = release
        self.admit_min_accesses = admit_min_accesses
        self._returning: dict[tuple[int, int], Reason] = {}
        self._releasing: Counter[int] = Counter()
        self.allowance = Allowance(directory, self.lower, self._stays_somewhere)

    # ------------------------------------------------------------------------------------------------ room

    def make_room(self, pool: int, size: int, count: int, priority: Priority = Priority.DEMAND) -> bool:
        """See to it that `count` slots of `size` bytes get free in `pool`.

        True when they are free now or something is under way that frees some; False when nothing more can be freed.
        """
        book = self._directory.books[pool]
        missing = count - book.free_slots(size)
        if missing <= 0:
            return True
        if not isinstance(book, MappedBook):
            # After a restart with a smaller tier more lies there than there is room for: evict until it shows.
            while book.free_slots(size) < count and self._evict(pool, size, missing, Reason.RECLAIM):
                pass
            return book.free_slots(size) > 0
        coming = self.coming(pool, size)
        if missing > coming:
            coming += self.carve_for(book, size, missing - coming)
        missing -= coming
        if missing <= 0:
            return True
        if self._other_layout_is_colder(book, size, missing):
            # An extent that held nothing but clean copies is empty already.
            self.carve_for(book, size, missing)
            return True
        victims = self._directory.choice.victims(pool, size, missing, priority)
        freed, started = self.lower(pool, victims, Reason.RECLAIM, priority)
        if freed + started + coming > 0:
            return True
        if not self._empty_an_extent(book, size):
            return False
        self.carve_for(book, size, missing)
        return True

    def coming(self, pool: int, size: int) -> int:
        """Slots that transfers in flight, and extents being carved, will free."""
        leaving = sum(
            t.source == pool and t.size == size and t.demotes and t.source != t.target
            for t in self._directory.state.transfers.values()
        )
        return leaving + self._directory.state.mapped(pool).table.carving_slots(size)

    def carve_for(self, book: MappedBook, size: int, missing: int) -> int:
        """Begin to carve free extents: the number of slots they will give."""
        before = book.table.carving_slots(size)
        while book.table.carving_slots(size) - before < missing:
            extent = book.table.begin_carving(size)
            if extent is None:
                break
            self._carve(book.index, extent)
        return book.table.carving_slots(size) - before

    def carve_ahead(self, book: MappedBook, size: int) -> None:
        """Have half an extent's slots free or coming, while extents are free: so that few reservations wait for memory."""
        wanted = max(1, book.table.extent_bytes // size // 2)
        if book.free_slots(size) + book.table.carving_slots(size) < wanted:
            self.carve_for(book, size, 1)

    # ------------------------------------------------------------------------------------------------ down

    def lower(self, pool: int, victims: list[int], reason: Reason, priority: Priority) -> tuple[int, int]:
        """Take the victims' copies out of the pool, in order: (freed now, on their way).

        A victim that cannot go yet ends the round, for those behind it may be its ancestors (law 7).
        """
        freed = started = 0
        rows = np.array(victims, np.int64)
        while len(rows):
            run, kind = self._first_run(pool, rows)
            if kind == "drop":
                freed += self._drop(pool, run, reason)
                rows = rows[len(run) :]
                continue
            if kind == "barred":
                if self.allowance.found_below(self.below(pool), run):
                    continue
                gone, coming = self._without_quota_below(pool, run, reason)
                freed, started = freed + gone, started + coming
                rows = rows[len(run) :] if gone else self.allowance.of_others(rows, run)
                continue
            sent = self._demote(pool, run, reason, priority)
            started += sent
            rows = rows[sent:]
            if sent < len(run):
                done, stuck = self._without_room_below(pool, run[sent:], reason, priority)
                started += done if not stuck else 0
                freed += self._drop(pool, run[sent:], reason) if stuck and reason not in _KEEP_THE_LAST else 0
                break
        return freed, started

    def _first_run(self, pool: int, rows: Rows) -> tuple[Rows, str]:
        """The longest head of `rows` of one size to which one thing happens: "drop", "demote", or "barred" where their
        tenant's quota below is full (those are of one namespace)."""
        drops = self._drops_free(pool, rows)
        spaces = self._directory.blocks.namespace[rows]
        sizes = self._directory.state.sizes[spaces]
        same = (drops == drops[0]) & (sizes == sizes[0])
        run = rows[: int(np.argmin(same)) if not same.all() else len(rows)]
        below = self.below(pool)
        if drops[0] or below is None or self._directory.state.quotas is None:
            return run, "drop" if drops[0] else "demote"
        fits = np.isin(run, self._directory.fitting(run, below))
        if not fits[0]:
            barred = ~fits & (spaces[: len(run)] == spaces[0])
            return run[: int(np.argmin(barred)) if not barred.all() else len(run)], "barred"
        return run[: int(np.argmin(fits)) if not fits.all() else len(run)], "demote"

    def _without_quota_below(self, pool: int, run: Rows, reason: Reason) -> tuple[int, int]:
        """Blocks of one namespace have to leave the pool, and their tenant may have no more below: (freed now, on their way).

        Those on their way out below are waited for; else these are evicted, unless they may stay here."""
        below = self.below(pool)
        space = int(self._directory.blocks.namespace[run[0]])
        if below is not None and self.allowance.coming(below, space):
            return 0, 1
        return (0 if reason in _KEEP_THE_LAST else self._drop(pool, run, Reason.QUOTA)), 0

    def _stays_somewhere(self, pool: int, rows: Rows) -> NDArray[np.bool_]:
        """Blocks that lose no last copy when `lower` takes this one: there is another, or it is moved. bool [n]."""
        moved = ~self._drops_free(pool, rows) if self.below(pool) is not None else np.zeros(len(rows), np.bool_)
        return np.asarray((self._directory.blocks.copies(rows) > 1) | moved)

    def _drops_free(self, pool: int, rows: Rows) -> NDArray[np.bool_]:
        """Copies that may simply go: another lies right below (or as high), or the tier below does not admit them."""
        blocks, tier = self._directory.blocks, self._directory.books[pool].id.tier
        below = self.below(pool)
        free = blocks.highest[rows] < tier
        for other in self._directory.state.pools_in(tier):
            if other != pool:
                free |= blocks.slot[other][rows] != NO_SLOT
        if below is None:
            return np.ones(len(rows), np.bool_)
        free |= blocks.slot[below][rows] != NO_SLOT
        if self._directory.books[below].id.tier is Tier.DISK:
            # An earlier access counts less than one by now, and still counts: two accesses are never "fewer than 2".
            free |= np.ceil(blocks.accesses[rows]) < self.admit_min_accesses
        return free

    def below(self, pool: int) -> int | None:
        """The pool one tier down; a disk tier that is off does not count."""
        tier = self._directory.books[pool].id.tier
        for book in self._directory.books:
            if book.id.tier == tier + 1:
                return book.index if isinstance(book, MappedBook) or book.on else None
        return None

    def _demote(self, pool: int, rows: Rows, reason: Reason, priority: Priority) -> int:
        """Begin transfers one tier down for the first of `rows` that fit there: how many."""
        below = self.below(pool)
        if below is None:
            return 0
        if not isinstance(self._directory.books[below], MappedBook):
            size = self._directory.state.size_of(int(rows[0]))
            self.make_room(below, size, len(rows))
        begun = self._directory.moves.begin(rows, pool, below, reason, priority, keep_source=False)
        self._send(begun)
        return len(begun)

    def _without_room_below(self, pool: int, rows: Rows, reason: Reason, priority: Priority) -> tuple[int, bool]:
        """Make room below for `rows`: (how many found some now or have it coming, whether none ever will)."""
        below = self.below(pool)
        if below is None:
            return 0, True
        size = self._directory.state.size_of(int(rows[0]))
        if self.make_room(below, size, len(rows), priority):
            # What was dropped below left room at once; the rest comes with the transfers under way there.
            return max(1, self._demote(pool, rows, reason, priority)), False
        return self._demote_past(pool, rows, reason, priority)

    def _demote_past(self, pool: int, rows: Rows, reason: Reason, priority: Priority) -> tuple[int, bool]:
        """The CPU tier is full of what may not move: go past it to the disk, through a lane's slot."""
        disk = self._directory.state.disk
        if self._directory.books[pool].id.tier is not Tier.GPU or disk is None or not disk.on:
            return 0, True
        on_disk = self._directory.blocks.slot[disk.index][rows] != NO_SLOT
        alike = on_disk == on_disk[0]
        rows = rows if alike.all() else rows[: int(np.argmin(alike))]
        if on_disk[0]:
            # Clean: the copy below makes this demotion free.
            return self._drop(pool, rows, reason), False
        size = self._directory.state.size_of(int(rows[0]))
        self.make_room(disk.index, size, len(rows))
        begun = self._directory.moves.begin(rows, pool, disk.index, reason, priority, keep_source=False)
        self._send(begun)
        return len(begun), not begun

    def _drop(self, pool: int, rows: Rows, reason: Reason) -> int:
        """Drop these copies now; counted as free when the block has another copy, else as an eviction. The number of slots
        that are free by it: one that a lapsed holder may still look at is not."""
        if not len(rows):
            return 0
        size = self._directory.state.size_of(int(rows[0]))
        others = self._directory.blocks.copies(rows) > 1
        self._moves.dropped(pool, reason, "free", rows[others], size)
        self._moves.dropped(pool, reason, "evicted", rows[~others], size)
        freed = int(self._directory.choice.frees(pool)(rows).sum())
        self._directory.copies.drop(rows, pool, reason)
        return freed

    def drop_clean(self, pool: int, size: int, count: int) -> int:
        """Free up to `count` slots by dropping copies of blocks that lie elsewhere too, as far as these are the coldest:
        how many. Nothing is lost, nothing moves."""
        rows = np.array(self._directory.choice.victims(pool, size, count), np.int64)
        clean = self._drops_free(pool, rows) & (self._directory.blocks.copies(rows) > 1)
        return self._drop(pool, rows if clean.all() else rows[: int(np.argmin(clean))], Reason.PREFETCH)

    def _evict(self, pool: int, size: int, count: int, reason: Reason) -> int:
        victims = np.array(self._directory.choice.victims(pool, size, count), np.int64)
        if len(victims) < count:
            # Another layout's blocks hold the room: pages are pages, whatever the block size.
            pages = self._directory.choice.victims(pool, None, count - len(victims))
            victims = np.concatenate(
                [victims, np.array([r for r in pages if r not in set(victims.tolist())], np.int64)]
            )
        self.evict(pool, victims, reason)
        return len(victims)

    # ------------------------------------------------------------------------------------------------ extents

    def _other_layout_is_colder(self, book: MappedBook, size: int, missing: int) -> bool:
        """Empty another layout's extent, one at a time, when its blocks were used less recently than our own coldest."""
        if any(book.table.slot_bytes_of(extent) != size for extent in book.table.extents_in(ExtentState.EMPTYING)):
            return True
        extent = self._coldest_foreign_extent(book, size)
        own = self._directory.choice.victims(book.index, size, missing)
        if extent is None or not own:
            return False
        last_access = self._directory.blocks.last_access
        _, rows = book.table.slots_in(extent, SlotUse.RESIDENT)
        if len(rows) and last_access[rows].mean() >= last_access[np.array(own)].mean():
            return False
        return self._begin_emptying(book, extent)

    def _empty_an_extent(self, book: MappedBook, size: int) -> bool:
        """Nothing of our own size can go: begin to empty another extent, the cheapest that can be; False: none can."""
        if book.table.extents_in(ExtentState.EMPTYING):
            return True
        tried: set[int] = set()
        while (extent := self._coldest_foreign_extent(book, size, tried)) is not None:
            if self._begin_emptying(book, extent):
                return True
            tried.add(extent)
        return False

    def _coldest_foreign_extent(self, book: MappedBook, size: int, but: Collection[int] = ()) -> int | None:
        """Of the extents carved for other sizes and free of holds: the one with the fewest blocks, then the coldest."""
        best: tuple[float, float, int] | None = None
        for extent in book.table.extents_in(ExtentState.CARVED):
            if extent in but:
                continue
            if book.table.slot_bytes_of(extent) == size or not self._can_be_emptied(book, extent):
                continue
            _, rows = book.table.slots_in(extent, SlotUse.RESIDENT)
            age = float(self._directory.blocks.last_access[rows].mean()) if len(rows) else 0.0
            cost = (len(rows) / max(1, book.table.slots_of(extent)), age, extent)
            best = cost if best is None else min(best, cost)
        return None if best is None else best[2]

    def may_take_from_others(self, book: MappedBook, size: int) -> bool:
        """An extent carved for another size is being emptied, or could be."""
        emptying = book.table.extents_in(ExtentState.EMPTYING)
        return bool(emptying) or self._coldest_foreign_extent(book, size) is not None

    def _can_be_emptied(self, book: MappedBook, extent: int) -> bool:
        slots, rows = book.table.slots_in(extent, SlotUse.RESIDENT)
        if len(rows) != book.table.used_slots(extent):
            return False
        if not book.haunted_slots.keys().isdisjoint(slots.tolist()):
            # A lapsed holder may still look at a slot here: without its block it would go to quarantine.
            return False
        return bool(self._directory.choice.may_go(book.index, None)(rows).all())

    def _begin_emptying(self, book: MappedBook, extent: int) -> bool:
        """False when it cannot be emptied after all: its blocks find no other place, and none can be made."""
        book.table.begin_emptying(extent)
        self.advance_emptying(book)
        return book.table.state_of(extent) is not ExtentState.CARVED

    def advance_emptying(self, book: MappedBook) -> None:
        """Go on emptying extents: relocate, make room for relocating, and spare those that are empty."""
        for extent in book.table.extents_in(ExtentState.EMPTYING):
            _, rows = book.table.slots_in(extent, SlotUse.RESIDENT)
            if book.table.used_slots(extent) == 0:
                self._spare(book, extent)
                continue
            may = self._directory.choice.may_go(book.index, None)(rows)
            moving = self._directory.blocks.busy[rows] > 0
            going = False
            if (may | moving).all():
                reason = self._returning.get((book.index, extent), Reason.RECARVE)
                going = self._clear_out(book, book.table.slot_bytes_of(extent), rows[may], reason)
                going |= bool(moving.any())
            if book.table.used_slots(extent) == 0:
                self._spare(book, extent)
            elif not going or not len(book.table.slots_in(extent, SlotUse.RESIDENT)[0]):
                # Somebody took hold of a block here, or its blocks have nowhere to go: callers are not to wait for it.
                book.table.cancel_emptying(extent)
                self._returning.pop((book.index, extent), None)

    def _clear_out(self, book: MappedBook, size: int, rows: Rows, reason: Reason) -> bool:
        """Relocate `rows` into free slots of other extents; for the rest, victims of their size must go first.

        False when nothing of this is, or comes, under way."""
        lowered = coming = self.coming(book.index, size)
        missing = len(rows) - book.free_slots(size) - coming
        if missing > 0:
            victims = self._directory.choice.victims(book.index, size, missing)
            lowered += sum(self.lower(book.index, victims, reason, Priority.DEMAND))
            blocks = self._directory.blocks
            rows = rows[(blocks.slot[book.index][rows] != NO_SLOT) & (blocks.busy[rows] == 0)]
        if not len(rows) or not book.free_slots(size):
            return lowered > 0
        begun = self._directory.moves.begin(rows, book.index, book.index, reason, Priority.DEMAND, keep_source=False)
        self._send(begun)
        return True

    def _spare(self, book: MappedBook, extent: int) -> None:
        if book.headers is not None:
            book.headers.set_extent(extent, slot_bytes=0, carved=False)
        point("extent.emptied")
        asked = self._returning.pop((book.index, extent), None)
        returned = asked is not None or book.table.excess > 0
        book.table.spare(extent, returned=returned)
        if returned:
            self.give_memory_back(book.index, extent)

    def give_memory_back(self, pool: int, extent: int) -> None:
        """A RETURNED extent's memory goes to the host or device soon."""
        self._releasing[pool] += 1
        self._release(pool, extent)

    def released(self, pool: int) -> None:
        """An extent's memory has gone back to the host or device."""
        self._releasing[pool] -= 1

    # ------------------------------------------------------------------------------------------------ pressure

    def leaving(self, pool: int) -> int:
        """Extents whose memory is on its way back and may still show in a reading of the host's memory."""
        return self._returning_of(pool) + self._releasing[pool]

    def give_back(self, book: MappedBook, nbytes: int, min_bytes: int, leaving: int) -> None:
        """Empty whole extents and return their memory, until `nbytes` are on their way and down to `min_bytes`; `leaving`
        as told before the memory was read, so that no extent is asked for twice."""
        table = book.table
        self.advance_emptying(book)
        carved = len(table.extents_in(ExtentState.CARVED, ExtentState.EMPTYING, ExtentState.CARVING))
        staying = carved - self._returning_of(book.index)
        spare = max(0, staying * table.extent_bytes - min_bytes) // table.extent_bytes
        want = min(spare, -(-nbytes // table.extent_bytes) - leaving)
        self._return_extents(book, want, Reason.PRESSURE)

    def shrink(self, book: MappedBook) -> None:
        """Empty and return what a pool that was made smaller has too much."""
        self._return_extents(book, book.table.excess - self._returning_of(book.index), Reason.RESIZE)

    def _returning_of(self, pool: int) -> int:
        return sum(at == pool for at, _ in self._returning)

    def _return_extents(self, book: MappedBook, count: int, reason: Reason) -> None:
        """Begin to empty so many extents more, the cheapest first, to return their memory."""
        tried: set[int] = set()
        for _ in range(max(0, count)):
            extent = self._coldest_foreign_extent(book, 0, tried)
            if extent is None:
                return
            tried.add(extent)
            self._returning[book.index, extent] = reason
            self._begin_emptying(book, extent)

    def take_back(self, book: MappedBook) -> None:
        """There is no pressure: returned extents may be carved again, as many as the pool's size allows."""
        for extent in book.table.extents_in(ExtentState.RETURNED)[: book.table.spareable]:
            book.table.spare(extent)

    def shrink_disk(self, book: DiskBook) -> None:
        """Evict what is beyond the capacity of a disk tier that was made smaller."""
        for size in list(book.blocks):
            victims = self._directory.choice.victims(book.index, size, book.excess_slots(size))
            self.evict(book.index, np.array(victims, np.int64), Reason.RESIZE)

    def evict(self, pool: int, rows: Rows, reason: Reason) -> None:
        """Drop these copies, counted; the caller has chosen them."""
        for _, some in self._directory.state.by_size(rows):
            self._drop(pool, some, reason)
