"""What the ordered lists are made of: runs of a log, and columns that grow."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.replacement import Rows

Stamps = NDArray[np.int64]
Run = tuple[Rows, Stamps]
_T = TypeVar("_T", bound=np.generic)


class Chunk:
    """A run of a log. Entries [start, end) count; arrays are written once and never changed below `end`."""

    __slots__ = ("end", "rows", "stamps", "start")

    def __init__(self, rows: Rows, stamps: Stamps, end: int) -> None:
        self.rows, self.stamps, self.start, self.end = rows, stamps, 0, end

    @classmethod
    def empty(cls, entries: int) -> "Chunk":
        return cls(np.empty(entries, np.int64), np.empty(entries, np.int64), 0)

    def __len__(self) -> int:
        return self.end - self.start

    def extend(self, rows: Rows, stamps: Stamps) -> int:
        """Append what fits; how many that was."""
        fits = min(len(rows), len(self.rows) - self.end)
        self.rows[self.end : self.end + fits] = rows[:fits]
        self.stamps[self.end : self.end + fits] = stamps[:fits]
        self.end += fits
        return fits

    def current(self, latest: Stamps, start: int, end: int) -> Run:
        """Copies of those entries of [start, end) that are current."""
        rows, stamps = self.rows[start:end], self.stamps[start:end]
        live = latest[rows] == stamps
        return rows[live], stamps[live]

    def place_of(self, stamp: int) -> int:
        """Index of the first entry whose stamp is at least `stamp`."""
        return self.start + int(np.searchsorted(self.stamps[self.start : self.end], stamp))


def last_stamp(chunk: Chunk) -> int:
    """Stamp of the chunk's last entry."""
    return int(chunk.stamps[chunk.end - 1])


def distinct_last(rows: Rows) -> Rows:
    """`rows` with only the last place of each row that occurs more than once."""
    return distinct_and_named(rows)[0]


def distinct_and_named(rows: Rows) -> tuple[Rows, set[int]]:
    """`distinct_last`, and the same as a set."""
    named = set(rows.tolist())  # of a request's some dozen rows this is the fastest way to know
    if len(named) == len(rows):
        return rows, named
    _, from_end = np.unique(rows[::-1], return_index=True)
    return rows[np.sort(len(rows) - 1 - from_end)], named


def grown(column: NDArray[_T], length: int) -> NDArray[_T]:
    """The column with zeros appended up to `length`."""
    longer = np.zeros(length, column.dtype)
    longer[: len(column)] = column
    return longer
