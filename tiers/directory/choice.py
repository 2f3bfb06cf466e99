"""Which copies may go from a pool, coldest first: the policy's order, the holds, and law 7."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.directory.standings import Standing
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState, Priority, Tier
from hybridkv.tiers.victims import choose_victims

_FIRST_WINDOW = 256
_LAST_WINDOW = 8192


class Choice:
    """Picks victims. Changes nothing. Called under the lock."""

    def __init__(self, state: State) -> None:
        self._state = state

    def victims(
        self,
        pool: int,
        size: int | None,
        want: int,
        behind: Priority | None = None,
        within: Callable[[Rows], NDArray[np.bool_]] | None = None,
    ) -> list[int]:
        """Rows whose copy in `pool` may go now, in the order they should, until `want` slots are free; of one block size,
        or of any.

        `behind`: what goes will queue behind the moves of this priority that are on their way down from the pool, so
        these block no parent. What is picked then does not depend on how far they have come.
        `within`: only such rows. A block and its ancestors must be alike in it.
        """
        may_go, frees = self.may_go(pool, size), self.frees(pool)
        if within is not None:
            may_go = _both(may_go, within)
        blocking = self.blocking_children(pool, behind)
        picked = choose_victims(self.scan(pool), may_go, blocking, self.parents_above(pool), want, frees)
        self._witness(pool, picked, behind)
        return picked

    def frees(self, pool: int) -> Callable[[Rows], NDArray[np.int64]]:
        """int64[n]: slots that are free once the copy is gone: 1, or 0 where a lapsed holder may still look at it."""
        book, column = self._state.books[pool], self._state.blocks.slot[pool]
        haunted = book.haunted_slots if isinstance(book, MappedBook) else {}
        if not haunted:
            return lambda rows: np.ones(len(rows), np.int64)
        return lambda rows: np.fromiter((slot not in haunted for slot in column[rows].tolist()), np.int64, len(rows))

    def scan(self, pool: int) -> Iterator[Rows]:
        """The pool's rows: copies of blocks that lie higher, then orphans, then those that hints made cold, then the
        policy's order, then those that hints keep."""
        standings, now = self._state.standings, self._state.clock.now()
        yield from self._first_victims(pool)
        for window in standings.listed(pool, Standing.COLD, now):
            yield self._without_first(pool, window)
        for window in self._state.books[pool].policy.scan():
            rest = self._without_first(pool, window)
            yield rest[standings.at(rest, now) == Standing.NONE] if standings.any_in(pool) else rest
        for window in standings.listed(pool, Standing.KEPT, now):
            yield self._without_first(pool, window)

    def _first_victims(self, pool: int) -> Iterator[Rows]:
        """Copies of blocks that lie higher, then the other orphans, in windows: there may be many."""
        slots, shadowed = self._state.blocks.slot[pool], self._state.shadowed[pool]
        yield from _windows(shadowed)
        orphans = (row for siblings in self._state.blocks.orphans.values() for row in sorted(siblings))
        for window in _windows(row for row in orphans if row not in shadowed):
            yield window[slots[window] != NO_SLOT]

    def _without_first(self, pool: int, window: Rows) -> Rows:
        """Those that `_first_victims` does not name."""
        blocks = self._state.blocks
        first = blocks.is_orphan(window)
        if self._state.books[pool].id.tier is Tier.CPU:
            first |= blocks.highest[window] < Tier.CPU
        return window[~first]

    def may_go(self, pool: int, size: int | None) -> Callable[[Rows], NDArray[np.bool_]]:
        """bool[n]: sealed here, not leased here, in no request and no move, of the block size asked for, and none whose
        move failed just now."""
        blocks, sizes = self._state.blocks, self._state.sizes
        setbacks, now = self._state.setbacks, self._state.clock.now()

        def judge(rows: Rows) -> NDArray[np.bool_]:
            may = (
                (blocks.state[rows] == BlockState.SEALED)
                & (blocks.slot[pool][rows] != NO_SLOT)
                & (blocks.leases[pool][rows] == 0)
                & (blocks.holds[rows] == 0)
                & (blocks.busy[rows] == 0)
            )
            if len(setbacks):
                may &= ~setbacks.resting(rows, now)
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

    def blocking_children(self, pool: int, behind: Priority | None = None) -> Callable[[Rows], NDArray[np.int64]]:
        """int[n]: children that must leave this tier before the copy may (law 7); `behind`: see `victims`."""
        tier, blocks = self._state.books[pool].id.tier, self._state.blocks
        leaving = self._leaving_children(pool, behind)

        def count(rows: Rows) -> NDArray[np.int64]:
            children = blocks.children_from(rows, tier)
            if leaving:
                children -= np.fromiter((leaving.get(row, 0) for row in rows.tolist()), np.int64, len(rows))
            return np.where(self._is_highest(pool, rows), children, 0)

        return count

    def _leaving_children(self, pool: int, priority: Priority | None) -> dict[int, int]:
        """Parent → children that lie no higher than here, and are on their way to the tier below."""
        if priority is None or not self._state.transfers:
            return {}
        rows = np.array([transfer.row for transfer in self._state.transfers.values()
                         if transfer.source == pool != transfer.target and transfer.demotes
                         and transfer.priority is priority], np.int64)  # fmt: skip
        rows = rows[self._is_highest(pool, rows)]
        parents, counts = np.unique(self._state.blocks.parent[rows], return_counts=True)
        return dict(zip(parents.tolist(), counts.tolist(), strict=True))

    def parents_above(self, pool: int) -> Callable[[Rows], NDArray[np.int64]]:
        """int64[n]: the parent that one child less would block, NO_ROW where the block stays as high without this copy."""
        return lambda rows: np.where(self._is_highest(pool, rows), self._state.blocks.parent[rows], NO_ROW)

    def _witness(self, pool: int, picked: list[int], behind: Priority | None = None) -> None:
        """Hold the pick against laws 4 and 7 by other means than the ones that made it; `check` reports what is found."""
        blocks, broken, name = self._state.blocks, self._state.broken, self._state.books[pool].id
        rows = np.array(picked, np.int64)
        held = (blocks.leases[pool][rows] > 0) | (blocks.holds[rows] > 0) | (blocks.busy[rows] > 0)
        broken += [f"law 4: row {row} was picked from {name} while held" for row in rows[held].tolist()]
        highest = self._is_highest(pool, rows)
        going = _children_before(rows, np.where(highest, blocks.parent[rows], NO_ROW))
        staying = self.blocking_children(pool, behind)(rows) > going
        broken += [f"law 7: row {row} was picked from {name} before its children" for row in rows[staying].tolist()]


def _both(
    one: Callable[[Rows], NDArray[np.bool_]], other: Callable[[Rows], NDArray[np.bool_]]
) -> Callable[[Rows], NDArray[np.bool_]]:
    return lambda rows: one(rows) & other(rows)


def _children_before(rows: Rows, parents: Rows) -> NDArray[np.int64]:
    """How many rows before each of `rows` have it as their parent. int64 [n]."""
    if not len(rows):
        return np.zeros(0, np.int64)
    order = np.argsort(rows)
    place = order[np.minimum(np.searchsorted(rows[order], parents), len(rows) - 1)]
    before = (rows[place] == parents) & (np.arange(len(rows)) < place)
    return np.bincount(place[before], minlength=len(rows))


def _windows(rows: Iterable[int]) -> Iterator[Rows]:
    """The rows in arrays that begin small."""
    left, size = iter(rows), _FIRST_WINDOW
    while len(window := np.fromiter(islice(left, size), np.int64)):
        yield window
        size = min(2 * size, _LAST_WINDOW)
