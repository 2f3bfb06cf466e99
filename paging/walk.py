"""Many positions at once: blocks are looked up once per run of positions that fall into one block.

Work is done in pieces that stay in the processor's cache; a piece without runs (random access) is looked up position by
position. Pure functions, thread-safe.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hybridkv.paging.entries import Blocks, Words
from hybridkv.tiers.errors import InvalidArgumentError

PIECE_POSITIONS = 1 << 16
RUNS_PER_PIECE = PIECE_POSITIONS // 4


def walk(positions: npt.NDArray[np.int64], block_tokens: int, lookup: Callable[[Blocks], Words]) -> Words:
    """`lookup` of the block of each position: int64 [n]. Raises InvalidArgumentError for a negative position."""
    found = np.empty(len(positions), np.int64)
    scratch = np.empty(min(len(positions), PIECE_POSITIONS), np.int64)
    first_of_run = np.empty(len(scratch), bool)
    shift = block_tokens.bit_length() - 1 if block_tokens & (block_tokens - 1) == 0 else None
    for start in range(0, len(positions), PIECE_POSITIONS):
        piece = positions[start : start + PIECE_POSITIONS]
        blocks = scratch[: len(piece)]
        if shift is None:
            np.floor_divide(piece, block_tokens, out=blocks)
        else:
            np.right_shift(piece, shift, out=blocks)
        found[start : start + PIECE_POSITIONS] = _walk_piece(blocks, first_of_run[: len(piece)], lookup)
    return found


def _walk_piece(blocks: Blocks, first_of_run: npt.NDArray[np.bool_], lookup: Callable[[Blocks], Words]) -> Words:
    first_of_run[0] = True
    np.not_equal(blocks[1:], blocks[:-1], out=first_of_run[1:])
    if np.count_nonzero(first_of_run) > RUNS_PER_PIECE:
        return lookup(_checked(blocks))
    starts = np.flatnonzero(first_of_run)
    lengths = np.empty(len(starts), np.int64)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1] = len(blocks) - starts[-1]
    return np.repeat(lookup(_checked(blocks[starts])), lengths)


def _checked(blocks: Blocks) -> Blocks:
    if blocks.min() < 0:
        raise InvalidArgumentError("positions", "must not be negative")
    return blocks
