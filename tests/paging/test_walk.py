"""Positions are walked in pieces: across their borders, in runs and at random, for every size of block."""

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.paging.walk import PIECE_POSITIONS, walk
from hybridkv.tiers.errors import InvalidArgumentError


@pytest.mark.parametrize("block_tokens", [1, 16, 24])
def test_every_position_gets_its_block(block_tokens: int) -> None:
    rng = np.random.default_rng(block_tokens)
    many = 2 * PIECE_POSITIONS + 3
    for positions in (
        np.arange(many),
        rng.integers(0, 1 << 40, many),
        np.sort(rng.integers(0, many * 4, many)),
        np.arange(many)[::-3],
    ):
        assert (walk(positions, block_tokens, lambda blocks: blocks + 7) == positions // block_tokens + 7).all()


def test_blocks_are_looked_up_once_a_run() -> None:
    asked: list[npt.NDArray[np.int64]] = []

    def lookup(blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        asked.append(blocks)
        return blocks

    walk(np.arange(320), 32, lookup)
    assert [blocks.tolist() for blocks in asked] == [list(range(10))]


@pytest.mark.parametrize("positions", [np.array([-1]), np.concatenate([np.arange(500), [-40]])])
@pytest.mark.parametrize("block_tokens", [16, 24])
def test_negative_positions_are_refused(positions: npt.NDArray[np.int64], block_tokens: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^positions"):
        walk(positions, block_tokens, lambda blocks: blocks)
