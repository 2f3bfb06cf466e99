"""Scattered blocks as rows of one table, for the gather and scatter kernels.

A kernel needs no allocation's bounds, only addresses: all blocks of a part are rows of one table that starts at the
lowest block, whatever allocations or registrations lie between. A row is the largest size that divides the blocks and
all the distances between them; blocks of a power of two are one row each.
"""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import Offsets
from hybridkv.tiers.device.cuda_runtime import CudaRuntime
from hybridkv.tiers.device.cuda_staging import MIN_ROW_BYTES, StagingBuffer
from hybridkv.tiers.errors import InternalError

WORD_BYTES = 8  # what the kernels move


class Rows(NamedTuple):
    """A table at `base` of `row_count` rows; `picks` says which of them the blocks are, in the blocks' order."""

    base: int
    row_count: int
    row_bytes: int
    picks: Offsets


def rows_of(addresses: npt.NDArray[np.int64], nbytes: int) -> Rows | None:
    """None when the rows would be too small, or not whole words, for a kernel to be worth it."""
    base = int(addresses.min())
    distances = addresses - base
    row_bytes = int(np.gcd(np.gcd.reduce(distances), nbytes))
    if row_bytes < MIN_ROW_BYTES or row_bytes % WORD_BYTES or base % WORD_BYTES:
        return None
    each = nbytes // row_bytes
    picks = (distances[:, None] // row_bytes + np.arange(each, dtype=np.int64)).ravel()
    return Rows(base, int(distances.max()) // row_bytes + each, row_bytes, picks)


def must_rows_of(addresses: npt.NDArray[np.int64], nbytes: int) -> Rows:
    """`rows_of` some of the blocks for all of which it is known to exist: their distances only grow rounder."""
    rows = rows_of(addresses, nbytes)
    if rows is None:
        raise InternalError(f"{len(addresses)} blocks of {nbytes} bytes are no rows of one table")
    return rows


class MoveRows(Protocol):
    """`CudaRuntime.gather` or `scatter`: between rows of a table and packed rows."""

    def __call__(
        self,
        device: int,
        rows: int,
        row_count: int,
        row_bytes: int,
        index: int,
        count: int,
        packed: int,
        stream: int,
        /,
    ) -> None: ...


class Upload:
    """The indices of one or two tables, on their way to the device through a staging buffer."""

    def __init__(
        self, runtime: CudaRuntime, device: int, stream: int, buffer: StagingBuffer, tables: list[Rows]
    ) -> None:
        self._device = device
        self._stream = stream
        self._buffer = buffer
        self._tables = tables
        self._starts = [0]
        for table in tables:
            self._starts.append(self._starts[-1] + len(table.picks))
        total = self._starts[-1]
        buffer.rows[:total] = np.concatenate([table.picks for table in tables])
        runtime.copy_async(device, buffer.device_rows_address, buffer.host_rows_address, total * WORD_BYTES, stream)

    def move(self, kernel: MoveRows, number: int) -> None:
        """Run `kernel` between table `number` and the device side of the buffer."""
        table = self._tables[number]
        kernel(
            self._device,
            table.base,
            table.row_count,
            table.row_bytes,
            self._buffer.device_rows_address + self._starts[number] * WORD_BYTES,
            len(table.picks),
            self._buffer.device_address,
            self._stream,
        )
