"""Choice of victims against a plain restatement of law 7."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.victims import choose_victims


def windows(order: list[int], size: int) -> Iterator[Rows]:
    for start in range(0, len(order), size):
        yield np.array(order[start : start + size], np.int64)


def choose(
    order: list[int],
    parents: list[int],
    want: int,
    *,
    eligible: list[bool] | None = None,
    weights: list[int] | None = None,
    extra_blocking: dict[int, int] | None = None,
    window: int = 3,
) -> list[int]:
    """`choose_victims` over a forest given as a list of parents; every row blocks its parent."""
    blocking = [parents.count(row) + (extra_blocking or {}).get(row, 0) for row in range(len(parents))]
    free = np.array(eligible or [True] * len(parents), np.bool_)
    return choose_victims(
        windows(order, window),
        free.__getitem__,
        np.array(blocking, np.int64).__getitem__,
        np.array(parents, np.int64).__getitem__,
        want,
        None if weights is None else np.array(weights, np.int64).__getitem__,
    )


CHAIN = [NO_ROW, 0, 1, 2, 3]


def test_a_tail_and_its_ancestors_go_in_one_pass() -> None:
    assert choose([4, 3, 2, 1, 0], CHAIN, 4) == [4, 3, 2, 1]


def test_parents_passed_by_are_picked_right_after_their_last_child() -> None:
    assert choose([0, 1, 2, 3, 4], CHAIN, 3) == [4, 3, 2]
    assert choose([0, 1, 2, 3, 4], CHAIN, 9) == [4, 3, 2, 1, 0]


def test_passing_by_whole_windows_of_blocked_rows_forgets_none() -> None:
    assert choose([0, 1, 2, 3, 4], CHAIN, 9, window=1) == [4, 3, 2, 1, 0]


def test_a_parent_waits_for_all_its_children() -> None:
    siblings = [NO_ROW, 0, 0, NO_ROW]
    assert choose([0, 1, 3, 2], siblings, 9) == [1, 3, 2, 0]
    assert choose([0, 1, 3, 2], siblings, 2) == [1, 3]


def test_a_child_that_may_not_go_keeps_its_ancestors() -> None:
    assert choose([4, 3, 2, 1, 0], CHAIN, 9, eligible=[True, True, True, False, True]) == [4]


def test_a_child_in_a_tier_above_keeps_its_parent() -> None:
    assert choose([4, 3, 2, 1, 0], CHAIN, 9, extra_blocking={2: 1}) == [4, 3]


def test_a_row_that_is_not_eligible_is_not_picked_when_its_children_go() -> None:
    assert choose([0, 1, 2, 3, 4], CHAIN, 9, eligible=[True, True, False, True, True]) == [4, 3]


def test_stops_at_the_weight_asked_for() -> None:
    assert choose([4, 3, 2, 1, 0], CHAIN, 100, weights=[64, 64, 64, 64, 64]) == [4, 3]
    assert choose([0, 1, 2, 3, 4], CHAIN, 100, weights=[64, 64, 64, 64, 64]) == [4, 3]


def test_asking_for_nothing_takes_nothing_and_an_empty_scan_gives_nothing() -> None:
    assert choose([4, 3], CHAIN, 0) == []
    assert choose([], CHAIN, 5) == []


def test_stops_scanning_once_it_has_enough() -> None:
    seen = []

    def endless() -> Iterator[Rows]:
        for row in range(1000):
            seen.append(row)
            yield np.array([row], np.int64)

    none = np.full(1000, NO_ROW).__getitem__
    assert choose_victims(endless(), lambda rows: rows >= 0, np.zeros(1000, np.int64).__getitem__, none, 3) == [0, 1, 2]
    assert len(seen) <= 4


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool], dict[int, int], int, int]:
    count = draw(st.integers(1, 14))
    parents = [draw(st.integers(NO_ROW, row - 1)) for row in range(count)]
    order = draw(st.permutations(range(count)))
    eligible = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    above = draw(st.dictionaries(st.integers(0, count - 1), st.just(1), max_size=2))
    return order, parents, eligible, above, draw(st.integers(0, count + 1)), draw(st.integers(1, 5))


@given(forests())
def test_equals_a_plain_restatement(case: tuple[list[int], list[int], list[bool], dict[int, int], int, int]) -> None:
    order, parents, eligible, above, want, window = case
    picked: list[int] = []

    def may_go(row: int) -> bool:
        children = [child for child, parent in enumerate(parents) if parent == row]
        return eligible[row] and not above.get(row) and all(child in picked for child in children)

    for place, row in enumerate(order):
        climbing = row
        while climbing != NO_ROW and climbing in order[: place + 1] and may_go(climbing) and len(picked) < want:
            picked.append(climbing)
            climbing = parents[climbing]
    assert choose(order, parents, want, eligible=eligible, extra_blocking=above, window=window) == picked
