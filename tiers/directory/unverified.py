"""Copies that a daemon before this one left in the CPU tier: not to be used before they were held against their checksums."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.blocks import NO_SLOT, BlockTable
from hybridkv.tiers.replacement import Rows


class Unverified:
    """Which blocks have such a copy. Under the directory's lock. Without any, a question costs one comparison."""

    def __init__(self, blocks: BlockTable, pools: Sequence[int]) -> None:
        """`pools`: the CPU pool, where there is one."""
        self._blocks = blocks
        self._pools = tuple(pools)
        self._marks: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Rows that came later have none."""
        self.count = 0
        self.ask: Callable[[Rows], None] = lambda _rows: None
        """Called with blocks whose copy somebody waits for: to be verified soon."""

    def add(self, rows: Rows) -> None:
        """Their copies in the CPU pool were taken over."""
        if len(self._marks) < len(self._blocks.state):
            marks = np.zeros(len(self._blocks.state), np.bool_)
            marks[: len(self._marks)] = self._marks
            self._marks = marks
        self._marks[rows] = True
        self.count += len(rows)

    def among(self, rows: Rows, pool: int) -> NDArray[np.bool_]:
        """Whose copy in `pool` nobody has verified yet. bool [n]."""
        if not self.count or pool not in self._pools:
            return np.zeros(len(rows), np.bool_)
        known = rows < len(self._marks)
        if known.all():
            return self._marks[rows]
        found = np.zeros(len(rows), np.bool_)
        found[known] = self._marks[rows[known]]
        return found

    def awaited(self, rows: Rows, pool: int) -> NDArray[np.bool_]:
        """`among`; these are going to be verified soon."""
        found = self.among(rows, pool)
        self.ask(rows[found])
        return found

    def any_in(self, pool: int) -> bool:
        return self.count > 0 and pool in self._pools

    def verified(self, rows: Rows) -> None:
        """Their copies are what was sealed."""
        self._forget(rows)

    def left(self, rows: Rows, pool: int) -> None:
        """Their copies in `pool` go."""
        if self.any_in(pool):
            self._forget(rows)

    def _forget(self, rows: Rows) -> None:
        rows = np.unique(rows[self.among(rows, self._pools[0])]) if self.count else rows[:0]
        self._marks[rows] = False
        self.count -= len(rows)

    def check(self) -> list[str]:
        marked = np.flatnonzero(self._marks)
        found = (
            [] if len(marked) == self.count else [f"law 9: {len(marked)} copies are unverified, {self.count} counted"]
        )
        for pool in self._pools:
            bare = marked[self._blocks.slot[pool][marked] == NO_SLOT]
            found += [f"law 9: row {row} has no copy to verify" for row in bare.tolist()]
        return found
