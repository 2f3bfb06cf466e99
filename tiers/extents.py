"""The extents of one pool and the slots they are carved into: who uses which slot, and exact sums in bytes.

Bookkeeping only: no bytes, no lock (the directory's lock protects it), no I/O. A pool of `capacity_bytes` is
`count` extents of `extent_bytes`; what does not fill an extent is remainder. An extent is carved into slots of one
size, each a multiple of that size away from its allocation's base, so that a kernel's table index is offset / size.

Not done here: choosing what to empty (migration/reclaim.py), committing memory (the pools).
"""

from collections.abc import Callable
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.errors import InternalError
from hybridkv.tiers.extent import Extent, ExtentState, SlotUse
from hybridkv.tiers.extent_runs import ExtentRuns
from hybridkv.tiers.pools import MIN_BLOCK_BYTES, extent_bytes_for
from hybridkv.tiers.replacement import NO_ROW

__all__ = ["ExtentState", "ExtentTable", "SlotUse"]

_free_count = attrgetter("free_count")


class ExtentTable(ExtentRuns):
    """Extents and slots of one pool. Slots are named by their offset in bytes from the pool's start (int64)."""

    def __init__(
        self, capacity_bytes: int, *, extent_bytes: int | None = None, base_of: Callable[[int], int] | None = None
    ) -> None:
        """`base_of(extent)` is the offset at which the extent's allocation starts; 0 when the pool is one allocation."""
        self.capacity_bytes = self.built_bytes = capacity_bytes
        self.extent_bytes = extent_bytes or extent_bytes_for(capacity_bytes)
        self.count = capacity_bytes // self.extent_bytes
        self.slots_per_extent = self.extent_bytes // MIN_BLOCK_BYTES
        self._base_of = base_of or (lambda _extent: 0)
        self._extents = [Extent() for _ in range(self.count)]
        self._first = np.zeros(self.count, np.int64)
        self._size = np.ones(self.count, np.int64)
        """Offset of the first slot and size of the slots of each carved extent, as columns."""
        self._by_size: dict[int, list[int]] = {}
        self.bytes_by_use = [0] * len(SlotUse)
        self.allowed = self.count
        """Extents that may be in use; fewer than there are once the pool was made smaller."""

    def __repr__(self) -> str:
        carved = sum(e.state is ExtentState.CARVED for e in self._extents)
        return f"ExtentTable({carved}/{self.count} extents carved, {self.used_bytes}/{self.capacity_bytes} bytes used)"

    # ------------------------------------------------------------------------------------------------ geometry

    def _geometry(self, extent: int, size: int) -> tuple[int, int]:
        """Offset of the first slot and the number of slots when `extent` is carved into slots of `size` bytes."""
        start, base = extent * self.extent_bytes, self._base_of(extent)
        first = base + -(-(start - base) // size) * size
        return first, max(0, (start + self.extent_bytes - first) // size)

    def geometry(self, extent: int, size: int) -> tuple[int, int]:
        """What `extent` gives when carved into slots of `size` bytes: offset of the first, and how many."""
        return self._geometry(extent, size)

    def capacity_slots(self, size: int) -> int:
        """Slots of `size` bytes the pool could hold; of a pool that was made smaller, at least."""
        slots = sorted(self._geometry(extent, size)[1] for extent in range(self.count))
        return sum(slots[: self.allowed])

    def header_indices(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of each slot's header: extent × slots_per_extent + number of the slot in its extent."""
        extents = self.extents_of(offsets)
        return extents * self.slots_per_extent + (offsets - self._first[extents]) // self._size[extents]

    # ------------------------------------------------------------------------------------------------ extents

    def state_of(self, extent: int) -> ExtentState:
        return self._extents[extent].state

    def slot_bytes_of(self, extent: int) -> int:
        """Slot size of a carved extent; 0 when it is not carved."""
        return self._extents[extent].size

    def extents_in(self, *states: ExtentState) -> list[int]:
        return [i for i, e in enumerate(self._extents) if e.state in states]

    def begin_carving(self, size: int) -> int | None:
        """Choose a free extent for slots of `size` bytes and mark it; None when there is none. Then `carve` or `spare`."""
        for number, extent in enumerate(self._extents):
            if extent.state is ExtentState.FREE and self._geometry(number, size)[1] > 0:
                extent.state = ExtentState.CARVING
                extent.size = size
                return number
        return None

    def carving_slots(self, size: int) -> int:
        """Slots of `size` bytes that extents being carved now will give."""
        carving = (i for i, e in enumerate(self._extents) if e.state is ExtentState.CARVING and e.size == size)
        return sum(self._geometry(i, size)[1] for i in carving)

    def uncarved_slots(self, size: int) -> int:
        """Slots of `size` bytes that the extents give which are not carved for anything."""
        return sum(self._geometry(i, size)[1] for i in self.extents_in(ExtentState.FREE))

    def adopt(self, number: int, size: int) -> None:
        """A FREE extent's memory is there, carved into slots of `size` bytes by a daemon before this one."""
        extent = self._extents[number]
        extent.state, extent.size = ExtentState.CARVING, size
        self.carve(number)

    def carve(self, number: int) -> None:
        """The memory of a CARVING extent is there: make its slots."""
        extent = self._extents[number]
        size = extent.size
        extent.first, slots = self._geometry(number, size)
        self._first[number], self._size[number] = extent.first, size
        extent.free = np.arange(slots - 1, -1, -1, dtype=np.int32)
        extent.free_count = slots
        extent.use = np.zeros(slots, np.uint8)
        extent.owner = np.full(slots, NO_ROW, np.int64)
        extent.state = ExtentState.CARVED
        self._by_size.setdefault(size, []).append(number)

    def begin_emptying(self, number: int) -> None:
        """Give out no more slots of a carved extent."""
        self._extents[number].state = ExtentState.EMPTYING

    def cancel_emptying(self, number: int) -> None:
        self._extents[number].state = ExtentState.CARVED

    def spare(self, number: int, *, returned: bool = False) -> None:
        """An empty, or not yet carved, extent becomes FREE (or RETURNED, when its memory was given back)."""
        extent = self._extents[number]
        if extent.slots:
            if extent.free_count != extent.slots:
                raise AssertionError(f"extent {number} is not empty")
            self._by_size[extent.size].remove(number)
        extent.clear()
        extent.state = ExtentState.RETURNED if returned else ExtentState.FREE

    def slots_of(self, number: int) -> int:
        """Slots the extent is carved into."""
        return self._extents[number].slots

    def used_slots(self, number: int) -> int:
        extent = self._extents[number]
        return extent.slots - extent.free_count

    def slots_in(self, number: int, use: SlotUse) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets and owning rows of the extent's slots in that use."""
        extent = self._extents[number]
        index = np.flatnonzero(extent.use == use)
        return extent.first + index * extent.size, extent.owner[index]

    # ------------------------------------------------------------------------------------------------ size

    def resize(self, capacity_bytes: int) -> list[int]:
        """The pool has `capacity_bytes` from now on, at most what it was made with: extents whose memory may go back at
        once. `excess` says how many more are to be emptied; larger again, RETURNED ones may be spared."""
        if not self.extent_bytes <= capacity_bytes <= self.built_bytes:
            raise AssertionError(f"{capacity_bytes} bytes are not in {self.extent_bytes}..{self.built_bytes}")
        self.capacity_bytes = capacity_bytes
        self.allowed = capacity_bytes // self.extent_bytes
        leaving = self.extents_in(ExtentState.FREE)[::-1][: self.excess]
        for number in leaving:
            self.spare(number, returned=True)
        return leaving

    @property
    def excess(self) -> int:
        """Extents that are still to be emptied and returned before the pool is as small as it was told to be."""
        return max(0, len(self._extents) - self._returned - self.allowed)

    @property
    def spareable(self) -> int:
        """RETURNED extents that may come back."""
        return max(0, self.allowed - (len(self._extents) - self._returned))

    @property
    def _returned(self) -> int:
        return sum(e.state is ExtentState.RETURNED for e in self._extents)

    # ------------------------------------------------------------------------------------------------ slots

    def free_slots(self, size: int) -> int:
        """Slots of `size` bytes that `take` would give now."""
        return sum(map(_free_count, self._giving(size)))

    def _giving(self, size: int) -> list[Extent]:
        """Extents that have free slots of that size for whoever asks."""
        extents, carved = self._extents, ExtentState.CARVED
        numbers = self._by_size.get(size, ())
        return [e for e in map(extents.__getitem__, numbers) if e.free_count and e.state is carved]

    def take(self, size: int, rows: NDArray[np.int64], use: SlotUse) -> NDArray[np.int64]:
        """Take a slot for each of `rows`, or for the first of them that fit: offsets, int64 [<= len(rows)].

        The fullest extent gives first, so that others empty by themselves.
        """
        taken: list[NDArray[np.int64]] = []
        done = 0
        for extent in sorted(self._giving(size), key=_free_count):
            n = min(extent.free_count, len(rows) - done)
            if n == 0:
                break
            index = extent.free[extent.free_count - n : extent.free_count][::-1].astype(np.int64)
            extent.free_count -= n
            extent.use[index] = use
            extent.owner[index] = rows[done : done + n]
            taken.append(extent.first + index * size)
            done += n
        self.bytes_by_use[use] += done * size
        return np.concatenate(taken) if taken else np.empty(0, np.int64)

    def set_use(self, offsets: NDArray[np.int64], use: SlotUse, rows: NDArray[np.int64] | None = None) -> None:
        """Change what taken slots are used for; `rows` become their owners (None: no row owns them)."""
        for extent, index, where in self._grouped(offsets):
            self._uncount(extent, index)
            extent.use[index] = use
            extent.owner[index] = NO_ROW if rows is None else rows[where]
            self.bytes_by_use[use] += len(index) * extent.size

    def give(self, offsets: NDArray[np.int64]) -> None:
        """Free taken slots. A slot named twice is a bug of the caller's: nothing is freed then."""
        if len(set(offsets.tolist())) != len(offsets):
            raise InternalError("slots: one is given back twice in one call")
        for extent, index, _ in self._grouped(offsets):
            self._uncount(extent, index)
            extent.use[index] = SlotUse.FREE
            extent.owner[index] = NO_ROW
            extent.free[extent.free_count : extent.free_count + len(index)] = index
            extent.free_count += len(index)

    def _uncount(self, extent: Extent, index: NDArray[np.int64]) -> None:
        counts = np.bincount(extent.use[index], minlength=len(self.bytes_by_use)).tolist()
        if counts[SlotUse.FREE]:
            raise AssertionError("a free slot was given back or re-used without being taken")
        for use, count in enumerate(counts):
            self.bytes_by_use[use] -= count * extent.size

    def sizes_of(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Size of each slot, in bytes."""
        return self._size[self.extents_of(offsets)]

    def use_of(self, offset: int) -> SlotUse:
        extent = self._extents[offset // self.extent_bytes]
        return SlotUse(int(extent.use[(offset - extent.first) // extent.size]))

    def owner_of(self, offset: int) -> int:
        extent = self._extents[offset // self.extent_bytes]
        return int(extent.owner[(offset - extent.first) // extent.size])

    # ------------------------------------------------------------------------------------------------ sums

    @property
    def used_bytes(self) -> int:
        """Bytes in use, lane slots not counted (they lie outside the watermarks)."""
        return sum(self.bytes_by_use) - self.bytes_by_use[SlotUse.LANE]

    @property
    def remainder_bytes(self) -> int:
        """Bytes no slot can use as the extents are carved now, and the tail behind the last extent."""
        carved = sum(self.extent_bytes - e.slots * e.size for e in self._extents if e.slots)
        return carved + self.capacity_bytes - self.allowed * self.extent_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes in free slots and in extents that are not carved, as far as the pool's size allows them."""
        withheld = min(self._returned, self.count - self.allowed) * self.extent_bytes
        return sum(e.free_count * e.size if e.slots else self.extent_bytes for e in self._extents) - withheld

    @property
    def excess_bytes(self) -> int:
        """What the pool still has beyond its capacity, since it was made smaller."""
        return self.excess * self.extent_bytes

    def check(self) -> list[str]:
        """Findings against law 2 within this table."""
        found: list[str] = []
        sums = np.zeros(len(SlotUse), np.int64)
        for number, extent in enumerate(self._extents):
            if not extent.slots:
                continue
            counts = np.bincount(extent.use, minlength=len(SlotUse))
            sums += counts * extent.size
            free = extent.free[: extent.free_count]
            if np.bincount(free, minlength=1).max() > 1 or extent.use[free].any():
                found.append(f"law 2: extent {number}: the free stack names a slot twice or a slot in use")
            if counts[SlotUse.FREE] != extent.free_count:
                found.append(f"law 2: extent {number}: a free slot is not on the free stack")
        used = self.bytes_by_use
        if sums[1:].tolist() != used[1:]:
            found.append(f"law 2: bytes by use {used} are counted, {sums.tolist()} are there")
        total = self.free_bytes + sum(used[1:]) + self.remainder_bytes
        if total != self.capacity_bytes + self.excess_bytes:
            over = f" and {self.excess_bytes} are to go" if self.excess else ""
            found.append(f"law 2: free + used + remainder = {total} bytes, capacity is {self.capacity_bytes}{over}")
        return found
