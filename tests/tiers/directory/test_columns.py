"""Columns: they grow over the same memory, move when outgrown, and are plain arrays where the host reserves nothing."""

import mmap
from typing import Any

import numpy as np
import pytest

from hybridkv.tiers.directory.columns import Column, add_at


def test_it_grows_in_place_and_new_rows_hold_the_fill() -> None:
    column = Column(np.int32, fill=-1)
    column.extend(3)
    first = column.values
    first[:] = [1, 2, 3]
    column.extend(2000)
    assert np.shares_memory(first, column.values)
    assert column.values[:3].tolist() == [1, 2, 3]
    assert (column.values[3:] == -1).all()
    assert len(column) == 2000


def test_rows_may_be_arrays() -> None:
    column = Column(np.uint64, width=2)
    column.extend(5)
    assert column.values.shape == (5, 2)
    assert not column.values.any()


def test_an_outgrown_one_moves_with_what_it_holds() -> None:
    column = Column(np.int64, fill=-1, reserve=4)
    column.extend(4)
    first = column.values
    first[:] = range(4)
    column.extend(6)
    assert not np.shares_memory(first, column.values)
    assert column.values.tolist() == [0, 1, 2, 3, -1, -1]
    again = column.values
    column.extend(12)
    assert np.shares_memory(again, column.values)


def _refuse(*_: object, **__: object) -> mmap.mmap:
    raise OSError(12, "Cannot allocate memory")


def test_without_a_reservation_it_grows_by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridkv.tiers.directory.columns.mmap.mmap", _refuse)
    column = Column(np.int32, fill=7)
    column.extend(10)
    column.values[:] = range(10)
    column.extend(100)
    assert column.values[:10].tolist() == list(range(10))
    assert (column.values[10:] == 7).all()
    column.release(0, 100)
    assert column.values[:10].tolist() == list(range(10))


def test_released_pages_read_as_zeros_and_their_neighbours_stay() -> None:
    per_page = mmap.PAGESIZE // 8
    column = Column(np.int64)
    column.extend(4 * per_page)
    column.values[:] = 5
    column.release(per_page // 2, 3 * per_page)
    assert (column.values[:per_page] == 5).all()
    assert not column.values[per_page : 3 * per_page].any()
    assert (column.values[3 * per_page :] == 5).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32, np.int64])
def test_adding_at_rows_that_stand_there_twice(dtype: type[np.integer[Any]]) -> None:
    column = np.full(5, 3, dtype)
    add_at(column, np.array([0, 2, 2]), 1)
    assert column.tolist() == [4, 3, 5, 3, 3]
    add_at(column, np.array([0, 2, 2, 4], np.int32), -1)
    assert column.tolist() == [3, 3, 3, 3, 2]
    add_at(column, np.zeros(0, np.int64), 1)
    assert column.dtype == dtype
