"""Rows ordered by a number that changes only when they are used: lists by rank, made and dropped as ranks come and go."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.policies.lists import RowLists
from hybridkv.tiers.replacement import Rows

Ranks = NDArray[np.int64]


class RankedRows:
    """Rows by rank, lowest first; of one rank, the least recently placed first. Not thread-safe.

    As many lists as there were ever ranks in use at a time; a rank nobody has any more gives its list back.
    """

    def __init__(self) -> None:
        self.lists = RowLists(1)
        self._list_of: dict[int, int] = {}
        self._rank_of: Ranks = np.zeros(1, np.int64)
        self._free = [0]

    def __len__(self) -> int:
        return len(self.lists)

    def __repr__(self) -> str:
        return f"RankedRows(rows={len(self)}, ranks={len(self._list_of)})"

    def place(self, rows: Rows, ranks: Ranks) -> None:
        """`rows` (distinct), new or held, get these ranks and are the most recent of them."""
        if not len(rows):
            return
        before = self.lists.list_of(rows[self.lists.held(rows)])
        for rank in np.unique(ranks).tolist():
            self.lists.append(rows[ranks == rank], self._list(rank))
        self._give_back(before)

    def remove(self, rows: Rows) -> None:
        before = self.lists.list_of(rows)
        self.lists.remove(rows)
        self._give_back(before)

    def ranks_of(self, rows: Rows) -> Ranks:
        """Rank of each held row."""
        return self._rank_of[self.lists.list_of(rows)]

    def lowest(self) -> int | None:
        """The lowest rank in use; None when there are no rows."""
        return min(self._list_of, default=None)

    def scan(self) -> Iterator[Rows]:
        for rank in sorted(self._list_of):
            for rows, _ in self.lists.scan(self._list_of[rank]):
                yield rows

    def _list(self, rank: int) -> int:
        number = self._list_of.get(rank)
        if number is None:
            if not self._free:
                more = max(8, len(self._rank_of))
                self._free = list(range(len(self._rank_of) + more - 1, len(self._rank_of) - 1, -1))
                self.lists.add_lists(more)
                self._rank_of = np.append(self._rank_of, np.zeros(more, np.int64))
            number = self._list_of[rank] = self._free.pop()
            self._rank_of[number] = rank
        return number

    def _give_back(self, lists: NDArray[np.int32]) -> None:
        for number in np.unique(lists).tolist():
            if not self.lists.length(number):
                self._free.append(number)
                del self._list_of[int(self._rank_of[number])]

    def check(self) -> list[str]:
        found = self.lists.check()
        empty = [rank for rank, number in self._list_of.items() if not self.lists.length(number)]
        if empty:
            found.append(f"ranks: nobody has {empty}")
        if len(self._list_of) + len(self._free) != len(self._rank_of):
            found.append(f"ranks: {len(self._list_of)} lists in use and {len(self._free)} free of {len(self._rank_of)}")
        return found
