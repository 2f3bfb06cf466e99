"""ARC: recency and frequency, with the share of each learned from ghosts.

After Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from hybridkv.migration.policies.chunks import distinct_last
from hybridkv.migration.policies.counts import AccessCounts
from hybridkv.migration.policies.ghosts import Ghosts
from hybridkv.migration.policies.lists import RowLists
from hybridkv.tiers.replacement import PoolFacts, Rows

_RECENT: Final = 0
_FREQUENT: Final = 1


class Arc:
    """A `Policy`: rows used once and rows used more often, each least recently used first.

    The recent list gives while it is longer than its target, then the frequent one. A block that comes back and is a
    ghost of the recent list raises the target, one of the frequent list lowers it, and both join the frequent list. The
    recent list and its ghosts are at most one pool's worth, all lists and ghosts two. Not thread-safe.
    """

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._lists = RowLists(2)
        capacity = facts.capacity_slots()
        self._ghosts = (Ghosts(capacity), Ghosts(2 * capacity))
        self._counts = AccessCounts(facts)
        self._target = 0.0

    @property
    def recent_target(self) -> float:
        """Rows the recent list may have before it gives first."""
        return self._target

    def inserted(self, rows: Rows, now: float) -> None:
        self._lists.require_new(rows)
        if not len(rows):
            return
        identities = self._facts.identities(rows)
        sizes = [max(1, len(ghosts)) for ghosts in self._ghosts]
        was_recent, _ = self._ghosts[_RECENT].take(identities)
        was_frequent, _ = self._ghosts[_FREQUENT].take(identities)
        self._learn(int(was_recent.sum()), int(was_frequent.sum()), sizes[_FREQUENT] / sizes[_RECENT])
        accesses = self._counts.start(rows)
        known = was_recent | was_frequent
        self._counts.set(rows[known], np.maximum(accesses[known], 1))
        frequent = known | (accesses > 1)
        self._lists.append(rows[~frequent], _RECENT)
        self._lists.append(rows[frequent], _FREQUENT)

    def _learn(self, recent_hits: int, frequent_hits: int, frequent_to_recent: float) -> None:
        raised = self._target + recent_hits * max(1.0, frequent_to_recent)
        self._target = raised - frequent_hits * max(1.0, 1.0 / frequent_to_recent)
        self._target = min(max(0.0, self._target), float(self._facts.capacity_slots()))

    def touched(self, rows: Rows, now: float) -> None:
        self._lists.require_held(rows)
        rows = distinct_last(rows)
        frequent = self._counts.add_one(rows) > 1
        self._lists.append(rows[~frequent], _RECENT)
        self._lists.append(rows[frequent], _FREQUENT)

    def removed(self, rows: Rows) -> None:
        self._lists.require_held(rows)
        if not len(rows):
            return
        lists = self._lists.list_of(rows)
        identities = self._facts.identities(rows)
        self._lists.remove(rows)
        capacity = self._facts.capacity_slots()
        for number, limit in ((_RECENT, capacity), (_FREQUENT, 2 * capacity)):
            self._ghosts[number].resize(limit)
            left = identities[lists == number]
            self._ghosts[number].push(left, np.zeros(len(left), np.int64))
        self._ghosts[_RECENT].trim(capacity - self._lists.length(_RECENT))
        self._ghosts[_FREQUENT].trim(2 * capacity - len(self._lists) - len(self._ghosts[_RECENT]))

    def scan(self) -> Iterator[Rows]:
        over = self._lists.length(_RECENT) - int(self._target)
        yield from self._lists.first(_RECENT, over)
        for rows, _ in self._lists.scan(_FREQUENT):
            yield rows
        yield from self._lists.after(_RECENT, over)

    def __len__(self) -> int:
        return len(self._lists)

    def __repr__(self) -> str:
        recent, frequent = self._lists.length(_RECENT), self._lists.length(_FREQUENT)
        return f"Arc(recent={recent}, frequent={frequent}, target={self._target:.0f})"

    def check(self) -> list[str]:
        found = [*self._lists.check(), *self._ghosts[0].check(), *self._ghosts[1].check()]
        if len(self._ghosts[0]) + len(self._ghosts[1]) > 3 * self._facts.capacity_slots():
            found.append(f"arc: {self._ghosts} remember too much")
        return found
