"""Each rule of the planner by lists: what moves, in which order, why, and what stays."""

import math
from typing import Any

import numpy as np
import pytest

from hybridkv.migration.planner import Direction, Move, draining, due, plan, promotions
from hybridkv.migration.view import PoolView, Thresholds
from hybridkv.tiers.errors import InternalError, InvalidArgumentError
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import Reason, Tier

CPU = PoolId(Tier.CPU)
OFF = Thresholds()
NOW = 1000.0

DEFAULTS: dict[str, tuple[Any, Any]] = {
    "slot_bytes": (10, np.int64),
    "last_access": (NOW, np.float64),
    "arrived": (0.0, np.float64),
    "last_moved": (-math.inf, np.float64),
    "accesses": (5.0, np.float64),
    "window_accesses": (0, np.int64),
    "eligible": (True, np.bool_),
    "highest": (True, np.bool_),
    "orphan": (False, np.bool_),
    "blocking_children": (0, np.int64),
    "parents": (NO_ROW, np.int64),
}


def view(rows: list[int], *, used: int | None = None, capacity: int = 100, **given: Any) -> PoolView:
    """A CPU pool of 100 bytes; columns that are not given have harmless values."""
    columns: dict[str, Any] = {
        name: np.array(given.pop(name, [value] * len(rows)), kind) for name, (value, kind) in DEFAULTS.items()
    }
    used = len(rows) * 10 if used is None else used
    return PoolView(CPU, capacity, used, np.array(rows, np.int64), **columns, **given)


def told(moves: list[Move]) -> list[tuple[int, str, str]]:
    return [(move.row, move.direction.value, move.reason.value) for move in moves]


def moved(moves: list[Move]) -> list[int]:
    return [move.row for move in moves]


FULL = list(range(20, 30))


class TestWatermark:
    marks = Thresholds(high_watermark=0.9, low_watermark=0.7)

    def test_above_high_demotes_the_coldest_until_low(self) -> None:
        moves = plan(view(FULL), self.marks, NOW)
        assert told(moves) == [(row, "demote", "watermark") for row in (20, 21, 22)]
        assert dict(moves[0].figures) == {"used_fraction": 1.0, "high_watermark": 0.9, "low_watermark": 0.7}

    def test_at_high_nothing_moves(self) -> None:
        assert plan(view(FULL[:9]), self.marks, NOW) == []

    def test_draining_goes_on_between_the_marks(self) -> None:
        assert moved(plan(view(FULL[:8], draining=True), self.marks, NOW)) == [20]
        assert draining(view(FULL[:8]), self.marks, before=True)
        assert not draining(view(FULL[:7]), self.marks, before=True)

    def test_bytes_on_their_way_out_are_not_moved_twice(self) -> None:
        assert plan(view(FULL, leaving_bytes=30), self.marks, NOW) == []
        assert moved(plan(view(FULL, leaving_bytes=20, draining=True), self.marks, NOW)) == [20]

    def test_marks_of_one_are_off(self) -> None:
        assert plan(view(FULL, used=200), OFF, NOW) == []

    def test_leased_and_recently_moved_blocks_are_passed_by(self) -> None:
        marks = Thresholds(high_watermark=0.9, low_watermark=0.7, cooldown_s=60.0)
        busy = view(FULL, eligible=[False] + [True] * 9, last_moved=[-math.inf, NOW - 59, NOW - 60] + [-math.inf] * 7)
        assert moved(plan(busy, marks, NOW)) == [22, 23, 24]

    def test_a_chain_goes_tail_first_and_a_parent_never_before_its_child(self) -> None:
        parents = [NO_ROW, 20, 21] + [NO_ROW] * 7
        chain = view(FULL, parents=parents, blocking_children=[1, 1, 0] + [0] * 7)
        assert moved(plan(chain, self.marks, NOW)) == [22, 21, 20]
        kept = view(FULL, parents=parents, blocking_children=[1, 1, 1] + [0] * 7)
        assert moved(plan(kept, self.marks, NOW)) == [23, 24, 25]

    def test_orphans_go_first_then_second_copies(self) -> None:
        mixed = view(FULL, orphan=[row == 29 for row in FULL], highest=[row != 27 for row in FULL])
        assert told(plan(mixed, self.marks, NOW)) == [
            (29, "demote", "watermark"),
            (27, "evict", "watermark"),
            (20, "demote", "watermark"),
        ]

    def test_a_second_copy_goes_though_its_children_lie_above_and_frees_no_parent(self) -> None:
        pair = view(
            FULL,
            highest=[True, False] + [True] * 8,
            parents=[NO_ROW, 20] + [NO_ROW] * 8,
            blocking_children=[1, 3] + [0] * 8,
        )
        assert moved(plan(pair, self.marks, NOW)) == [21, 22, 23]

    def test_the_lowest_tier_evicts(self) -> None:
        assert {move.direction for move in plan(view(FULL, lowest=True), self.marks, NOW)} == {Direction.EVICT}

    def test_blocks_of_different_sizes_count_their_bytes(self) -> None:
        assert moved(plan(view(FULL, slot_bytes=[25] + [8] * 9, used=97), self.marks, NOW)) == [20, 21]


class TestIdle:
    marks = Thresholds(idle_timeout_s=600.0, cooldown_s=30.0)

    def test_past_the_timeout_goes_down_with_the_figures(self) -> None:
        moves = plan(view([1, 2, 3], last_access=[NOW - 601, NOW - 600, NOW]), self.marks, NOW)
        assert told(moves) == [(1, "demote", "idle")]
        assert moves[0].figures == (("idle_s", 601.0), ("idle_timeout_s", 600.0))
        assert moves[0].explain() == "demote from cpu by idle (idle_s=601, idle_timeout_s=600)"

    def test_never_drops_a_last_copy(self) -> None:
        old = view([1, 2], last_access=[0.0, 0.0], highest=[True, False], lowest=True)
        assert told(plan(old, self.marks, NOW)) == [(2, "evict", "idle")]

    def test_a_recently_moved_block_rests(self) -> None:
        assert plan(view([1], last_access=[0.0], last_moved=[NOW - 29]), self.marks, NOW) == []

    def test_an_idle_parent_of_a_busy_child_stays(self) -> None:
        family = view([1, 2], last_access=[0.0, NOW], parents=[NO_ROW, 1], blocking_children=[1, 0])
        assert plan(family, self.marks, NOW) == []


class TestFewAccesses:
    marks = Thresholds(demote_below_accesses=2.0, min_residency_s=100.0)

    def test_goes_down_after_its_residency_only(self) -> None:
        rare = view([1, 2, 3], accesses=[1.9, 2.0, 1.0], arrived=[NOW - 100, 0.0, NOW - 99])
        moves = plan(rare, self.marks, NOW)
        assert told(moves) == [(1, "demote", "demote_below_accesses")]
        assert moves[0].figures == (("accesses", 1.9), ("demote_below_accesses", 2.0))

    def test_never_drops_a_last_copy(self) -> None:
        assert plan(view([1], accesses=[0.0], lowest=True), self.marks, NOW) == []


class TestPressure:
    def test_returns_what_was_asked_for_whatever_the_cooldown(self) -> None:
        moves = plan(view([1, 2, 3], last_moved=[NOW] * 3, return_bytes=15), Thresholds(cooldown_s=60.0), NOW)
        assert told(moves) == [(1, "demote", "memory_pressure"), (2, "demote", "memory_pressure")]
        assert dict(moves[0].figures)["return_bytes"] == 15

    def test_its_bytes_count_towards_the_watermark(self) -> None:
        moves = plan(view(FULL, return_bytes=20), Thresholds(high_watermark=0.9, low_watermark=0.7), NOW)
        assert [move.reason for move in moves] == [Reason.PRESSURE, Reason.PRESSURE, Reason.WATERMARK]


def test_a_block_moves_once_and_its_parent_may_follow_by_another_rule() -> None:
    rules = Thresholds(idle_timeout_s=600.0, demote_below_accesses=2.0)
    pair = view([1, 2], last_access=[NOW, 0.0], accesses=[1.0, 1.0], parents=[NO_ROW, 1], blocking_children=[1, 0])
    assert told(plan(pair, rules, NOW)) == [(2, "demote", "idle"), (1, "demote", "demote_below_accesses")]


@pytest.mark.parametrize(
    ("thresholds", "used", "before", "finds"),
    [
        (Thresholds(), 100, False, False),
        (Thresholds(high_watermark=0.5, low_watermark=0.2), 50, False, False),
        (Thresholds(high_watermark=0.5, low_watermark=0.2), 51, False, True),
        (Thresholds(high_watermark=0.5, low_watermark=0.2), 50, True, True),
        (Thresholds(high_watermark=0.5, low_watermark=0.2), 20, True, False),
        (Thresholds(idle_timeout_s=30), 50, False, False),
        (Thresholds(idle_timeout_s=29.9), 50, False, True),
        (Thresholds(demote_below_accesses=2), 50, False, True),
    ],
)
def test_a_plan_is_due_where_it_finds_something(thresholds: Thresholds, used: int, before: bool, finds: bool) -> None:
    now, last_access = 100.0, [70.0, 90.0]
    looked_at = view([1, 2], used=used, last_access=last_access, accesses=[1.0, 1.0], draining=before)
    idle = thresholds.idle_timeout_s is not None and now - min(last_access) > thresholds.idle_timeout_s
    assert due(looked_at.staying_fraction, thresholds, before, any_idle=idle) == finds
    assert bool(plan(looked_at, thresholds, now)) == finds


def test_an_empty_view_plans_nothing() -> None:
    assert plan(view([], used=100, return_bytes=5), Thresholds(high_watermark=0.5, low_watermark=0.1), NOW) == []
    assert promotions(view([]), Thresholds(promote_at_accesses=1, promote_window_s=1.0), NOW, 100) == []


class TestPromotions:
    marks = Thresholds(promote_at_accesses=3, promote_window_s=60.0, cooldown_s=30.0)

    def test_the_kth_access_within_the_window_goes_up_hottest_first(self) -> None:
        used = view([1, 2, 3, 4], window_accesses=[3, 2, 5, 3])
        moves = promotions(used, self.marks, NOW, 1000)
        assert told(moves) == [(row, "promote", "promote_at_accesses") for row in (3, 4, 1)]
        assert moves[0].figures == (("window_accesses", 5.0), ("promote_at_accesses", 3.0))

    def test_no_more_than_there_is_room_for(self) -> None:
        used = view([1, 2, 3], window_accesses=[3, 4, 5])
        assert moved(promotions(used, self.marks, NOW, 29)) == [3, 2]
        assert promotions(used, self.marks, NOW, 9) == []

    @pytest.mark.parametrize(
        "kept", [{"eligible": [False]}, {"highest": [False]}, {"last_moved": [NOW - 29]}, {"last_access": [NOW - 61]}]
    )
    def test_what_stays(self, kept: dict[str, Any]) -> None:
        assert promotions(view([1], window_accesses=[9], **kept), self.marks, NOW, 1000) == []

    def test_zero_is_off(self) -> None:
        assert promotions(view([1], window_accesses=[9]), OFF, NOW, 1000) == []


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("high_watermark", {"high_watermark": 1.1}),
        ("low_watermark", {"high_watermark": 0.8, "low_watermark": 0.8}),
        ("idle_timeout_s", {"idle_timeout_s": 0.0}),
        ("cooldown_s", {"cooldown_s": -1.0}),
        ("promote_window_s", {"promote_at_accesses": 2}),
    ],
)
def test_thresholds_that_make_no_sense_are_refused_by_name(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        Thresholds(**given)
    assert refused.value.field == field


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InternalError, match="orphan"):
        view([1, 2], orphan=[False])
