"""Page table entries: where a page is and what may be done with it, in one 64-bit word, and arrays of such words.

    bit   0        MAPPED: the word is an entry; an unmapped page is the word 0
    bits  1..4     RESIDENT, PRIVATE, STICKY, SPLIT (`PageFlag`)
    bits  9..47    the byte offset of the first slot in its pool; slots start at multiples of 512
    bits 48..62    the pool
    bit  63        0: words are positive int64

Pure functions, thread-safe.
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.pools import BLOCK_ALIGN_BYTES

Words = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.int64]

POOL_SHIFT = 48
MAX_POOL = (1 << 15) - 1
MAX_OFFSET = (1 << POOL_SHIFT) - BLOCK_ALIGN_BYTES
FLAG_MASK = BLOCK_ALIGN_BYTES - 1
OFFSET_MASK = (1 << POOL_SHIFT) - BLOCK_ALIGN_BYTES


class PageFlag(IntFlag):
    """What an entry says besides the place. Callers set RESIDENT, PRIVATE and STICKY; the table sets the others."""

    MAPPED = 1
    RESIDENT = 2  # the place is where the bytes are now; without it the page is mapped and its bytes lie elsewhere
    PRIVATE = 4  # this sequence alone has the page and may write to it
    STICKY = 8  # never evicted
    SPLIT = 16  # the entry leads to a table of single blocks; never seen outside the table


MAPPED, RESIDENT, PRIVATE, SPLIT = (
    int(PageFlag.MAPPED),
    int(PageFlag.RESIDENT),
    int(PageFlag.PRIVATE),
    int(PageFlag.SPLIT),
)
"""The same as plain numbers: looking a member up in an enum costs more than the arithmetic it is for."""

NO_FLAG = PageFlag(0)
CALLER_FLAGS = PageFlag.RESIDENT | PageFlag.PRIVATE | PageFlag.STICKY
_NO_CALLER_FLAGS = ~np.int64(CALLER_FLAGS)


@dataclass(frozen=True, slots=True)
class Place:
    """One translated position: token `token` of the block whose slot starts at `offset` bytes of `pool`.

    A block holds its tokens layer by layer, so that a token has no single byte offset in it: `token` is the index along
    the layout's axis of tokens (`BlockLayout`, ORDERS).
    """

    pool: int
    offset: int
    token: int
    flags: PageFlag


def words_of(pools: Any, offsets: Any, flags: Any) -> Words:
    """Words of entries: pools, byte offsets (multiples of 512) and flags (CALLER_FLAGS), arrays or single values.

    Raises InvalidArgumentError.
    """
    pool = np.asarray(pools, np.int64)
    offset = np.asarray(offsets, np.int64)
    flag = np.asarray(flags, np.int64)
    if pool.size and not 0 <= int(pool.min()) <= int(pool.max()) <= MAX_POOL:
        raise InvalidArgumentError("pools", f"must be within [0, {MAX_POOL}]")
    if offset.size and not 0 <= int(offset.min()) <= int(offset.max()) <= MAX_OFFSET:
        raise InvalidArgumentError("offsets", f"must be within [0, {MAX_OFFSET}] bytes")
    if np.any(offset & FLAG_MASK):
        raise InvalidArgumentError("offsets", f"must be multiples of {BLOCK_ALIGN_BYTES} bytes")
    if np.any(flag & _NO_CALLER_FLAGS):
        raise InvalidArgumentError("flags", f"may hold {CALLER_FLAGS!r} only")
    return np.asarray(pool << POOL_SHIFT | offset | flag | MAPPED, np.int64)


def pools_of(words: Words) -> npt.NDArray[np.int64]:
    """The pool of each; 0 where nothing is mapped."""
    return words >> POOL_SHIFT


def offsets_of(words: Words) -> npt.NDArray[np.int64]:
    """The byte offset of each slot in its pool; 0 where nothing is mapped."""
    return words & OFFSET_MASK


def flags_of(words: Words) -> npt.NDArray[np.uint8]:
    """PageFlag of each; 0 where nothing is mapped."""
    return (words & FLAG_MASK).astype(np.uint8)


def mapped_in(words: Words) -> npt.NDArray[np.bool_]:
    """Which are mapped."""
    return np.asarray(words != 0)


def resident_in(words: Words) -> npt.NDArray[np.bool_]:
    """Which have their bytes at their place."""
    return np.asarray((words & RESIDENT) != 0)
