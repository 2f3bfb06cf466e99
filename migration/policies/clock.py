"""Clock: first in, first out with a second chance for rows that were used again."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.policies.chunks import grown
from hybridkv.migration.policies.counts import AccessCounts
from hybridkv.migration.policies.lists import RowLists
from hybridkv.migration.policies.sweep import passed_over
from hybridkv.tiers.replacement import PoolFacts, Rows


class Clock:
    """A `Policy` with an access bit, and the block's being dirty as the modified bit. Not thread-safe.

    The access bit is set by every use after the one the block came for. The hand takes rows without it, in order of
    arrival, and of those it looks at together clean ones (a lower tier has a copy: their going costs nothing) before
    dirty ones; rows with the bit come after them. A row the hand passed on its way to a victim loses its bit and gets
    another round.
    """

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._lists = RowLists()
        self._counts = AccessCounts(facts)
        self._used: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def inserted(self, rows: Rows, now: float) -> None:
        self._lists.require_new(rows)
        self._lists.append(rows, 0)
        self._counts.start(rows)
        if self._lists.rows_seen > len(self._used):
            self._used = grown(self._used, self._lists.rows_seen)
        self._used[rows] = False

    def touched(self, rows: Rows, now: float) -> None:
        self._lists.require_held(rows)
        again = self._counts.add_one(rows) > 1
        self._used[rows[again]] = True

    def removed(self, rows: Rows) -> None:
        self._lists.require_held(rows)
        passed = passed_over(self._lists, 0, rows)
        passed = passed[self._used[passed]]
        self._used[passed] = False
        self._lists.append(passed, 0)
        self._lists.remove(rows)

    def scan(self) -> Iterator[Rows]:
        for rows, _ in self._lists.scan(0):
            rows = rows[~self._used[rows]]
            if len(rows):
                yield rows[np.argsort(self._facts.dirty(rows), kind="stable")]
        for rows, _ in self._lists.scan(0):
            rows = rows[self._used[rows]]
            if len(rows):
                yield rows

    def __len__(self) -> int:
        return len(self._lists)

    def __repr__(self) -> str:
        return f"Clock({self._lists!r})"

    def check(self) -> list[str]:
        return self._lists.check()
