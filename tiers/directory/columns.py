"""Columns that grow in place: address space is reserved once, and memory is used as rows come."""

import mmap
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)

RESERVED_ROWS = 1 << 22
"""Rows for which a column has addresses from the start; a longer one moves once to twice what it needs."""

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # the module names it from Python 3.13 on


class Column(Generic[T]):
    """`values`, the rows there are, is an array that `extend` replaces by a longer one over the same memory.

    Nothing is copied while the reservation suffices, and no page is touched before a row on it is written, so that
    growing never makes anybody wait. Where the host refuses to reserve (strict overcommit, an address limit) a column
    is an ordinary array that is copied as it grows. No lock.
    """

    __slots__ = ("_dtype", "_fill", "_map", "_whole", "_width", "values")

    def __init__(
        self, dtype: type[T], *, fill: int = 0, width: int | None = None, reserve: int = RESERVED_ROWS
    ) -> None:
        """`fill` is what new rows hold; with a `width` each row is an array of that length."""
        self._dtype = dtype
        self._fill = fill
        self._width = width
        self._map: mmap.mmap | None = None
        self._whole: NDArray[T] = self._room_for(reserve, 0)
        self.values: NDArray[T] = self._whole[:0]

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Column({len(self)}/{len(self._whole)} rows of {self._whole.dtype})"

    def extend(self, length: int) -> None:
        """There are `length` rows from now on, at least as many as before; arrays handed out earlier are outdated."""
        old = self.values
        if length > len(self._whole):
            self._whole = self._room_for(2 * length, length + length // 4)
            self._whole[: len(old)] = old
        self.values = self._whole[:length]
        if self._fill:
            self.values[len(old) :] = self._fill

    def release(self, begin: int, end: int) -> None:
        """Rows [begin, end) are not used any more: whole pages of them go back to the host, and read as zeros."""
        if self._map is None:
            return
        row_bytes = self._whole.itemsize * (self._width or 1)
        first = -(-begin * row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end * row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _room_for(self, reserve: int, without: int) -> NDArray[T]:
        """Zeros for `reserve` rows, as addresses only; where the host refuses, an array for `without` rows."""
        shape = (lambda rows: rows) if self._width is None else (lambda rows: (rows, self._width))
        nbytes = reserve * np.dtype(self._dtype).itemsize * (self._width or 1)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        try:
            self._map = mmap.mmap(-1, nbytes, flags=flags)
        except (OSError, ValueError, OverflowError):
            self._map = None
            plain: NDArray[T] = np.zeros(shape(without), self._dtype)
            return plain
        reserved: NDArray[Any] = np.frombuffer(self._map, self._dtype).reshape(shape(reserve))
        return reserved


def add_at(column: NDArray[Any], rows: NDArray[Any], change: int) -> None:
    """Add `change` to the column of integers at each of `rows`; at a row that stands there twice, twice.

    The change goes in as one of the column's own type: with a plain number NumPy takes ten times as long.
    """
    ufunc = np.add if change >= 0 else np.subtract
    ufunc.at(column, rows, column.dtype.type(abs(change)))
