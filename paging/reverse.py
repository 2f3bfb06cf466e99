"""The reverse map: which sequences map a block, and where; so that an eviction never looks through page tables."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.replacement import Rows

_BLOCK_BITS = 31
_BLOCK_MASK = (1 << _BLOCK_BITS) - 1


class ReverseMap:
    """Row → uses, each a (sequence, block) in one number. Most blocks have one user: only more of them cost a set.

    Not thread-safe: the directory's lock protects it.
    """

    def __init__(self) -> None:
        self._uses: dict[int, int | set[int]] = {}

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self) -> Iterator[int]:
        return iter(self._uses)

    def add(self, rows: Rows, sequence: int, blocks: NDArray[np.int64]) -> None:
        uses, get = self._uses, self._uses.get
        packed = (blocks | sequence << _BLOCK_BITS).tolist()
        for row, use in zip(rows.tolist(), packed, strict=True):
            there = get(row)
            if there is None:
                uses[row] = use
            elif type(there) is set:
                there.add(use)
            else:
                uses[row] = {there, use}  # type: ignore[arg-type]

    def remove(self, rows: Rows, sequence: int, blocks: NDArray[np.int64]) -> None:
        uses = self._uses
        packed = (blocks | sequence << _BLOCK_BITS).tolist()
        for row, use in zip(rows.tolist(), packed, strict=True):
            there = uses[row]
            if type(there) is set:
                there.discard(use)
                if len(there) == 1:
                    uses[row] = there.pop()
            else:
                del uses[row]

    def forget(self, row: int) -> None:
        """Nobody maps the row any more."""
        self._uses.pop(row, None)

    def of(self, row: int) -> list[tuple[int, int]]:
        """(sequence, block) of every use of the row."""
        there = self._uses.get(row)
        if there is None:
            return []
        packed = there if isinstance(there, set) else (there,)
        return [(use >> _BLOCK_BITS, use & _BLOCK_MASK) for use in packed]

    def count(self, row: int) -> int:
        there = self._uses.get(row)
        return 0 if there is None else len(there) if isinstance(there, set) else 1
