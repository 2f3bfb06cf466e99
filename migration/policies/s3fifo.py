"""S3-FIFO: a small queue for newcomers, a main queue for what proved itself, and ghosts of the newcomers that left.

After Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from hybridkv.migration.policies.counts import AccessCounts, Counts
from hybridkv.migration.policies.ghosts import Ghosts
from hybridkv.migration.policies.lists import RowLists
from hybridkv.migration.policies.sweep import passed_over
from hybridkv.tiers.replacement import PoolFacts, Rows

_SMALL: Final = 0
_MAIN: Final = 1
_SMALL_SHARE: Final = 0.1
_MAX_CHANCES: Final = 3
_PROVED_ABOVE: Final = 1  # uses after the one the block came for; more and it leaves the small queue for the main one


class S3Fifo:
    """A `Policy`. A newcomer joins the small queue (a tenth of the pool), or the main one if it is a ghost.

    While the small queue is over its share its head goes, or moves to the main queue if it was used at least twice since
    it came; else the main queue's head goes, or has another round for each of up to 3 uses. Ghosts are as many as the main
    queue has room for. Not thread-safe.
    """

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._lists = RowLists(2)
        self._ghosts = Ghosts(self._ghost_limit())
        self._counts = AccessCounts(facts)  # of uses since a row joined its queue, the one it came for included

    def _small_slots(self) -> int:
        return max(1, int(_SMALL_SHARE * self._facts.capacity_slots()))

    def _ghost_limit(self) -> int:
        return max(1, self._facts.capacity_slots() - self._small_slots())

    def inserted(self, rows: Rows, now: float) -> None:
        self._lists.require_new(rows)
        self._counts.start(rows)
        known, _ = self._ghosts.take(self._facts.identities(rows))
        self._counts.set(rows[known], np.zeros(int(known.sum()), np.int64))
        self._lists.append(rows[~known], _SMALL)
        self._lists.append(rows[known], _MAIN)

    def touched(self, rows: Rows, now: float) -> None:
        self._lists.require_held(rows)
        self._counts.add_one(rows)

    def removed(self, rows: Rows) -> None:
        self._lists.require_held(rows)
        proved = passed_over(self._lists, _SMALL, rows)
        proved = proved[self._chances(proved) > _PROVED_ABOVE]
        another_round = passed_over(self._lists, _MAIN, rows)
        another_round = another_round[self._chances(another_round) > 0]
        from_small = rows[self._lists.list_of(rows) == _SMALL]
        self._counts.set(
            another_round, self._chances(another_round)
        )  # one fewer than uses counted: one round is used up
        self._counts.set(proved, np.ones(len(proved), np.int64))
        self._ghosts.resize(self._ghost_limit())
        self._ghosts.push(self._facts.identities(from_small), np.zeros(len(from_small), np.int64))
        self._lists.remove(rows)
        self._lists.append(proved, _MAIN)
        self._lists.append(another_round, _MAIN)

    def _chances(self, rows: Rows) -> Counts:
        """Uses after the one the block came for, at most 3."""
        return np.clip(self._counts.of(rows) - 1, 0, _MAX_CHANCES)

    def scan(self) -> Iterator[Rows]:
        over = max(0, self._lists.length(_SMALL) - self._small_slots())
        proved: list[Rows] = []
        for rows in self._lists.first(_SMALL, over):
            chances = self._chances(rows)
            proved.append(rows[chances > _PROVED_ABOVE])
            yield rows[chances <= _PROVED_ABOVE]
        for round_ in range(_MAX_CHANCES + 1):
            for rows, _ in self._lists.scan(_MAIN):
                yield rows[self._chances(rows) == round_]
        yield from proved
        yield from self._lists.after(_SMALL, over)

    def __len__(self) -> int:
        return len(self._lists)

    def __repr__(self) -> str:
        return f"S3Fifo(small={self._lists.length(_SMALL)}, main={self._lists.length(_MAIN)}, {self._ghosts!r})"

    def check(self) -> list[str]:
        return [*self._lists.check(), *self._ghosts.check()]
