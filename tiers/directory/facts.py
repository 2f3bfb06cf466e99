"""What the directory tells a pool's policy about the pool and its rows."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.replacement import Rows


class DirectoryFacts:
    """`PoolFacts` of the directory's pool number `pool`.

    A policy is made before the directory that it is part of: until `state` finds one, the pool has room for one block.
    """

    def __init__(self, pool: int, state: Callable[[], State | None]) -> None:
        self._pool = pool
        self._find_state = state

    def _state(self) -> State:
        state = self._find_state()
        if state is None:
            raise AssertionError("a policy was given rows before there was a directory")
        return state

    def capacity_slots(self) -> int:
        """Where namespaces differ in block size: blocks of the average size."""
        state = self._find_state()
        if state is None or not len(state.sizes):
            return 1
        return max(1, int(state.books[self._pool].capacity_bytes // state.sizes.mean()))

    def identities(self, rows: Rows) -> NDArray[np.uint64]:
        blocks = self._state().blocks
        namespaces = blocks.namespace[rows].tolist()
        digests = (
            xxh3_64_intdigest(key, namespace) for key, namespace in zip(blocks.keys.of(rows), namespaces, strict=True)
        )
        return np.fromiter(digests, np.uint64, len(rows))

    def block_bytes(self, rows: Rows) -> NDArray[np.int64]:
        state = self._state()
        return np.asarray(state.sizes[state.blocks.namespace[rows]])

    def dirty(self, rows: Rows) -> NDArray[np.bool_]:
        state = self._state()
        tier = state.books[self._pool].id.tier
        dirty = np.ones(len(rows), np.bool_)
        for book in state.books:
            if book.id.tier > tier:
                dirty &= state.blocks.slot[book.index][rows] == NO_SLOT
        return dirty

    def history(self, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        blocks = self._state().blocks
        return blocks.accesses[rows].astype(np.float64), blocks.last_access[rows]
