"""Ordered lists against OrderedDicts, bounded logs, and refused calls."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkv.migration.policies.chunks import distinct_last
from hybridkv.migration.policies.lists import RowLists
from hybridkv.tiers.errors import InternalError
from hybridkv.tiers.replacement import Rows

LISTS = 3
ROWS = st.lists(st.integers(0, 40), max_size=30)
STEPS = st.lists(st.tuples(st.integers(0, LISTS), ROWS), max_size=40)


def rows(*numbers: int) -> Rows:
    return np.array(numbers, np.int64)


def order(lists: RowLists, number: int = 0) -> list[int]:
    return [row for window, _ in lists.scan(number) for row in window.tolist()]


@settings(deadline=None)
@given(STEPS, st.integers(1, 9))
def test_equals_ordered_dicts(steps: list[tuple[int, list[int]]], chunk_entries: int) -> None:
    lists, models = RowLists(LISTS, chunk_entries=chunk_entries), [OrderedDict[int, None]() for _ in range(LISTS)]
    for step, numbers in steps:
        if step == LISTS:
            gone = [row for row in dict.fromkeys(numbers) if any(row in model for model in models)]
            lists.remove(rows(*gone))
        else:
            gone = numbers
            lists.require_new(rows(*[row for row in dict.fromkeys(numbers) if not any(row in m for m in models)]))
            lists.append(rows(*numbers), step)
        for model in models:
            for row in gone:
                model.pop(row, None)
        if step < LISTS:
            models[step].update(dict.fromkeys(reversed(dict.fromkeys(reversed(numbers)))))
        assert [lists.length(number) for number in range(LISTS)] == [len(model) for model in models]
        assert lists.check() == []
    assert [order(lists, number) for number in range(LISTS)] == [list(model) for model in models]


def test_a_run_of_stamps_is_a_part_of_the_list() -> None:
    lists = RowLists(2, chunk_entries=4)
    lists.require_new(np.arange(20))
    lists.append(np.arange(10), 0)
    middle = lists.next_stamp
    lists.append(np.arange(10, 20), 0)
    lists.append(rows(3, 12), 1)
    assert [row for window, _ in lists.scan(0, middle) for row in window.tolist()] == [10, 11, *range(13, 20)]
    assert [row for window, _ in lists.scan(0, middle - 4, middle + 2) for row in window.tolist()] == [
        6,
        7,
        8,
        9,
        10,
        11,
    ]
    assert np.concatenate(list(lists.first(0, 3))).tolist() == [0, 1, 2]
    assert np.concatenate(list(lists.after(0, 16))).tolist() == [18, 19]


def test_scan_changes_nothing_and_starts_small() -> None:
    lists = RowLists()
    lists.require_new(np.arange(100_000))
    lists.append(np.arange(100_000), 0)
    first, _ = next(iter(lists.scan(0)))
    assert len(first) <= 256
    assert order(lists) == order(lists) == list(range(100_000))


def test_moving_rows_for_ever_leaves_no_growth() -> None:
    lists = RowLists(50, chunk_entries=64)
    lists.require_new(np.arange(1000))
    lists.append(np.arange(1000), 0)
    generator = np.random.default_rng(1)
    for _ in range(1000):
        lists.append(generator.integers(0, 1000, 60), int(generator.integers(0, 50)))
        assert lists.entries <= lists.bound() == 2 * 1000 + (4 + 50) * 64
    assert lists.check() == []


def test_rows_that_come_and_go_leave_no_growth() -> None:
    lists = RowLists(chunk_entries=64)
    for start in range(0, 20_000, 100):
        some = np.arange(start, start + 100) % 300
        lists.require_new(some)
        lists.append(some, 0)
        lists.remove(some)
    assert (len(lists), order(lists), lists.check()) == (0, [], [])
    assert lists.entries <= 5 * 64
    assert lists.rows_seen <= 600


def test_the_logs_keep_their_bound_while_rows_go_in_any_order() -> None:
    lists = RowLists(chunk_entries=16)
    lists.require_new(np.arange(10_000))
    lists.append(np.arange(10_000), 0)
    going = np.random.default_rng(1).permutation(10_000)
    for start in range(0, len(going), 5):
        lists.remove(going[start : start + 5])
        assert lists.entries <= lists.bound()


@pytest.mark.parametrize("wrong", [rows(1), rows(5, 2), rows(-1)])
def test_a_row_that_is_held_is_not_new(wrong: Rows) -> None:
    lists = RowLists()
    lists.require_new(rows(0, 1, 2))
    lists.append(rows(0, 1, 2), 0)
    with pytest.raises(InternalError):
        lists.require_new(wrong)


@pytest.mark.parametrize("wrong", [rows(3), rows(0, 900), rows(-1)])
def test_a_row_that_is_not_held_is_refused(wrong: Rows) -> None:
    lists = RowLists()
    with pytest.raises(InternalError):
        lists.require_held(wrong)
    lists.require_new(rows(0, 1, 2))
    lists.append(rows(0, 1, 2), 0)
    with pytest.raises(InternalError):
        lists.require_held(wrong)


def test_check_finds_a_lost_entry() -> None:
    lists = RowLists()
    lists.require_new(rows(0, 1, 2))
    lists.append(rows(0, 1, 2), 0)
    lists._latest[1] += 100
    assert any("current entries" in line for line in lists.check())


def test_of_rows_named_twice_the_last_place_counts() -> None:
    assert distinct_last(rows(3, 1, 3, 2, 1)).tolist() == [3, 2, 1]
    assert distinct_last(rows(5, 4)).tolist() == [5, 4]
