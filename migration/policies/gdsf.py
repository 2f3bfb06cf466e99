"""Greedy-Dual-Size-Frequency: often used and small blocks stay, with aging.

After Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy" (HPL-98-69).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from hybridkv.migration.policies.chunks import distinct_last
from hybridkv.migration.policies.counts import AccessCounts, Counts
from hybridkv.migration.policies.ranks import RankedRows
from hybridkv.tiers.replacement import PoolFacts, Rows

_STEPS_PER_ACCESS: Final = 16  # of one access of a block as large as the first that came
_MAX_WORTH: Final = 1 << 24  # of one row above the pool's age: keeps the spread of ranks bounded


class Gdsf:
    """A `Policy`: rows are ranked by the pool's age when last used + accesses / size. Not thread-safe.

    The pool's age is the rank of what left last, so that rows nobody uses any more are overtaken by newcomers. Where all
    blocks are of one size this is frequency with aging; where layouts share a pool, a hit costs fewer bytes of small ones.
    """

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._ranked = RankedRows()
        self._counts = AccessCounts(facts)
        self._unit_bytes = 0
        self._age = 0

    def inserted(self, rows: Rows, now: float) -> None:
        self._ranked.lists.require_new(rows)
        if len(rows):
            self._unit_bytes = self._unit_bytes or int(self._facts.block_bytes(rows[:1])[0])
            self._rank(rows, np.maximum(1, self._counts.start(rows)))

    def touched(self, rows: Rows, now: float) -> None:
        self._ranked.lists.require_held(rows)
        rows = distinct_last(rows)
        if len(rows):
            self._rank(rows, self._counts.add_one(rows))

    def _rank(self, rows: Rows, accesses: Counts) -> None:
        worth = _STEPS_PER_ACCESS * accesses * self._unit_bytes // np.maximum(1, self._facts.block_bytes(rows))
        self._ranked.place(rows, self._age + np.minimum(worth, _MAX_WORTH))

    def removed(self, rows: Rows) -> None:
        self._ranked.lists.require_held(rows)
        if not len(rows):
            return
        highest = int(self._ranked.ranks_of(rows).max())
        self._ranked.remove(rows)
        # A hot row that goes because it was asked for must not age the pool: nothing that stays ranks below its age.
        lowest = self._ranked.lowest()
        self._age = max(self._age, highest if lowest is None else min(highest, lowest))

    def scan(self) -> Iterator[Rows]:
        return self._ranked.scan()

    def __len__(self) -> int:
        return len(self._ranked)

    def __repr__(self) -> str:
        return f"Gdsf({self._ranked!r}, age={self._age})"

    def check(self) -> list[str]:
        return self._ranked.check()
