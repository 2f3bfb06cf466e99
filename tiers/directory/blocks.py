"""The table of blocks: columns instead of an object per block, an index from key to row, and chain counts.

No lock (the directory's protects it). A *row* stands for one block from its reservation until it is gone and nothing
holds its number any more; rows are reused.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.columns import Column, add_at
from hybridkv.tiers.directory.key_column import KeyColumn
from hybridkv.tiers.directory.key_hash import KeyHash
from hybridkv.tiers.directory.key_index import KeyIndex
from hybridkv.tiers.directory.packed import PackedKeys
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState, Tier

NO_SLOT = -1
"""In a slot column: no copy in this pool."""

PRIVATE_PARENT = b"private!"
"""On disk the parent of a block that only a sequence knew of: whoever starts next deletes it. (A key is a hash; one that
has these very bytes is as likely as two blocks with one key.)"""

NOWHERE = 3
"""In the `highest` column: no copy, lower than every tier."""

_GROWTH_ROWS = 1024
_LARGEST_GROWTH_ROWS = 16384  # some hundred microseconds


class Checksum(IntEnum):
    """What is known of a block's checksum. NONE: nobody computed it; CLAIMED: the writer did; VERIFIED: we did."""

    NONE = 0
    CLAIMED = 1
    VERIFIED = 2


class BlockTable:
    """Rows of blocks over `pool_tiers` (one entry a pool). Columns may be read and written by the directory only.

    `slot[p][row]` is the copy's place in pool p: a byte offset, on DISK the segment's number. `children_at[t][row]`
    counts children whose highest copy lies in tier t; a reserved block counts at the tier it is written to.
    `waiting[row]` counts acquires that wait for the block; each counts in `holds` too. Counts of holders have 32 bits: a
    caller may name one block in every key of every lease it is allowed, and a count that began anew would free it.
    `mapped[row]` counts the uses of a sealed block by sequences; a `private` one has a key that nobody but they know of.
    `next_child[row]` is the child that came or was used last; it may be gone, and its row another's: hold it against `parent`.
    Columns are replaced by longer ones when rows are allocated. All keys of a namespace have one width.
    """

    state: NDArray[np.uint8]
    namespace: NDArray[np.int16]
    parent: NDArray[np.int32]
    next_child: NDArray[np.int32]
    highest: NDArray[np.uint8]
    children_at: list[NDArray[np.int32]]
    slot: list[NDArray[np.int64]]
    leases: list[NDArray[np.uint32]]
    holds: NDArray[np.uint32]
    waiting: NDArray[np.uint32]
    busy: NDArray[np.uint8]
    mapped: NDArray[np.int32]
    private: NDArray[np.uint8]
    checksum: NDArray[np.uint64]
    checked: NDArray[np.uint8]
    accesses: NDArray[np.float32]
    last_access: NDArray[np.float64]
    window_count: NDArray[np.uint16]
    window_opened_at: NDArray[np.float64]
    sealed_at: NDArray[np.float64]
    moved_at: NDArray[np.float64]
    standing: NDArray[np.uint8]
    standing_until: NDArray[np.float64]
    request_class: NDArray[np.uint16]
    """One more than the class of the request that used the block last, where its reuse is followed; else 0."""
    arrived_at: list[NDArray[np.float64]]

    def __init__(self, pool_tiers: Sequence[Tier], *, seed: int | None = None) -> None:
        """`seed` of the index's hash; None: drawn for this process."""
        self.pool_tiers = list(pool_tiers)
        self._columns = {name: Column(dtype, fill=fill) for name, (dtype, fill) in _COLUMNS.items()}
        self._lists = {
            name: [Column(dtype, fill=fill) for _ in (Tier if name == "children_at" else self.pool_tiers)]
            for name, (dtype, fill) in _COLUMN_LISTS.items()
        }
        self.keys = KeyColumn()
        self.parent_keys = KeyColumn()
        self.orphans: dict[tuple[int, bytes], set[int]] = {}
        self._namespaces = 0
        self._hash = KeyHash(seed)
        self._index = KeyIndex()
        self._free = Column(np.int32)
        self._free_count = 0
        self._grow(_GROWTH_ROWS)  # so that an index of NO_ROW, which is masked afterwards, hits a row

    def __len__(self) -> int:
        return len(self.state) - self._free_count

    # ------------------------------------------------------------------------------------------------ rows

    def add_namespace(self) -> int:
        self._namespaces += 1
        return self._namespaces - 1

    def allocate(self, count: int) -> Rows:
        """`count` unused rows, their columns clean."""
        if self._free_count < count:
            more = max(_GROWTH_ROWS, min(len(self.state) // 4, _LARGEST_GROWTH_ROWS), count - self._free_count)
            self._grow(more)
        left = self._free_count - count
        rows = self._free.values[left : self._free_count][::-1].astype(np.int64)
        self._free_count = left
        return rows

    def _grow(self, count: int) -> None:
        old = len(self._free)
        new = old + count
        for name, column in self._columns.items():
            column.extend(new)
            setattr(self, name, column.values)
        for name, columns in self._lists.items():
            for column in columns:
                column.extend(new)
            setattr(self, name, [column.values for column in columns])
        self.keys.extend(new)
        self.parent_keys.extend(new)
        self._free.extend(new)
        self._set_free(np.arange(new - 1, old - 1, -1))

    def _set_free(self, rows: Rows) -> None:
        self._free.values[self._free_count : self._free_count + len(rows)] = rows
        self._free_count += len(rows)

    def recycle(self, rows: Rows) -> None:
        """The rows are unused from now on."""
        for name, (_, fill) in _COLUMNS.items():
            getattr(self, name)[rows] = fill
        for name, (_, fill) in _COLUMN_LISTS.items():
            for column in getattr(self, name):
                column[rows] = fill
        self.keys.clear(rows)
        self.parent_keys.clear(rows)
        self._set_free(rows)

    # ------------------------------------------------------------------------------------------------ keys

    def find(self, namespace: int, keys: Sequence[bytes] | PackedKeys) -> Rows:
        """Row of each key, NO_ROW where the namespace has none. int64 [n]."""
        packed = PackedKeys.of(keys)
        return self._index.find(
            self._hash.of(packed.words, namespace),
            lambda rows, at: (
                self.keys.equal(rows, packed if len(at) == len(packed) else packed[at])
                & (self.namespace.take(rows) == namespace)
            ),
        )

    def find_one(self, namespace: int, key: bytes) -> int:
        """The same of one key, of any length."""
        if len(key) > self.keys.key_bytes:
            return NO_ROW
        return self._index.find_one(
            self._hash.of_one(key, namespace),
            lambda row: bool(self.namespace[row] == namespace) and self.keys[row] == key,
        )

    def _unfind(self, rows: Rows) -> None:
        self._index.remove(self._hash.of(self.keys.words(rows), self.namespace[rows]), rows)

    # ------------------------------------------------------------------------------------------------ chains

    def insert(
        self,
        namespace: int,
        keys: Sequence[bytes] | PackedKeys,
        rows: Rows,
        parent_keys: Sequence[bytes] | PackedKeys,
        state: BlockState,
        parents: Rows | None = None,
    ) -> None:
        """Make `rows` the blocks of `keys`, which are new and distinct, and join them with their chains: parents, and
        children that came earlier. An empty parent key is none. `parents`: their rows, where the caller knows them."""
        packed, before = PackedKeys.of(keys), PackedKeys.of(parent_keys)
        self.namespace[rows] = namespace
        self.state[rows] = state
        self.keys.put(rows, packed)
        self.parent_keys.put(rows, before)
        self._index.insert(self._hash.of(packed.words, namespace), rows)
        if self.orphans:
            self._adopt_orphans(namespace, packed.as_list(), rows)
        named = np.flatnonzero(before.lengths)
        if len(named):
            found = self.find(namespace, before[named]) if parents is None else parents[named]
            known = found != NO_ROW
            self._adopt(found[known], rows[named[known]])
            self._add_orphans(rows[named[~known]])

    def unindex(self, rows: Rows) -> None:
        """The blocks are findable no more, their children become orphans. The rows stay until they are recycled."""
        if not len(rows):
            return
        self._unfind(rows)
        self._leave_parents(rows)
        self._orphan_children(rows[self.children_from(rows, Tier.DISK) > 0])

    def _adopt(self, parents: Rows, children: Rows) -> None:
        self.parent[children] = parents
        self.next_child[parents] = children
        self._count_children(parents, self.highest[children], 1)

    def _leave_parents(self, rows: Rows) -> None:
        parents = self.parent[rows]
        known = parents != NO_ROW
        self._count_children(parents[known], self.highest[rows[known]], -1)
        self.parent[rows] = NO_ROW
        if self.orphans:
            self._discard_orphans(rows[~known])

    def _count_children(self, parents: NDArray[Any], tiers: NDArray[np.uint8], change: int) -> None:
        """Each parent has one child more, or less, whose highest copy lies in that tier (NOWHERE: in none)."""
        for tier, counts in enumerate(self.children_at):
            there = parents[tiers == tier]
            if len(there):
                add_at(counts, there, change)

    def _orphan_children(self, parents: Rows) -> None:
        """Linear in the table, where there are any."""
        if not len(parents):
            return
        chosen = np.zeros(len(self.state), np.bool_)
        chosen[parents] = True
        children = np.flatnonzero(self.parent != NO_ROW)
        children = children[chosen[self.parent[children]]]
        self.parent[children] = NO_ROW
        self._add_orphans(children)
        for column in self.children_at:
            column[parents] = 0

    # ------------------------------------------------------------------------------------------------ orphans

    def is_orphan(self, rows: Rows) -> NDArray[np.bool_]:
        """Blocks that name a parent which is not here. bool [n]."""
        return np.asarray(self.parent_keys.given(rows) & (self.parent[rows] == NO_ROW))

    def _add_orphans(self, rows: Rows) -> None:
        for row, where in zip(rows.tolist(), self._parent_names(rows), strict=True):
            self.orphans.setdefault(where, set()).add(row)

    def _discard_orphans(self, rows: Rows) -> None:
        rows = rows[self.parent_keys.given(rows)]
        for row, where in zip(rows.tolist(), self._parent_names(rows), strict=True):
            siblings = self.orphans.get(where)
            if siblings is not None:
                siblings.discard(row)
                if not siblings:
                    del self.orphans[where]

    def _parent_names(self, rows: Rows) -> Iterator[tuple[int, bytes]]:
        """Namespace and parent key of each."""
        return zip(self.namespace[rows].tolist(), self.parent_keys.of(rows), strict=True)

    def _adopt_orphans(self, namespace: int, keys: list[bytes], rows: Rows) -> None:
        for row, key in zip(rows.tolist(), keys, strict=True):
            children = self.orphans.pop((namespace, key), None)
            if children:
                self._adopt(np.full(len(children), row), np.fromiter(children, np.int64, len(children)))

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
        self._count_children(parents[known], old[known], -1)
        self._count_children(parents[known], new[known], 1)

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

    # ------------------------------------------------------------------------------------------------ law

    def check(self) -> list[str]:
        """One line for each live row that its key does not lead to, and for whatever else the index leads to."""
        live = np.flatnonzero((self.state == BlockState.SEALED) | (self.state == BlockState.RESERVED))
        found = self._index.check()
        for namespace in np.unique(self.namespace[live]).tolist():
            rows = live[self.namespace[live] == namespace]
            led = self.find(namespace, self.keys.of(rows))
            found += [
                f"law 1: the index leads the key of row {row} to {other}"
                for row, other in zip(rows.tolist(), led.tolist(), strict=True)
                if row != other
            ]
        if len(self._index) != len(live):
            found.append(f"law 5: {len(live)} rows are live, {len(self._index)} are findable")
        return found


_COLUMNS: dict[str, tuple[type[np.generic], int]] = {
    "state": (np.uint8, BlockState.FREE),
    "namespace": (np.int16, 0),
    "parent": (np.int32, NO_ROW),
    "next_child": (np.int32, NO_ROW),
    "highest": (np.uint8, NOWHERE),
    "holds": (np.uint32, 0),
    "waiting": (np.uint32, 0),
    "busy": (np.uint8, 0),
    "mapped": (np.int32, 0),
    "private": (np.uint8, 0),
    "checksum": (np.uint64, 0),
    "checked": (np.uint8, 0),
    "accesses": (np.float32, 0),
    "last_access": (np.float64, 0),
    "window_count": (np.uint16, 0),
    "window_opened_at": (np.float64, 0),
    "sealed_at": (np.float64, 0),
    "moved_at": (np.float64, 0),
    "standing": (np.uint8, 0),
    "standing_until": (np.float64, 0),
    "request_class": (np.uint16, 0),
}
"""Type of each column, and what it holds in unused rows."""

_COLUMN_LISTS: dict[str, tuple[type[np.generic], int]] = {
    "children_at": (np.int32, 0),
    "slot": (np.int64, NO_SLOT),
    "leases": (np.uint32, 0),
    "arrived_at": (np.float64, 0),
}
"""Likewise; `children_at` has a column a tier, the others one a pool."""
