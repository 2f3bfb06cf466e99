"""The table of blocks: columns instead of an object per block, an index from key to row, and chain counts.

No lock (the directory's protects it). A *row* stands for one block from its reservation until it is gone and nothing
holds its number any more; rows are reused.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState, Tier

NO_SLOT = -1
"""In a slot column: no copy in this pool."""

NOWHERE = 3
"""In the `highest` column: no copy, lower than every tier."""

_GROWTH_ROWS = 1024


class Checksum(IntEnum):
    """What is known of a block's checksum. NONE: nobody computed it; CLAIMED: the writer did; VERIFIED: we did."""

    NONE = 0
    CLAIMED = 1
    VERIFIED = 2


class BlockTable:
    """Rows of blocks over `pool_tiers` (one entry a pool). Columns may be read and written by the directory only.

    `slot[p][row]` is the copy's place in pool p: a byte offset, on DISK the segment's number. `children_at[t][row]`
    counts children whose highest copy lies in tier t; a reserved block counts at the tier it is written to.
    `next_child[row]` is the child that came or was used last; it may be gone, and its row another's: hold it against `parent`.
    """

    def __init__(self, pool_tiers: Sequence[Tier]) -> None:
        self.pool_tiers = list(pool_tiers)
        pools = len(self.pool_tiers)
        self.state = np.zeros(0, np.uint8)
        self.namespace = np.zeros(0, np.int16)
        self.parent = np.zeros(0, np.int64)
        self.next_child = np.zeros(0, np.int64)
        self.highest = np.zeros(0, np.uint8)
        self.children_at = [np.zeros(0, np.int32) for _ in Tier]
        self.slot = [np.zeros(0, np.int64) for _ in range(pools)]
        self.leases = [np.zeros(0, np.uint16) for _ in range(pools)]
        self.holds = np.zeros(0, np.uint16)
        self.busy = np.zeros(0, np.uint8)
        self.checksum = np.zeros(0, np.uint64)
        self.checked = np.zeros(0, np.uint8)
        self.accesses = np.zeros(0, np.float32)
        self.last_access = np.zeros(0, np.float64)
        self.window_count = np.zeros(0, np.uint16)
        self.window_opened_at = np.zeros(0, np.float64)
        self.sealed_at = np.zeros(0, np.float64)
        self.moved_at = np.zeros(0, np.float64)
        self.standing = np.zeros(0, np.uint8)
        self.standing_until = np.zeros(0, np.float64)
        self.arrived_at = [np.zeros(0, np.float64) for _ in range(pools)]
        self.keys: list[bytes] = []
        self.parent_keys: list[bytes] = []
        self.index: list[dict[bytes, int]] = []
        self.orphans: dict[tuple[int, bytes], set[int]] = {}
        self._free: list[int] = []
        self._grow(_GROWTH_ROWS)  # so that an index of NO_ROW, which is masked afterwards, hits a row

    def __len__(self) -> int:
        return len(self.state) - len(self._free)

    # ------------------------------------------------------------------------------------------------ rows

    def add_namespace(self) -> int:
        self.index.append({})
        return len(self.index) - 1

    def find(self, namespace: int, keys: Sequence[bytes]) -> Rows:
        """Row of each key, NO_ROW where the namespace has none. int64 [n]."""
        get = self.index[namespace].get
        return np.fromiter((get(key, NO_ROW) for key in keys), np.int64, len(keys))

    def allocate(self, count: int) -> Rows:
        """`count` unused rows, their columns clean."""
        if len(self._free) < count:
            self._grow(max(_GROWTH_ROWS, len(self.state) // 2, count - len(self._free)))
        rows = np.array(self._free[len(self._free) - count :][::-1], np.int64)
        del self._free[len(self._free) - count :]
        return rows

    def _grow(self, count: int) -> None:
        old = len(self.state)
        new = old + count
        for name, fill in _FILLS.items():
            setattr(self, name, _grown(getattr(self, name), new, fill))
        for name, fill in _LIST_FILLS.items():
            setattr(self, name, [_grown(column, new, fill) for column in getattr(self, name)])
        self.keys.extend([b""] * count)
        self.parent_keys.extend([b""] * count)
        self._free.extend(range(new - 1, old - 1, -1))

    def recycle(self, rows: Rows) -> None:
        """The rows are unused from now on."""
        for name, fill in _FILLS.items():
            getattr(self, name)[rows] = fill
        for name, fill in _LIST_FILLS.items():
            for column in getattr(self, name):
                column[rows] = fill
        unused = rows.tolist()
        for row in unused:
            self.keys[row] = self.parent_keys[row] = b""
        self._free.extend(unused)

    # ------------------------------------------------------------------------------------------------ chains

    def insert(
        self, namespace: int, keys: Sequence[bytes], rows: Rows, parent_keys: Sequence[bytes], state: BlockState
    ) -> None:
        """Make `rows` the blocks of `keys` and join them with their chains: parents, and children that came earlier."""
        index = self.index[namespace]
        self.namespace[rows] = namespace
        self.state[rows] = state
        for row, key, parent_key in zip(rows.tolist(), keys, parent_keys, strict=True):
            index[key] = row
            self.keys[row] = key
            self.parent_keys[row] = parent_key
            if parent_key:
                parent = index.get(parent_key, NO_ROW)
                if parent != NO_ROW:
                    self._adopt(parent, row)
                else:
                    self.orphans.setdefault((namespace, parent_key), set()).add(row)
            for child in self.orphans.pop((namespace, key), ()) if self.orphans else ():
                self._adopt(row, child)

    def unindex(self, rows: Rows) -> None:
        """The blocks are findable no more, their children become orphans. The rows stay until they are recycled."""
        self._orphan_children(rows[self.children_from(rows, Tier.DISK) > 0])
        for row in rows.tolist():
            index, key = self.index[self.namespace[row]], self.keys[row]
            if index.get(key) == row:
                del index[key]
            self._leave_parent(row)

    def _orphan_children(self, parents: Rows) -> None:
        if not len(parents):
            return
        for child in np.flatnonzero(np.isin(self.parent, parents)).tolist():
            parent = int(self.parent[child])
            self.orphans.setdefault((int(self.namespace[child]), self.keys[parent]), set()).add(child)
            self.parent[child] = NO_ROW
        for column in self.children_at:
            column[parents] = 0

    def _adopt(self, parent: int, child: int) -> None:
        self.parent[child] = parent
        self.next_child[parent] = child
        if self.highest[child] != NOWHERE:
            self.children_at[self.highest[child]][parent] += 1

    def _leave_parent(self, row: int) -> None:
        parent = int(self.parent[row])
        if parent != NO_ROW:
            if self.highest[row] != NOWHERE:
                self.children_at[self.highest[row]][parent] -= 1
            self.parent[row] = NO_ROW
        elif self.parent_keys[row]:
            where = (int(self.namespace[row]), self.parent_keys[row])
            siblings = self.orphans.get(where)
            if siblings is not None:
                siblings.discard(row)
                if not siblings:
                    del self.orphans[where]

    def is_orphan(self, rows: Rows) -> NDArray[np.bool_]:
        """Blocks that name a parent which is not here. bool [n]."""
        named = np.fromiter((bool(self.parent_keys[row]) for row in rows.tolist()), np.bool_, len(rows))
        return np.asarray(named & (self.parent[rows] == NO_ROW))

    # ------------------------------------------------------------------------------------------------ tiers

    def highest_of(self, rows: Rows) -> NDArray[np.uint8]:
        """Highest tier with a copy, computed from the slots; NOWHERE where there is none."""
        found = np.full(len(rows), NOWHERE, np.uint8)
        for tier, column in zip(self.pool_tiers, self.slot, strict=True):
            np.minimum(found, np.where(column[rows] != NO_SLOT, tier, NOWHERE).astype(np.uint8), out=found)
        return found

    def set_highest(self, rows: Rows, tiers: NDArray[np.uint8] | int) -> None:
        """Write the `highest` column and carry the change into the parents' counts."""
        new = np.broadcast_to(np.asarray(tiers, np.uint8), rows.shape)
        old = self.highest[rows]
        changed = old != new
        if not changed.any():
            return
        rows, old, new = rows[changed], old[changed], new[changed]
        self.highest[rows] = new
        parents = self.parent[rows]
        known = parents != NO_ROW
        for tier, counts in enumerate(self.children_at):
            np.subtract.at(counts, parents[known & (old == tier)], 1)
            np.add.at(counts, parents[known & (new == tier)], 1)

    def children_from(self, rows: Rows, tier: Tier) -> NDArray[np.int64]:
        """Number of children whose highest copy lies in `tier` or above. int64 [n]."""
        counts = np.zeros(len(rows), np.int64)
        for above in range(tier + 1):
            counts += self.children_at[above][rows]
        return counts

    def copies(self, rows: Rows) -> NDArray[np.int64]:
        """Number of copies of each block. int64 [n]."""
        counts = np.zeros(len(rows), np.int64)
        for column in self.slot:
            counts += column[rows] != NO_SLOT
        return counts


_FILLS: dict[str, int] = {
    "state": BlockState.FREE,
    "namespace": 0,
    "parent": NO_ROW,
    "next_child": NO_ROW,
    "highest": NOWHERE,
    "holds": 0,
    "busy": 0,
    "checksum": 0,
    "checked": 0,
    "accesses": 0,
    "last_access": 0,
    "window_count": 0,
    "window_opened_at": 0,
    "sealed_at": 0,
    "moved_at": 0,
    "standing": 0,
    "standing_until": 0,
}
_LIST_FILLS: dict[str, int] = {"children_at": 0, "slot": NO_SLOT, "leases": 0, "arrived_at": 0}


def _grown(column: NDArray[np.generic], length: int, fill: int) -> NDArray[np.generic]:
    grown = np.full(length, fill, column.dtype)
    grown[: len(column)] = column
    return grown
