"""Adjacent slots of a pool's extents: where there are runs of them, which to clear for one, and taking slots by their place.

For pages of several blocks only: linear in the slots of the extents looked at. Bookkeeping, no lock, as `ExtentTable`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.errors import InternalError
from hybridkv.tiers.extent import Extent, ExtentState, SlotUse, runs_in


class ExtentRuns(ABC):
    """The part of an `ExtentTable` that knows about neighbours."""

    extent_bytes: int
    count: int
    bytes_by_use: list[int]
    _extents: list[Extent]
    _by_size: dict[int, list[int]]

    @abstractmethod
    def take(self, size: int, rows: NDArray[np.int64], use: SlotUse) -> NDArray[np.int64]:
        """See `ExtentTable.take`."""

    def extents_of(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Extent of each slot."""
        return offsets // self.extent_bytes

    def free_runs(self, size: int, length: int, count: int) -> NDArray[np.int64]:
        """First slots of up to `count` runs of `length` adjacent free slots, from the fullest extents; they do not overlap
        and none crosses an extent's end. Linear in the slots of the extents looked at: for pages of several blocks only."""
        carved = [i for i in self._by_size.get(size, ()) if self._extents[i].state is ExtentState.CARVED]
        carved.sort(key=lambda i: self._extents[i].free_count)
        found: list[NDArray[np.int64]] = []
        missing = count
        for number in carved:
            extent = self._extents[number]
            if missing <= 0:
                break
            if extent.free_count >= length:
                starts = runs_in(extent.use == SlotUse.FREE, length)[:missing]
                found.append(extent.first + starts * size)
                missing -= len(starts)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def window_to_clear(
        self, size: int, length: int, may_move: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Of all runs of `length` slots the one with the fewest blocks, all of which may move: those blocks' slots and rows.
        None when something else lies in every run."""
        best: tuple[int, Extent, int] | None = None
        for number in self._by_size.get(size, ()):
            extent = self._extents[number]
            if extent.state is ExtentState.CARVED and extent.slots >= length:
                start, cost = extent.cheapest_window(length, may_move)
                if cost is not None and (best is None or cost < best[0]):
                    best = cost, extent, start
        if best is None:
            return None
        _, extent, start = best
        index = start + np.flatnonzero(extent.use[start : start + length] != SlotUse.FREE)
        return extent.first + index * size, extent.owner[index]

    def free_offsets(self, size: int, count: int, outside: tuple[int, int]) -> NDArray[np.int64]:
        """Up to `count` free slots that do not lie between the two offsets, from the fullest extents."""
        carved = [self._extents[i] for i in self._by_size.get(size, ())]
        carved = [extent for extent in carved if extent.state is ExtentState.CARVED and extent.free_count]
        carved.sort(key=lambda extent: extent.free_count)
        free = [extent.first + extent.free[: extent.free_count].astype(np.int64) * size for extent in carved]
        offsets = np.concatenate(free) if free else np.empty(0, np.int64)
        return offsets[(offsets < outside[0]) | (offsets >= outside[1])][:count]

    def are_free(self, offsets: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
        """Whether a slot of `size` bytes that may be given out lies at each offset, and is free. bool [n]."""
        inside = (offsets >= 0) & (offsets < self.count * self.extent_bytes)
        free = np.zeros(len(offsets), np.bool_)
        for number in np.unique(self.extents_of(offsets[inside])).tolist():
            extent = self._extents[number]
            if extent.state is not ExtentState.CARVED or extent.size != size:
                continue
            where = np.flatnonzero(inside & (self.extents_of(offsets) == number))
            index, rest = np.divmod(offsets[where] - extent.first, size)
            fits = (rest == 0) & (index >= 0) & (index < extent.slots)
            free[where[fits]] = extent.use[index[fits]] == SlotUse.FREE
        return free

    def take_at(self, offsets: NDArray[np.int64], rows: NDArray[np.int64], use: SlotUse) -> None:
        """Take these very slots, which are free and distinct."""
        for extent, index, where in self._grouped(offsets):
            if extent.use[index].any():
                raise InternalError("slots: one that is in use was asked for by its place")
            extent.take(index, rows[where], use)
            self.bytes_by_use[use] += len(index) * extent.size

    def take_in_runs(self, size: int, rows: NDArray[np.int64], use: SlotUse, length: int) -> NDArray[np.int64]:
        """`take`, with adjacent slots for every `length` rows, as far as there are such runs; then wherever there is room."""
        starts = self.free_runs(size, length, len(rows) // length)
        offsets = (starts[:, None] + np.arange(length) * size).ravel()
        self.take_at(offsets, rows[: len(offsets)], use)
        return np.concatenate([offsets, self.take(size, rows[len(offsets) :], use)])

    def _grouped(self, offsets: NDArray[np.int64]) -> list[tuple[Extent, NDArray[np.int64], NDArray[np.int64]]]:
        """Per extent: its slots' numbers in it, and their positions in `offsets`."""
        extents = self.extents_of(offsets)
        if len(extents) and extents.min() == extents.max():
            extent = self._extents[extents[0]]
            return [(extent, (offsets - extent.first) // extent.size, np.arange(len(offsets)))]
        groups = []
        order = np.argsort(extents, kind="stable")
        for where in np.split(order, np.flatnonzero(np.diff(extents[order])) + 1) if len(order) else ():
            extent = self._extents[extents[where[0]]]
            groups.append((extent, (offsets[where] - extent.first) // extent.size, where))
        return groups
