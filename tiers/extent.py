"""One extent of a pool: what state it is in, and what each of its slots is used for. No lock, no bytes."""

from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class ExtentState(IntEnum):
    """FREE: no slots, no memory needed. CARVING: memory is being committed. CARVED: in use. EMPTYING: gives out no
    slots until it is empty. RETURNED: its memory is given back to the host or device for now."""

    FREE = 0
    CARVING = 1
    CARVED = 2
    EMPTYING = 3
    RETURNED = 4


class SlotUse(IntEnum):
    """What a slot is used for; the terms of the conservation law."""

    FREE = 0
    RESERVED = 1
    RESIDENT = 2
    INCOMING = 3
    QUARANTINED = 4
    LANE = 5


class Extent:
    """One carved extent: a stack of free slot numbers, the use and the owning directory row of every slot."""

    __slots__ = ("first", "free", "free_count", "owner", "size", "state", "use")

    def __init__(self) -> None:
        self.state = ExtentState.FREE
        self.clear()

    def clear(self) -> None:
        self.first = 0
        self.size = 0
        self.free: NDArray[np.int32] = np.empty(0, np.int32)
        self.free_count = 0
        self.use: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.owner: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def slots(self) -> int:
        return len(self.use)

    def cheapest_window(
        self, length: int, may_move: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    ) -> tuple[int, int | None]:
        """The run of `length` slots with the fewest blocks, none of which has to stay: its first slot, and how many. None:
        there is no such run. A run of free slots is none to clear."""
        resident = self.use == SlotUse.RESIDENT
        stays = (self.use != SlotUse.FREE) & ~resident
        stays[resident] = ~may_move(self.owner[resident])
        blocks, fixed = _sums(resident, length), _sums(stays, length)
        blocks[(fixed > 0) | (blocks == 0)] = length + 1
        start = int(np.argmin(blocks))
        return start, int(blocks[start]) if blocks[start] < length else None

    def take(self, index: NDArray[np.int64], rows: NDArray[np.int64], use: SlotUse) -> None:
        """These very slots, which are free, are used from now on."""
        taken = np.zeros(self.slots, np.bool_)
        taken[index] = True
        stack = self.free[: self.free_count]
        left = stack[~taken[stack]]
        self.free[: len(left)] = left
        self.free_count = len(left)
        self.use[index] = use
        self.owner[index] = rows


def runs_in(free: NDArray[np.bool_], length: int) -> NDArray[np.int64]:
    """Starts of the most runs of `length` true items that do not overlap: each stretch is cut from its beginning."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], free, [False]]).astype(np.int8)))
    begins, counts = edges[::2], (edges[1::2] - edges[::2]) // length
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(begins, counts) + within * length)


def _sums(marks: NDArray[np.bool_], length: int) -> NDArray[np.int64]:
    """How many of every `length` neighbours are marked. int64 [n - length + 1]."""
    total = np.concatenate([[0], np.cumsum(marks)])
    return np.asarray(total[length:] - total[:-length])
