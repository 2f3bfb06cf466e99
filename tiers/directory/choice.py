"""Which copies may go from a pool, coldest first: the policy's order, the holds, and law 7."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.directory.standings import Standing
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState, Tier
from hybridkv.tiers.victims import choose_victims


class Choice:
    """Picks victims. Changes nothing. Called under the lock."""

    def __init__(self, state: State) -> None:
        self._state = state

    def victims(self, pool: int, size: int | None, want: int) -> list[int]:
        """Rows whose copy in `pool` may go now, in the order they should, until `want` slots are free; of one block size,
        or of any."""
        may_go, frees = self.may_go(pool, size), self.frees(pool)
        picked = choose_victims(
            self.scan(pool), may_go, self.blocking_children(pool), self.parents_above(pool), want, frees
        )
        self._witness(pool, picked)
        return picked

    def frees(self, pool: int) -> Callable[[Rows], NDArray[np.int64]]:
        """int64[n]: slots that are free once the copy is gone: 1, or 0 where a lapsed holder may still look at it."""
        book, column = self._state.books[pool], self._state.blocks.slot[pool]
        haunted = book.haunted_slots if isinstance(book, MappedBook) else {}
        return lambda rows: np.fromiter((slot not in haunted for slot in column[rows].tolist()), np.int64, len(rows))

    def scan(self, pool: int) -> Iterator[Rows]:
        """The pool's rows: copies of blocks that lie higher, then orphans, then those that hints made cold, then the
        policy's order, then those that hints keep."""
        first, standings, now = self._first_victims(pool), self._state.standings, self._state.clock.now()
        if len(first):
            yield first
        for window in standings.listed(pool, Standing.COLD, now):
            yield _without(window, first)
        for window in self._state.books[pool].policy.scan():
            rest = _without(window, first)
            yield rest[standings.at(rest, now) == Standing.NONE] if standings.any_in(pool) else rest
        for window in standings.listed(pool, Standing.KEPT, now):
            yield _without(window, first)

    def _first_victims(self, pool: int) -> Rows:
        state = self._state
        shadowed = state.shadowed[pool] if state.books[pool].id.tier is Tier.CPU else {}
        rows = dict.fromkeys(shadowed)
        for orphans in state.blocks.orphans.values():
            rows.update(dict.fromkeys(sorted(orphans)))
        array = np.fromiter(rows, np.int64, len(rows))
        here: Rows = array[state.blocks.slot[pool][array] != NO_SLOT]
        return here

    def may_go(self, pool: int, size: int | None) -> Callable[[Rows], NDArray[np.bool_]]:
        """bool[n]: sealed here, not leased here, in no request and no move, and of the block size asked for."""
        blocks, sizes = self._state.blocks, self._state.sizes

        def judge(rows: Rows) -> NDArray[np.bool_]:
            may = (
                (blocks.state[rows] == BlockState.SEALED)
                & (blocks.slot[pool][rows] != NO_SLOT)
                & (blocks.leases[pool][rows] == 0)
                & (blocks.holds[rows] == 0)
                & (blocks.busy[rows] == 0)
            )
            return np.asarray(may if size is None else may & (sizes[blocks.namespace[rows]] == size))

        return judge

    def _is_highest(self, pool: int, rows: Rows) -> NDArray[np.bool_]:
        """This copy is the only one in the block's highest tier."""
        blocks, tier = self._state.blocks, self._state.books[pool].id.tier
        alone = blocks.highest[rows] == tier
        for other in self._state.pools_in(tier):
            if other != pool:
                alone &= blocks.slot[other][rows] == NO_SLOT
        return np.asarray(alone)

    def blocking_children(self, pool: int) -> Callable[[Rows], NDArray[np.int64]]:
        """int[n]: children that must leave this tier before the copy may (law 7)."""
        tier = self._state.books[pool].id.tier
        return lambda rows: np.where(self._is_highest(pool, rows), self._state.blocks.children_from(rows, tier), 0)

    def parents_above(self, pool: int) -> Callable[[Rows], NDArray[np.int64]]:
        """int64[n]: the parent that one child less would block, NO_ROW where the block stays as high without this copy."""
        return lambda rows: np.where(self._is_highest(pool, rows), self._state.blocks.parent[rows], NO_ROW)

    def _witness(self, pool: int, picked: list[int]) -> None:
        """Hold the pick against laws 4 and 7 by other means than the ones that made it; `check` reports what is found."""
        blocks, tier = self._state.blocks, self._state.books[pool].id.tier
        going = set(picked)
        for row in picked:
            if blocks.leases[pool][row] or blocks.holds[row] or blocks.busy[row]:
                self._state.broken.append(f"law 4: row {row} was picked from {self._state.books[pool].id} while held")
        rows = np.array(picked, np.int64)
        blocking = np.where(self._is_highest(pool, rows), blocks.children_from(rows, tier), 0)
        for row in rows[blocking > 0].tolist():
            children = np.flatnonzero((blocks.parent == row) & (blocks.highest <= tier))
            if not going.issuperset(children.tolist()):
                self._state.broken.append(
                    f"law 7: row {row} was picked from {self._state.books[pool].id} before its children"
                )


def _without(window: Rows, first: Rows) -> Rows:
    return window[~np.isin(window, first)] if len(first) else window
