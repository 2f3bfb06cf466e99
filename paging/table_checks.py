"""Checks of what callers give page tables: each raises InvalidArgumentError with the field and the limit."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.paging.entries import Blocks
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.errors import InvalidArgumentError

MAX_PAGE_BLOCKS = 256
MAX_SPACE_BLOCKS = 1 << 31


def checked_page_blocks(page_blocks: int) -> int:
    """A power of two within [1, 256]. Raises InvalidArgumentError."""
    size = checked_int("page_blocks", page_blocks, 1, MAX_PAGE_BLOCKS)
    if size & (size - 1):
        raise InvalidArgumentError("page_blocks", f"must be a power of two, got {size}")
    return size


def checked_blocks(blocks: Any, *, distinct: bool = True) -> Blocks:
    """Numbers of blocks as int64 [n]. Raises InvalidArgumentError."""
    wanted = np.asarray(blocks)
    if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
        raise InvalidArgumentError("blocks", "must be a one-dimensional array of integers")
    wanted = wanted.astype(np.int64, copy=False)
    if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < MAX_SPACE_BLOCKS:
        raise InvalidArgumentError("blocks", f"must be within [0, {MAX_SPACE_BLOCKS - 1}]")
    if distinct and (wanted[1:] <= wanted[:-1]).any() and len(np.unique(wanted)) != len(wanted):
        raise InvalidArgumentError("blocks", "a block is named twice")
    return wanted


def checked_positions(positions: Any) -> npt.NDArray[np.int64]:
    """Positions as int64 [n], not negative. Raises InvalidArgumentError."""
    wanted = np.asarray(positions)
    if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
        raise InvalidArgumentError("positions", "must be a one-dimensional array of integers")
    return wanted.astype(np.int64, copy=False)
