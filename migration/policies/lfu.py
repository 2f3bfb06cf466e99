"""Least frequently used, where an access counts half after each half-life."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.policies.chunks import distinct_last, grown
from hybridkv.migration.policies.counts import MAX_ACCESSES
from hybridkv.migration.policies.ranks import RankedRows, Ranks
from hybridkv.tiers.replacement import PoolFacts, Rows

Floats = NDArray[np.float64]

_STEPS_PER_DOUBLING: Final = 8  # counts within 9 % of each other rank equal: the older goes first


class Lfu:
    """A `Policy`: the row with the smallest decayed count goes first. Not thread-safe.

    All counts halve at the same pace, so the order of two rows changes only when one is used: rows are ranked by
    log2(count) + time of last use / half-life, which needs no upkeep.
    """

    def __init__(self, facts: PoolFacts, half_life_s: float) -> None:
        self._facts = facts
        self._half_life_s = half_life_s
        self._ranked = RankedRows()
        self._count = np.zeros(0)
        self._used_at = np.zeros(0)

    def inserted(self, rows: Rows, now: float) -> None:
        self._ranked.lists.require_new(rows)
        if not len(rows):
            return
        if (room := self._ranked.lists.rows_seen) > len(self._count):
            self._count, self._used_at = grown(self._count, room), grown(self._used_at, room)
        counts, used_at = self._facts.history(rows)
        self._note(rows, np.minimum(counts, MAX_ACCESSES), np.where(counts > 0, used_at, now))

    def touched(self, rows: Rows, now: float) -> None:
        self._ranked.lists.require_held(rows)
        rows = distinct_last(rows)
        waited = np.maximum(0.0, now - self._used_at[rows])
        self._note(rows, 1 + self._count[rows] * np.exp2(-waited / self._half_life_s), np.full(len(rows), now))

    def _note(self, rows: Rows, counts: Floats, used_at: Floats) -> None:
        self._count[rows] = counts
        self._used_at[rows] = used_at
        self._ranked.place(rows, self._ranks(counts, used_at))

    def _ranks(self, counts: Floats, used_at: Floats) -> Ranks:
        # A block that came without an access (prefetched, say) ranks as one used once, at its arrival.
        halvings = np.log2(np.maximum(counts, 1.0)) + used_at / self._half_life_s
        return np.asarray(np.floor(_STEPS_PER_DOUBLING * halvings), np.int64)

    def removed(self, rows: Rows) -> None:
        self._ranked.lists.require_held(rows)
        self._ranked.remove(rows)

    def scan(self) -> Iterator[Rows]:
        return self._ranked.scan()

    def __len__(self) -> int:
        return len(self._ranked)

    def __repr__(self) -> str:
        return f"Lfu({self._ranked!r}, half_life_s={self._half_life_s:g})"

    def check(self) -> list[str]:
        return self._ranked.check()
