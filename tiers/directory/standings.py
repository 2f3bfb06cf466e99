"""Standings: blocks that callers said are cold, or are to be kept, listed per pool in the order in which they were told.

A standing ends with the block's next access, or when its time is over. It changes the order of victims, nothing else.
"""

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.blocks import NO_SLOT, BlockTable
from hybridkv.tiers.replacement import Rows

_FIRST_WINDOW = 64
_LAST_WINDOW = 4096


class Standing(IntEnum):
    """COLD: among the first victims. KEPT: among the last."""

    NONE = 0
    COLD = 1
    KEPT = 2


# Plain numbers: looking an enum member up costs as much as the operation it is for.
_NONE = int(Standing.NONE)


class Standings:
    """Called under the lock. Each list holds rows of its pool only, so none is longer than the pool has blocks."""

    def __init__(self, blocks: BlockTable, pools: int) -> None:
        self._blocks = blocks
        self._lists: dict[Standing, list[dict[int, None]]] = {
            standing: [{} for _ in range(pools)] for standing in (Standing.COLD, Standing.KEPT)
        }

    def set(self, rows: Rows, standing: Standing, until: float) -> None:
        """`rows` have this standing from now on, until then; COLD ones go in this order."""
        self.clear(rows)
        self._blocks.standing[rows] = standing
        self._blocks.standing_until[rows] = until
        for pool, listed in enumerate(self._lists[standing]):
            listed.update(dict.fromkeys(rows[self._blocks.slot[pool][rows] != NO_SLOT].tolist()))

    def clear(self, rows: Rows) -> None:
        """The standing of these rows, where they have one, is over."""
        rows = rows[self._blocks.standing[rows] != _NONE]
        if not len(rows):
            return
        for lists in self._lists.values():
            for listed in lists:
                for row in rows.tolist():
                    listed.pop(row, None)
        self._blocks.standing[rows] = _NONE

    def placed(self, rows: Rows, pool: int) -> None:
        """Copies of `rows` came into the pool."""
        for standing, lists in self._lists.items():
            lists[pool].update(dict.fromkeys(rows[self._blocks.standing[rows] == standing].tolist()))

    def dropped(self, rows: Rows, pool: int) -> None:
        """Copies of `rows` left the pool."""
        for row in rows[self._blocks.standing[rows] != _NONE].tolist():
            for lists in self._lists.values():
                lists[pool].pop(row, None)

    def any_in(self, pool: int) -> bool:
        return any(lists[pool] for lists in self._lists.values())

    def count(self, pool: int, standing: Standing) -> int:
        """Rows listed in the pool; those whose time is over count until they are used or gone."""
        return len(self._lists[standing][pool])

    def at(self, rows: Rows, now: float) -> NDArray[np.uint8]:
        """Standing of each row at this time. uint8 [n]."""
        blocks = self._blocks
        return np.where(blocks.standing_until[rows] > now, blocks.standing[rows], _NONE).astype(np.uint8)

    def listed(self, pool: int, standing: Standing, now: float) -> Iterator[Rows]:
        """The pool's rows of this standing at this time, oldest first, in arrays that begin small. Like a policy's scan."""
        rows, size = iter(self._lists[standing][pool]), _FIRST_WINDOW
        while len(window := np.fromiter(islice(rows, size), np.int64)):
            yield window[self.at(window, now) == standing]
            size = min(2 * size, _LAST_WINDOW)

    def check(self) -> list[str]:
        """One line for each list that does not say what the columns say."""
        found = []
        for standing, lists in self._lists.items():
            for pool, listed in enumerate(lists):
                here = (self._blocks.standing == standing) & (self._blocks.slot[pool] != NO_SLOT)
                if set(listed) != set(np.flatnonzero(here).tolist()):
                    found.append(f"pool {pool}: the list of {standing.name} blocks is not what their standing says")
        return found
