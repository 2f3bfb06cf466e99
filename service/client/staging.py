"""The staging ring of write-behind puts: rows of one block each, taken and given back in the same order."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.keys import Keys

Blocks = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Run:
    """A piece of a chain whose blocks lie in neighbouring rows of the ring, from `first` on."""

    keys: list[bytes]
    parent: bytes | None
    first: int
    distinct: set[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.distinct = set(self.keys)

    def takes(self, other: "Run", most: int) -> bool:
        """Whether `other` goes on where this one ends, in the chain and in the ring; if so, it is part of it now."""
        follows = other.parent == self.keys[-1] and other.first == self.first + len(self.keys)
        if not follows or len(self.keys) + len(other.keys) > most or not self.distinct.isdisjoint(other.distinct):
            return False
        self.keys += other.keys
        self.distinct |= other.distinct
        return True


class Ring:
    """Rows of one block each. Not thread-safe, but one thread may take while another gives back."""

    def __init__(self, rows: int, block_bytes: int) -> None:
        self._blocks = np.empty((rows, block_bytes), np.uint8)
        self._taken = self._given = 0  # since the beginning

    @property
    def free(self) -> int:
        """How many rows can be taken."""
        return len(self._blocks) - (self._taken - self._given)

    def copied(self, keys: Keys, blocks: Blocks, parent: bytes | None) -> Iterator[Run]:
        """Copy `blocks` to free rows, of which there must be enough; two runs where the end of the ring comes between."""
        listed, done = keys.as_list(), 0
        while done < len(listed):
            first = self._taken % len(self._blocks)
            count = min(len(listed) - done, len(self._blocks) - first)
            np.copyto(self._blocks[first : first + count], blocks[done : done + count])
            self._taken += count
            yield Run(listed[done : done + count], listed[done - 1] if done else parent, first)
            done += count

    def rows(self, run: Run) -> Blocks:
        """The blocks of a run, uint8 [n, block_bytes]; valid until it is given back."""
        return self._blocks[run.first : run.first + len(run.keys)]

    def give_back(self, count: int) -> None:
        """The rows that were taken first."""
        self._given += count
