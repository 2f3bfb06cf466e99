"""A column of access counts that grows with the row numbers."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.policies.chunks import grown
from hybridkv.tiers.replacement import PoolFacts, Rows

Counts = NDArray[np.int64]

MAX_ACCESSES: Final = (1 << 16) - 1


class AccessCounts:
    """Accesses of each row's block, those before it came into the pool included. 4 bytes a row."""

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._counts = np.zeros(0, np.int32)

    def start(self, rows: Rows) -> Counts:
        """The rows came in: what their blocks' history counts."""
        if len(rows) and (room := int(rows.max()) + 1) > len(self._counts):
            self._counts = grown(self._counts, max(room, 2 * len(self._counts)))
        accesses, _ = self._facts.history(rows)
        self.set(rows, np.minimum(np.rint(accesses), MAX_ACCESSES).astype(np.int64))
        return self.of(rows)

    def add_one(self, rows: Rows) -> Counts:
        """One more access of each of `rows` (a row named twice counts once): the counts after it."""
        self.set(rows, np.minimum(self.of(rows) + 1, MAX_ACCESSES))
        return self.of(rows)

    def of(self, rows: Rows) -> Counts:
        return self._counts[rows].astype(np.int64)

    def set(self, rows: Rows, counts: Counts) -> None:
        self._counts[rows] = counts
