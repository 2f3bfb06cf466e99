"""Blocks that were brought up on a guess: what became of each, and how far ahead guesses may reach.

The reach is learned per namespace: a guess that was used makes it one block longer, one that left unused makes it one
shorter. So it grows while more than half of the guesses are used. It never falls below one block, or nothing would be
learned any more.
"""

from collections import Counter

from hybridkv.tiers.directory.blocks import BlockTable
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState

GUESSES = 1 << 16
"""Guesses remembered at a time; of more the oldest are forgotten, uncounted."""

FIRST_REACH = 4

# Plain numbers: looking an enum member up costs as much as the operation it is for.
_SEALED = int(BlockState.SEALED)


class Speculation:
    """Called under the lock. `max_blocks` 0: no guesses; it may be changed at any time."""

    def __init__(self, blocks: BlockTable, counters: Counter[str]) -> None:
        self.max_blocks = 0
        self._blocks = blocks
        self._counters = counters
        self._guesses: dict[int, int] = {}
        """Row → the pool it was brought to."""
        self._reach: dict[int, int] = {}

    def __len__(self) -> int:
        """Guesses that are neither used nor gone."""
        return len(self._guesses)

    def reach(self, space: int) -> int:
        """Blocks to guess ahead in this namespace."""
        return min(self.max_blocks, self._reach.get(space, FIRST_REACH))

    def followers(self, row: int, count: int) -> list[int]:
        """Up to `count` sealed blocks that followed `row` when it was last used, in order."""
        blocks, found = self._blocks, list[int]()
        while len(found) < count:
            after = int(blocks.next_child[row])
            if after == NO_ROW or blocks.parent[after] != row or blocks.state[after] != _SEALED:
                break  # no child yet, or it is gone and its row is another's
            found.append(after)
            row = after
        return found

    def brought(self, rows: list[int], pool: int) -> None:
        """These were brought to the pool, or are on their way, because they may be wanted next."""
        self._counters["chain_prefetched"] += len(rows)
        self._guesses.update(dict.fromkeys(rows, pool))
        while len(self._guesses) > GUESSES:
            del self._guesses[next(iter(self._guesses))]

    def used(self, rows: Rows) -> None:
        """Somebody asked for these."""
        if not self._guesses:
            return
        for row in rows.tolist():
            if self._guesses.pop(row, None) is not None:
                self._learn(row, 1)
                self._counters["chain_prefetch_used"] += 1

    def left(self, rows: Rows, pool: int) -> None:
        """Copies of these left the pool. Called while the rows still hold their blocks."""
        if not self._guesses:
            return
        for row in rows.tolist():
            if self._guesses.get(row) == pool:
                del self._guesses[row]
                self._learn(row, -1)
                self._counters["chain_prefetch_wasted"] += 1

    def forget(self, rows: Rows) -> None:
        """These are about to stand for other blocks; guesses about them never arrived."""
        for row in rows.tolist() if self._guesses else ():
            self._guesses.pop(row, None)

    def _learn(self, row: int, change: int) -> None:
        space = int(self._blocks.namespace[row])
        reach = min(max(1, self.max_blocks), self._reach.get(space, FIRST_REACH) + change)
        self._reach[space] = max(1, reach)

    def reaches(self) -> dict[int, int]:
        """Namespace → blocks guessed ahead, where something was learned."""
        return {space: self.reach(space) for space in self._reach}

    def check(self) -> list[str]:
        """Guesses whose block is gone are forgotten."""
        gone = [row for row in self._guesses if self._blocks.state[row] == BlockState.FREE]
        return [f"speculation: row {row} is free" for row in gone]
