"""Accesses that a policy was told of and has not worked off yet: several requests' at a time cost little more than one's."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.replacement import Rows

_MOST_REQUESTS: Final = 16
_MOST_ROWS: Final = 1024


class PendingAccesses:
    """Requests in their order, of rows that are all different. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._times: list[float] = []
        self._named: set[int] = set()

    def __len__(self) -> int:
        """Requests."""
        return len(self._times)

    @property
    def full(self) -> bool:
        """Working them off together would gain nothing more."""
        return len(self._times) >= _MOST_REQUESTS or len(self._named) >= _MOST_ROWS

    def names_any(self, rows: set[int]) -> bool:
        """One of them waits already: what became of it has to be worked off before it is used again."""
        return not self._named.isdisjoint(rows)

    def add(self, rows: Rows, named: set[int], now: float) -> None:
        """One request's rows, distinct, none of which waits; `named` are the same."""
        self._rows.append(rows.copy())
        self._named |= named
        self._times.append(now)

    def take(self) -> tuple[Rows, NDArray[np.int64], list[float]]:
        """All rows, in order, with the number of each one's request; and each request's time. Then nothing waits."""
        rows, times = np.concatenate(self._rows), self._times
        requests = np.repeat(np.arange(len(times)), [len(part) for part in self._rows])
        self._rows, self._times, self._named = [], [], set()
        return rows, requests, times
