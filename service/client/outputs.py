"""Where copying reads put blocks: NumPy arrays and torch tensors of any dtype, or a list of them, seen as rows."""

from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.blockcopy import gather
from hybridkv.tiers.device.batch import join_runs
from hybridkv.tiers.device.memcopy import copy_runs
from hybridkv.tiers.device.views import tensor_of
from hybridkv.tiers.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

_UINT8 = np.dtype(np.uint8)


class Rows(Protocol):
    """Places for blocks. Rows that nobody fills are never touched."""

    def fill(self, source: Bytes, offsets: Offsets, rows: Offsets) -> None:
        """Copy the blocks that start at `offsets` of `source` to `rows`."""

    def put(self, row: int, block: Bytes) -> None:
        """Copy one whole block to `row`."""

    def put_tensor(self, row: int, block: "torch.Tensor") -> None:
        """Likewise, from any device; it may be enqueued on the calling thread's current stream."""


class FlatRows:
    """One contiguous range of host memory: a batch is one copy that holds no interpreter lock."""

    __slots__ = ("_block_bytes", "_flat")

    def __init__(self, flat: Bytes, block_bytes: int) -> None:
        self._flat = flat
        self._block_bytes = block_bytes

    def fill(self, source: Bytes, offsets: Offsets, rows: Offsets) -> None:
        size, first = self._block_bytes, int(rows[0]) if len(rows) else 0
        if bool((rows == np.arange(first, first + len(rows))).all()):
            gather(self._flat[first * size : (first + len(rows)) * size], source, offsets, size)
        else:
            copy_runs(self._flat, source, join_runs(rows * size, offsets, size))

    def put(self, row: int, block: Bytes) -> None:
        at = row * self._block_bytes
        np.copyto(self._flat[at : at + self._block_bytes], block)

    def put_tensor(self, row: int, block: "torch.Tensor") -> None:
        at = row * self._block_bytes
        tensor_of(self._flat[at : at + self._block_bytes]).copy_(block)


class SingleRows:
    """Rows that lie apart, in host memory or on devices."""

    def __init__(self, rows: "list[Bytes | torch.Tensor]", block_bytes: int) -> None:
        self._rows = rows
        self._block_bytes = block_bytes

    def fill(self, source: Bytes, offsets: Offsets, rows: Offsets) -> None:
        for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
            self.put(row, source[offset : offset + self._block_bytes])

    def put(self, row: int, block: Bytes) -> None:
        target = self._rows[row]
        if isinstance(target, np.ndarray):
            np.copyto(target, block)
        else:
            target.copy_(tensor_of(block))

    def put_tensor(self, row: int, block: "torch.Tensor") -> None:
        target = self._rows[row]
        (tensor_of(target) if isinstance(target, np.ndarray) else target).copy_(block)


def rows_of(out: Any, count: int, block_bytes: int, field: str = "out") -> Rows:
    """`out` as `count` rows of `block_bytes` bytes.

    `out` is an array or tensor whose first dimension is `count` and whose rows have `block_bytes` bytes each, or a
    sequence of `count` arrays or tensors of that size. Each must be contiguous and writable; dtypes do not matter.
    Raises InvalidArgumentError.
    """
    if isinstance(out, list | tuple):
        if len(out) != count:
            raise InvalidArgumentError(field, f"has {len(out)} rows, {count} belong")
        singles = [_flat(one, f"{field}[{i}]", block_bytes) for i, one in enumerate(out)]
        return SingleRows(singles, block_bytes)
    flat = _flat(out, field, count * block_bytes)
    if count and (len(out.shape) == 0 or out.shape[0] != count):
        raise InvalidArgumentError(field, f"its first dimension must be {count}, got shape {tuple(out.shape)}")
    if isinstance(flat, np.ndarray):
        return FlatRows(flat, block_bytes)
    return SingleRows(list(flat.view(count, block_bytes)), block_bytes)


def flat_source(source: Any, count: int, block_bytes: int, field: str = "source") -> Bytes:
    """`source`, a contiguous NumPy array or host tensor of `count` rows of `block_bytes` bytes, as flat bytes, sharing its
    memory; it may be read-only. Raises InvalidArgumentError."""
    flat = _flat_tensor(source, field, count * block_bytes) if _is_tensor(source) else source
    if not isinstance(flat, np.ndarray) or not flat.flags.c_contiguous:
        raise InvalidArgumentError(field, "must be a contiguous NumPy array or host tensor")
    _check_bytes(field, flat.nbytes, count * block_bytes)
    if count and (len(source.shape) == 0 or source.shape[0] != count):
        raise InvalidArgumentError(field, f"its first dimension must be {count}, got shape {tuple(source.shape)}")
    return flat.reshape(-1).view(np.uint8)


def _flat(out: Any, field: str, nbytes: int) -> "Bytes | torch.Tensor":
    """The bytes of an array or tensor, flat, sharing its memory; those of a host tensor as an array."""
    if isinstance(out, np.ndarray):
        flags = out.flags
        if not flags.c_contiguous or not flags.writeable:
            raise InvalidArgumentError(field, "must be contiguous and writable")
        _check_bytes(field, out.nbytes, nbytes)
        flat = out.reshape(-1)
        return flat if flat.dtype is _UINT8 else flat.view(np.uint8)
    if _is_tensor(out):
        return _flat_tensor(out, field, nbytes)
    raise InvalidArgumentError(field, f"must be NumPy arrays or torch tensors, got {type(out).__name__}")


def _flat_tensor(out: "torch.Tensor", field: str, nbytes: int) -> "Bytes | torch.Tensor":
    import torch

    if not out.is_contiguous():
        raise InvalidArgumentError(field, "must be contiguous")
    _check_bytes(field, out.numel() * out.element_size(), nbytes)
    flat = out.detach().view(-1).view(torch.uint8)
    return np.asarray(flat.numpy()) if flat.device.type == "cpu" else flat


def _is_tensor(out: Any) -> "TypeGuard[torch.Tensor]":
    """Without importing torch: who has no torch brings no tensor."""
    return type(out).__module__.startswith("torch") and hasattr(out, "element_size")


def _check_bytes(field: str, got: int, belongs: int) -> None:
    if got != belongs:
        raise InvalidArgumentError(field, f"has {got} bytes, {belongs} belong")
