"""Where copies go."""

from typing import Any

import numpy as np
import pytest
import torch

from hybridkv.service.client.outputs import rows_of
from hybridkv.tiers.errors import InvalidArgumentError

BLOCK = 4096
SOURCE = np.repeat(np.arange(8, dtype=np.uint8), BLOCK)


def fill(out: object, count: int, *pairs: tuple[int, int]) -> None:
    """Copy block `pair[0]` of SOURCE to row `pair[1]`."""
    offsets = np.array([block * BLOCK for block, _ in pairs], np.int64)
    rows_of(out, count, BLOCK).fill(SOURCE, offsets, np.array([row for _, row in pairs], np.int64))


def test_rows_of_an_array() -> None:
    out = np.full((3, BLOCK), 9, np.uint8)
    fill(out, 3, (5, 2), (1, 0))
    assert out[:, 0].tolist() == [1, 9, 5]
    assert out[:, -1].tolist() == [1, 9, 5]


def test_rows_of_another_dtype_and_shape() -> None:
    out = np.zeros((2, 2, BLOCK // 8), np.float32)
    fill(out, 2, (3, 0), (4, 1))
    assert (out.view(np.uint8)[0] == 3).all()
    assert (out.view(np.uint8)[1] == 4).all()


def test_rows_of_a_tensor_share_its_memory() -> None:
    out = torch.zeros((2, BLOCK // 2), dtype=torch.bfloat16)
    fill(out, 2, (7, 1))
    assert out.view(torch.uint8)[1].tolist() == [7] * BLOCK
    assert out.view(torch.uint8)[0].tolist() == [0] * BLOCK


def test_rows_of_a_list_lie_anywhere() -> None:
    out: list[Any] = [
        np.zeros(BLOCK, np.uint8),
        torch.zeros(BLOCK, dtype=torch.uint8),
        np.zeros((2, BLOCK // 2), np.int8),
    ]
    fill(out, 3, (1, 0), (2, 1), (3, 2))
    assert [int(row.reshape(-1)[-1]) for row in out] == [1, 2, 3]


def test_one_block_is_put_whole() -> None:
    out = np.zeros((2, BLOCK), np.uint8)
    rows_of(out, 2, BLOCK).put(1, SOURCE[:BLOCK] + 4)
    assert out[:, 0].tolist() == [0, 4]


@pytest.mark.parametrize(
    ("out", "field"),
    [
        (np.zeros((2, BLOCK), np.uint8), "out"),
        (np.zeros((3, BLOCK - 512), np.uint8), "out"),
        (np.zeros((BLOCK, 3), np.uint8), "out"),
        (np.zeros((BLOCK, 3), np.uint8).T, "out"),
        (np.broadcast_to(np.zeros(BLOCK, np.uint8), (3, BLOCK)), "out"),
        (torch.zeros((BLOCK, 3), dtype=torch.uint8).T, "out"),
        ([np.zeros(BLOCK, np.uint8)] * 2, "out"),
        ([np.zeros(BLOCK, np.uint8), np.zeros(BLOCK, np.uint8), np.zeros(8, np.uint8)], r"out\[2\]"),
        (b"x" * 3 * BLOCK, "out"),
        (None, "out"),
    ],
)
def test_what_cannot_take_the_blocks_is_refused(out: object, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{field}"):
        rows_of(out, 3, BLOCK)


def test_no_rows_are_fine() -> None:
    fill(np.zeros((0, BLOCK), np.uint8), 0)
    fill([], 0)
