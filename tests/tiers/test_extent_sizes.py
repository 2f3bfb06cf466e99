"""An extent table that is made smaller and larger again: what may be carved, what is owed, and exact sums throughout."""

import numpy as np
import pytest

from hybridkv.tiers.extents import ExtentState, ExtentTable, SlotUse

EXTENT, SLOT = 16384, 4096
COUNT = 8


def table() -> ExtentTable:
    return ExtentTable(COUNT * EXTENT, extent_bytes=EXTENT)


def carve(made: ExtentTable, count: int) -> None:
    for _ in range(count):
        number = made.begin_carving(SLOT)
        assert number is not None
        made.carve(number)


def test_free_extents_go_first_and_their_memory_may_go_back() -> None:
    made = table()
    carve(made, 3)
    assert made.resize(5 * EXTENT) == [7, 6, 5]
    assert (made.excess, made.spareable) == (0, 0)
    assert made.free_bytes == 5 * EXTENT
    assert made.capacity_slots(SLOT) == 20
    assert made.check() == []
    carve(made, 2)
    assert made.begin_carving(SLOT) is None


def test_what_is_carved_is_owed_until_it_is_returned() -> None:
    made = table()
    carve(made, COUNT)
    made.take(SLOT, np.arange(6), SlotUse.RESERVED)
    assert made.resize(2 * EXTENT) == []
    assert made.excess_bytes == 6 * EXTENT
    assert made.check() == []
    empty = [n for n in range(COUNT) if not made.used_slots(n)]
    for owed, number in zip(range(5, -1, -1), empty, strict=True):
        made.begin_emptying(number)
        made.spare(number, returned=True)
        assert made.excess == owed
        assert made.check() == []
    assert made.used_bytes == 6 * SLOT
    assert made.free_bytes == 2 * SLOT


def test_larger_again_it_has_every_extent_again() -> None:
    made = table()
    made.resize(2 * EXTENT)
    made.resize(6 * EXTENT)
    assert made.spareable == 4
    for number in made.extents_in(ExtentState.RETURNED)[: made.spareable]:
        made.spare(number)
    made.resize(COUNT * EXTENT)
    assert made.spareable == 2
    for number in made.extents_in(ExtentState.RETURNED):
        made.spare(number)
    assert made.check() == []
    carve(made, COUNT)
    assert made.free_bytes == COUNT * EXTENT


def test_a_size_between_extents_leaves_a_remainder() -> None:
    made = table()
    made.resize(2 * EXTENT + 5000)
    assert made.remainder_bytes == 5000
    assert made.check() == []


@pytest.mark.parametrize("size", [0, EXTENT - 1, COUNT * EXTENT + 1])
def test_sizes_it_was_not_made_for_are_a_bug(size: int) -> None:
    with pytest.raises(AssertionError, match="bytes are not in"):
        table().resize(size)
