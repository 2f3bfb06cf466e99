"""Load or compute: pure figures."""

import numpy as np
import pytest

from hybridkv.migration.estimate import LaneLoad, blocks_worth_loading, landing_times
from hybridkv.migration.speed import STALE_S, LaneSpeed

KB = 1000
FAST, SLOW = 0, 1


def test_blocks_of_one_source_queue_behind_one_another_and_behind_what_waits_already() -> None:
    ways = {FAST: [LaneLoad(10.0 * KB, bytes_ahead=5 * KB)]}
    landing = landing_times(np.array([FAST, FAST, FAST]), ways, KB)
    assert landing.tolist() == pytest.approx([0.6, 0.7, 0.8])


def test_two_legs_are_passed_one_after_the_other() -> None:
    ways = {SLOW: [LaneLoad(1.0 * KB, 0), LaneLoad(10.0 * KB, 10 * KB)]}
    assert landing_times(np.array([SLOW, SLOW]), ways, KB).tolist() == pytest.approx([1.0 + 1.1, 2.0 + 1.2])


def test_a_block_counts_as_landed_when_all_before_it_have() -> None:
    ways = {FAST: [LaneLoad(10.0 * KB, 0)], SLOW: [LaneLoad(1.0 * KB, 0)]}
    assert landing_times(np.array([SLOW, FAST]), ways, KB).tolist() == pytest.approx([1.0, 1.0])


def test_a_lane_of_unknown_speed_is_taken_for_no_delay() -> None:
    assert landing_times(np.array([FAST]), {FAST: [LaneLoad(None, 1 << 40)]}, KB).tolist() == [0.0]


@pytest.mark.parametrize(
    ("landing_s", "recompute_s", "kept"),
    [
        ([1.0, 2.0, 3.0], 2.0, 3),  # loading is faster throughout
        ([1.0, 2.0, 3.0], 0.5, 0),  # computing is
        ([0.1, 0.2, 5.0, 6.0], 1.0, 2),  # the tail lies on a slow tier
        ([9.0, 9.1, 9.2, 9.3], 2.0, 0),  # a queue that is longer than the work
        ([9.0, 9.1, 9.2, 9.3], 3.0, 4),  # ... and one that is not
        ([5.0, 5.0, 5.0, 5.0], 2.0, 4),  # a slow head, and the rest for nothing
        ([1.0, 2.0], 1.0, 2),  # of equal choices the one that computes least
        ([0.5], 0.0, 0),  # computing for nothing
    ],
)
def test_as_many_are_loaded_as_make_the_whole_soonest(landing_s: list[float], recompute_s: float, kept: int) -> None:
    assert blocks_worth_loading(np.array(landing_s), recompute_s) == kept


def test_a_lane_is_as_fast_as_its_recent_batches() -> None:
    speed = LaneSpeed()
    assert speed.bytes_per_s(0.0) is None
    speed.note(1000, 1.0, now=1.0)
    assert speed.bytes_per_s(1.0) == 1000.0
    for _ in range(40):
        speed.note(4000, 1.0, now=2.0)
    assert speed.bytes_per_s(2.0) == pytest.approx(4000, rel=0.01)


def test_a_large_batch_weighs_more_than_a_small_one() -> None:
    speed = LaneSpeed()
    speed.note(1_000_000, 1.0, now=1.0)
    speed.note(10, 0.1, now=1.0)
    assert speed.bytes_per_s(1.0) == pytest.approx(800_010 / 0.9)


def test_what_says_nothing_is_not_counted_and_an_old_speed_is_not_believed() -> None:
    speed = LaneSpeed()
    speed.note(1000, 0.0, now=1.0)
    speed.note(0, 1.0, now=1.0)
    assert speed.bytes_per_s(1.0) is None
    speed.note(1000, 1.0, now=1.0)
    assert speed.bytes_per_s(1.0 + STALE_S) == 1000.0
    assert speed.bytes_per_s(1.1 + STALE_S) is None
