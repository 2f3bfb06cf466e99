"""What tells the classic policies from one another, each by a few rows."""

import numpy as np

from hybridkv.migration.policies.arc import Arc
from hybridkv.migration.policies.clock import Clock
from hybridkv.migration.policies.fifo import Fifo
from hybridkv.migration.policies.gdsf import Gdsf
from hybridkv.migration.policies.lfu import Lfu
from hybridkv.migration.policies.s3fifo import S3Fifo
from tests.migration.policies.facts import Facts, order, rows, serve


def test_fifo_heeds_no_use() -> None:
    fifo = Fifo()
    serve(fifo, 1, 2, 3)
    fifo.touched(rows(1), 1.0)
    assert order(fifo) == [1, 2, 3]


def test_clock_takes_unused_rows_first_and_passed_ones_lose_their_bit() -> None:
    clock = Clock(Facts())
    serve(clock, 1, 2, 3, 4)
    clock.touched(rows(1, 3), 1.0)
    assert order(clock) == [2, 4, 1, 3]
    clock.removed(rows(2))  # the hand passed 1 on its way to 2
    assert order(clock) == [4, 1, 3]
    clock.removed(rows(4, 1))  # and 3
    serve(clock, 5)
    assert order(clock) == [3, 5]


def test_clock_takes_clean_rows_before_dirty_ones_of_the_same_use() -> None:
    facts = Facts()
    clock = Clock(facts)
    facts.dirty_rows = {1, 3}
    serve(clock, 1, 2, 3, 4)
    clock.touched(rows(2), 1.0)
    assert order(clock) == [4, 1, 3, 2]


def test_a_block_that_was_used_before_it_came_down_is_no_newcomer_to_clock() -> None:
    facts = Facts()
    clock = Clock(facts)
    facts.accesses_of = {1: 2.0}
    clock.inserted(rows(1, 2), 0.0)
    clock.touched(rows(1, 2), 1.0)
    assert order(clock) == [2, 1]


def test_lfu_keeps_what_is_used_often_until_that_is_long_ago() -> None:
    lfu = Lfu(Facts(), half_life_s=10.0)
    serve(lfu, 1, 2)
    for _ in range(7):
        lfu.touched(rows(1), 0.0)
    serve(lfu, 3, now=25.0)
    assert order(lfu) == [2, 3, 1]  # 8 uses 2.5 half-lives ago weigh 1.4
    serve(lfu, 4, now=35.0)
    assert order(lfu) == [2, 3, 1, 4]  # and 0.7 one later


def test_lfu_remembers_history_of_blocks_that_come_down() -> None:
    facts = Facts()
    facts.accesses_of = {1: 6.0}
    lfu = Lfu(facts, half_life_s=1e9)
    lfu.inserted(rows(1, 2), 0.0)
    lfu.touched(rows(2), 0.0)
    assert order(lfu) == [2, 1]


def test_lfu_counts_a_row_once_per_request() -> None:
    lfu = Lfu(Facts(), half_life_s=1e9)
    serve(lfu, 1, 2)
    lfu.touched(rows(1, 1, 1, 1), 1.0)
    lfu.touched(rows(2), 2.0)
    lfu.touched(rows(2), 3.0)
    assert order(lfu) == [1, 2]


def test_gdsf_prefers_small_blocks_and_ages() -> None:
    facts = Facts()
    facts.bytes_of = {1: 4096, 2: 16 * 4096, 3: 4096}
    gdsf = Gdsf(facts)
    serve(gdsf, 1, 2)
    assert order(gdsf) == [2, 1]
    gdsf.touched(rows(1), 1.0)
    for number in range(10, 60):  # newcomers that nobody uses raise the age until 1 is overtaken
        serve(gdsf, number)
        gdsf.removed(rows(order(gdsf)[0]))
    assert 1 not in order(gdsf)


def test_gdsf_does_not_age_when_a_hot_row_is_removed() -> None:
    gdsf = Gdsf(Facts())
    serve(gdsf, 1, 2)
    for _ in range(100):
        gdsf.touched(rows(1), 1.0)
    gdsf.removed(rows(1))
    gdsf.touched(rows(2), 2.0)
    serve(gdsf, 3)
    assert order(gdsf) == [3, 2]


def test_arc_learns_from_ghosts_which_list_to_favour() -> None:
    arc = Arc(Facts(capacity=4))
    serve(arc, 1, 2, 3, 4)
    arc.touched(rows(1, 2), 1.0)
    assert order(arc) == [3, 4, 1, 2]  # used once, then used again
    arc.removed(rows(3))
    serve(arc, 3, now=2.0)
    assert arc.recent_target == 1
    assert order(arc) == [1, 2, 3, 4]  # the recent list, 4, is within its target now
    arc.removed(rows(1, 2))
    serve(arc, 1, now=3.0)
    assert arc.recent_target == 0
    assert order(arc) == [4, 3, 1]


def test_arc_remembers_no_more_than_two_pools() -> None:
    arc = Arc(Facts(capacity=10))
    for number in range(200):
        serve(arc, number)
        if number % 3:
            arc.touched(rows(number), 1.0)
        arc.removed(rows(*order(arc)[: max(0, len(arc) - 10)]))
        assert len(arc) + sum(map(len, arc._ghosts)) <= 20
    assert arc.check() == []


def test_s3fifo_sends_newcomers_off_quickly_and_lets_ghosts_stay() -> None:
    facts = Facts(capacity=10)
    cache = S3Fifo(facts)
    serve(cache, *range(10))
    cache.touched(rows(0), 1.0)
    cache.touched(rows(0), 2.0)
    assert order(cache) == [1, 2, 3, 4, 5, 6, 7, 8, 0, 9]  # 0 proved itself; the small queue may keep one
    cache.removed(rows(1))
    serve(cache, 1, now=3.0)  # a ghost: joins the main queue behind 0
    assert order(cache)[:7] == [2, 3, 4, 5, 6, 7, 8]
    assert "main=2" in repr(cache)
    cache.removed(rows(*range(2, 9)))
    assert order(cache) == [0, 1, 9]


def test_s3fifo_gives_used_rows_another_round_for_each_use() -> None:
    cache = S3Fifo(Facts(capacity=10))
    serve(cache, 1, 2, 3)
    cache.removed(rows(1, 2, 3))
    serve(cache, 1, 2, 3)  # ghosts: all in the main queue
    cache.touched(rows(1), 1.0)
    assert order(cache) == [2, 3, 1]
    cache.removed(rows(2))  # 1 was passed: its use is used up, and it goes to the end
    assert order(cache) == [3, 1]


def test_a_hand_is_moved_little_by_rows_that_go_from_far_behind_it() -> None:
    clock = Clock(Facts())
    clock.inserted(np.arange(20_000), 0.0)
    clock.touched(np.arange(20_000), 0.0)
    clock.touched(np.arange(19_000), 1.0)
    clock.removed(rows(19_999))
    assert order(clock)[:2] == [19_000, 19_001]
    assert order(clock)[999] == 0  # still first of the used ones
