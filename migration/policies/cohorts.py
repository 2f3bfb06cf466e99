"""Cohorts: blocks of one class that were last used at one time, counted together."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.policies.chunks import grown

Numbers = NDArray[np.int64]

_NOBODY: Final = -1
_COARSEN_ABOVE: Final = 1 << 14  # live cohorts above which new ones begin to span some time
_FINEST_SPAN_S: Final = 0.01


class Cohorts:
    """Counts blocks by (class, time of last use). Numbers are reused once a cohort is empty. Not thread-safe.

    A cohort covers one instant while there are few of them; while there are many, a span that doubles with every 16,384
    more, so that their number stays far below that of the blocks however small requests are.
    """

    def __init__(self, classes: int) -> None:
        self._newest = [_NOBODY] * classes
        self._newest_time = [0.0] * classes
        self.time: NDArray[np.float64] = np.zeros(0)
        self.kind: NDArray[np.int64] = np.zeros(0, np.int64)
        self.first_stamp: NDArray[np.int64] = np.zeros(0, np.int64)
        self.count: NDArray[np.int64] = np.zeros(0, np.int64)
        self._free: list[int] = []

    def __len__(self) -> int:
        """Cohorts in use."""
        return len(self.count) - len(self._free)

    def __repr__(self) -> str:
        return f"Cohorts({len(self)}, blocks={int(self.count.sum())})"

    def join(self, kind: int, now: float, blocks: int, first_stamp: int) -> int:
        """`blocks` blocks of class `kind` are used `now`, and get stamps from `first_stamp` on: their cohort's number."""
        number = self._newest[kind]
        if number == _NOBODY or now - self._newest_time[kind] > self._span_s():
            number = self._newest[kind] = self._begin(kind, now, first_stamp)
            self._newest_time[kind] = now
        self.count[number] += blocks
        return number

    def leave(self, numbers: Numbers) -> None:
        """One block leaves the cohort of each entry of `numbers`."""
        if not len(numbers):
            return
        np.subtract.at(self.count, numbers, 1)
        left = self.count[numbers]
        if np.logical_and.reduce(left):
            return
        for number in sorted(set(numbers[left == 0].tolist())):
            kind = self.kind[number]
            if self._newest[kind] == number:
                self._newest[kind] = _NOBODY
            self._free.append(number)

    def live(self) -> Numbers:
        """Numbers of the cohorts in use."""
        return np.flatnonzero(self.count)

    def _span_s(self) -> float:
        doublings = len(self) // _COARSEN_ABOVE
        return _FINEST_SPAN_S * 2.0 ** min(doublings, 30) if doublings else 0.0

    def _begin(self, kind: int, now: float, first_stamp: int) -> int:
        if not self._free:
            old = len(self.count)
            room = max(256, 2 * old)
            for name in ("time", "kind", "first_stamp", "count"):
                setattr(self, name, grown(getattr(self, name), room))
            self._free.extend(range(room - 1, old - 1, -1))
        number = self._free.pop()
        self.time[number], self.kind[number], self.first_stamp[number] = now, kind, first_stamp
        return number
