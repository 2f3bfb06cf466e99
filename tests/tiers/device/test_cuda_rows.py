"""Blocks as rows of one table."""

import numpy as np
import pytest

from hybridkv.tiers.device.cuda_rows import must_rows_of, rows_of
from hybridkv.tiers.errors import InternalError

BASE = 1 << 40


def addresses(*offsets: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(offsets, np.int64) + BASE


def test_blocks_of_a_power_of_two_are_one_row_each() -> None:
    rows = rows_of(addresses(8192, 4096, 1 << 30), 4096)
    assert rows is not None
    assert rows[:3] == (BASE + 4096, ((1 << 30) - 4096) // 4096 + 1, 4096)
    assert rows.picks.tolist() == [1, 0, (1 << 30) // 4096 - 1]


def test_other_blocks_are_several_rows() -> None:
    """Two allocations, each with slots of 12 KiB from its own start."""
    rows = rows_of(addresses(0, 12 << 10, (2 << 20) + (12 << 10)), 12 << 10)
    assert rows is not None
    assert rows.row_bytes == 4096
    assert rows.picks.tolist() == [0, 1, 2, 3, 4, 5, 515, 516, 517]
    assert rows.row_count == 518


@pytest.mark.parametrize(
    ("offsets", "nbytes"), [((0, 4100), 4096), ((4, 4100), 4096), ((0, 256), 256), ((0, 1004), 1004)]
)
def test_rows_too_small_or_askew_are_none(offsets: tuple[int, ...], nbytes: int) -> None:
    assert rows_of(addresses(*offsets), nbytes) is None
    with pytest.raises(InternalError):
        must_rows_of(addresses(*offsets), nbytes)
