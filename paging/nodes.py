"""Nodes of page tables: rows of equally many words in one array that grows, each counted by the tables that share it."""

import numpy as np
import numpy.typing as npt

from hybridkv.paging.entries import Words
from hybridkv.tiers.directory.columns import add_at

Ids = npt.NDArray[np.int64]

NO_NODE = 0
"""The node that is all zeros for ever: what leads to it is unmapped."""


class NodeStore:
    """Nodes of `width` words; a node's number times `width` is where it starts in `words`.

    Not thread-safe: one lock for all tables that share a store. `words` is replaced when it grows.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.words: Words = np.zeros(width, np.int64)
        self._refs = np.ones(1, np.int32)
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes held, whether used or not."""
        return self.words.nbytes + self._refs.nbytes

    @property
    def used(self) -> int:
        """Nodes that some table leads to."""
        return len(self._refs) - 1 - len(self._free)

    def new(self, count: int) -> Ids:
        """Numbers of `count` nodes of zeros, each with one user."""
        missing = count - len(self._free)
        if missing > 0:
            self._grow(missing)
        kept = len(self._free) - count
        ids = np.array(self._free[kept:], np.int64)[::-1]
        del self._free[kept:]
        self.rows()[ids] = 0
        self._refs[ids] = 1
        return ids

    def copies(self, ids: Ids) -> Ids:
        """New nodes with the words of `ids`, which lose a user each."""
        made = self.new(len(ids))
        rows = self.rows()
        rows[made] = rows[ids]
        self.release(ids)
        return made

    def share(self, ids: Ids) -> None:
        """One more user each (a node named twice has two)."""
        add_at(self._refs, ids[ids != NO_NODE], 1)

    def release(self, ids: Ids) -> None:
        """One user less each; nodes that nobody uses are free."""
        ids = ids[ids != NO_NODE]
        add_at(self._refs, ids, -1)
        gone = np.unique(ids[self._refs[ids] == 0])
        self._free.extend(gone.tolist())

    def shared(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of them have other users, too."""
        return np.asarray(self._refs[ids] > 1)

    def rows(self) -> npt.NDArray[np.int64]:
        """All nodes, [nodes, width]: a view."""
        return self.words.reshape(-1, self.width)

    def _grow(self, missing: int) -> None:
        had = len(self._refs)
        more = max(missing, had // 2)
        self.words = np.concatenate([self.words, np.zeros(more * self.width, np.int64)])
        self._refs = np.concatenate([self._refs, np.zeros(more, np.int32)])
        self._free.extend(range(had + more - 1, had - 1, -1))

    def __repr__(self) -> str:
        return f"NodeStore({self.used} nodes of {self.width} words)"
