"""Copying whole blocks in one call, aligned or not."""

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.service.client.blockcopy import gather, scatter
from hybridkv.tiers.errors import HybridKVError

BLOCK = 512


def numbered(blocks: int, shift: int = 0) -> npt.NDArray[np.uint8]:
    """Blocks whose bytes are their number, behind `shift` bytes; a rest that is no block follows."""
    whole = np.repeat(np.arange(blocks, dtype=np.uint8), BLOCK)
    return np.concatenate([np.zeros(shift, np.uint8), whole, np.zeros(7, np.uint8)])


@pytest.mark.parametrize("shift", [0, 96])
def test_gather_takes_blocks_in_any_order(shift: int) -> None:
    out = np.full(4 * BLOCK, 255, np.uint8)
    gather(out, numbered(9, shift), np.array([8, 0, 3, 3]) * BLOCK + shift, BLOCK)
    assert out.reshape(4, BLOCK).tolist() == [[n] * BLOCK for n in (8, 0, 3, 3)]


@pytest.mark.parametrize("shift", [0, 96])
def test_scatter_writes_blocks_and_nothing_else(shift: int) -> None:
    pool = np.full(shift + 6 * BLOCK + 7, 200, np.uint8)
    scatter(pool, numbered(3)[: 3 * BLOCK], np.array([5, 0, 2]) * BLOCK + shift, BLOCK)
    blocks = pool[shift : shift + 6 * BLOCK].reshape(6, BLOCK)
    assert blocks[:, 0].tolist() == blocks[:, -1].tolist() == [1, 200, 2, 200, 200, 0]
    assert (pool[:shift] == 200).all()
    assert (pool[-7:] == 200).all()


def test_nothing_is_nothing() -> None:
    gather(np.zeros(0, np.uint8), numbered(2), np.zeros(0, np.int64), BLOCK)
    scatter(numbered(2), np.zeros(0, np.uint8), np.zeros(0, np.int64), BLOCK)


def test_a_block_outside_is_not_taken_for_another() -> None:
    """`take` would clip the number and copy the last block."""
    source, out = numbered(2), np.full(BLOCK, 255, np.uint8)
    with pytest.raises((ValueError, HybridKVError)):
        gather(out, source, np.array([5 * BLOCK]), BLOCK)
