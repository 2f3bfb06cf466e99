"""What backs each block of a sequence: columns that take memory where something is mapped, not where something could be."""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from hybridkv.paging.states import Backed
from hybridkv.tiers.replacement import NO_ROW, Rows

Blocks = NDArray[np.int64]

_SHIFT = 7
_LEAF = 1 << _SHIFT
_MASK = _LEAF - 1


class Backing:
    """Two levels: a root of leaf numbers, and leaves of 128 blocks. Leaf 0 is empty for ever, what leads to it is unmapped.

    Not thread-safe: the directory's lock protects it.
    """

    def __init__(self) -> None:
        self._root = np.zeros(1, np.int32)
        self._kinds = np.zeros((1, _LEAF), np.uint8)
        self._rows = np.full((1, _LEAF), NO_ROW, np.int64)
        self._leaves = 1

    def __repr__(self) -> str:
        return f"Backing({len(self.blocks())} blocks, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        return self._root.nbytes + self._kinds.nbytes + self._rows.nbytes

    def kinds(self, blocks: Blocks) -> NDArray[np.uint8]:
        """Backed of each. uint8 [n]."""
        return np.asarray(self._kinds[self._leaf_of(blocks), blocks & _MASK])

    def rows(self, blocks: Blocks) -> Rows:
        """The directory's row of each that is SEALED or WRITABLE, NO_ROW elsewhere. int64 [n]."""
        return np.asarray(self._rows[self._leaf_of(blocks), blocks & _MASK])

    def set(self, blocks: Blocks, kind: Backed, rows: Rows | int = NO_ROW) -> None:
        """These blocks (distinct) are backed so from now on."""
        if not len(blocks):
            return
        self._own_leaves(np.unique(blocks >> _SHIFT))
        at = self._root[blocks >> _SHIFT], blocks & _MASK
        self._kinds[at] = kind
        self._rows[at] = rows

    def blocks(self, kind: Backed | None = None) -> Blocks:
        """Blocks backed so (None: by anything, or LOST), in order."""
        places = np.flatnonzero(self._root)
        kinds = self._kinds[self._root[places]]
        found = kinds != Backed.NOTHING if kind is None else kinds == kind
        leaf, within = np.nonzero(found)
        return np.asarray((places[leaf] << _SHIFT) + within, np.int64)

    def copy(self) -> Self:
        twin = type(self)()
        twin._root, twin._leaves = self._root.copy(), self._leaves
        twin._kinds, twin._rows = self._kinds.copy(), self._rows.copy()
        return twin

    def _leaf_of(self, blocks: Blocks) -> NDArray[np.int32]:
        places = blocks >> _SHIFT
        known = places < len(self._root)
        if known.all():
            return np.asarray(self._root[places])
        return np.where(known, self._root[np.where(known, places, 0)], 0)

    def _own_leaves(self, places: NDArray[np.int64]) -> None:
        last = int(places[-1])
        if last >= len(self._root):
            self._root = np.concatenate([self._root, np.zeros(last + 1 - len(self._root), np.int32)])
        missing = places[self._root[places] == 0]
        if not len(missing):
            return
        if self._leaves + len(missing) > len(self._kinds):
            more = max(len(missing), len(self._kinds) // 2)
            self._kinds = np.concatenate([self._kinds, np.zeros((more, _LEAF), np.uint8)])
            self._rows = np.concatenate([self._rows, np.full((more, _LEAF), NO_ROW, np.int64)])
        self._root[missing] = np.arange(self._leaves, self._leaves + len(missing))
        self._leaves += len(missing)
