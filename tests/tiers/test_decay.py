import math

import numpy as np
import pytest

from hybridkv.tiers.decay import accessed, accessed_in_window, decayed


def test_halves_with_every_half_life() -> None:
    got = decayed(np.array([8.0, 8.0, 8.0]), np.array([100.0, 70.0, 40.0]), 100.0, 30.0)
    assert got.tolist() == [8.0, 4.0, 2.0]


def test_an_infinite_half_life_never_forgets() -> None:
    assert decayed(np.array([5.0]), np.array([0.0]), 1e9, math.inf).tolist() == [5.0]


def test_a_clock_that_went_back_is_no_time() -> None:
    assert decayed(np.array([5.0]), np.array([10.0]), 3.0, 1.0).tolist() == [5.0]


def test_two_steps_equal_one() -> None:
    start = np.array([3.0])
    once = decayed(start, np.array([0.0]), 50.0, 20.0)
    twice = decayed(decayed(start, np.array([0.0]), 17.0, 20.0), np.array([17.0]), 50.0, 20.0)
    assert twice == pytest.approx(once)


def test_an_access_adds_one_to_what_is_left() -> None:
    assert accessed(np.array([2.0]), np.array([0.0]), 10.0, 10.0).tolist() == [2.0]


def test_the_kth_access_counts_within_the_window_only() -> None:
    counts, opened = np.array([0, 0]), np.array([-np.inf, -np.inf])
    seen = []
    for now in (0.0, 4.0, 9.0, 11.0, 12.0):
        counts, opened = accessed_in_window(counts, opened, now, 10.0)
        seen.append(int(counts[0]))
    assert seen == [1, 2, 3, 1, 2]
    assert opened.tolist() == [11.0, 11.0]
