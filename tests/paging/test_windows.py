"""Windows: what is needed, what lies behind, what is fetched; and steady decode, where nothing may be waited for."""

import pytest

from hybridkv.paging.windows import Plan, Reach, Window, plan, reach
from hybridkv.tiers.errors import InvalidArgumentError


def test_a_position_in_the_middle() -> None:
    window = Window(window_tokens=64, sink_tokens=8, ahead_tokens=40)
    assert reach(window, 200, 1000, 16) == Reach(range(1), range(1, 8), range(8, 13), range(13, 16))


@pytest.mark.parametrize("page_tokens", [1, 3, 16])
@pytest.mark.parametrize("window", [Window(1), Window(7, 3, 5), Window(100, 50, 100)])
def test_the_ranges_are_what_their_words_say(window: Window, page_tokens: int) -> None:
    tokens = 70
    for position in range(tokens):
        seen = reach(window, position, tokens, page_tokens)
        pages = -(-tokens // page_tokens)
        spans = [*seen.sinks, *seen.behind, *seen.window, *seen.ahead]
        assert spans == list(range(len(spans)))
        now = set(range(min(window.sink_tokens, position + 1))) | set(
            range(max(0, position + 1 - window.window_tokens), position + 1)
        )
        assert {page for page in range(pages) if seen.needs(page)} == {token // page_tokens for token in now}
        soon = range(position + 1, min(tokens, position + 1 + window.ahead_tokens))
        assert all(seen.wants(token // page_tokens) for token in soon)


def test_an_empty_sequence_and_its_end_need_nothing_that_is_not_there() -> None:
    assert reach(Window(10, 4, 4), 0, 0, 16) == Reach(range(0), range(0), range(0), range(0))
    assert reach(Window(10, 4, 4), 32, 32, 16).window == range(1, 2)


def test_a_plan_is_bounded_and_cancels_what_nobody_wants() -> None:
    assert plan(range(5, 9), {1, 5, 7, 8}, {1, 7}, 2) == Plan((5,), (1,))
    assert plan(range(5, 9), {5, 6, 7, 8}, set(), 0) == Plan((), ())
    assert plan((9, 7, 5), {5, 7, 9}, set(), 2) == Plan((9, 7), ())


def test_steady_decode_with_enough_bandwidth_waits_for_nothing() -> None:
    """A window moves over 400 pages that lie lower; a page takes two steps to come, and 4 may be under way."""
    without = _faults_of_a_decode(Window(256, 16, 0))
    assert without == 400 - 17
    assert _faults_of_a_decode(Window(256, 16, 64)) <= 0.05 * without


def _faults_of_a_decode(window: Window) -> int:
    page_tokens, tokens = 16, 6400
    resident = set(range(17))
    comes_at: dict[int, int] = {}
    faults = 0
    for step, position in enumerate(range(256, tokens, page_tokens)):
        resident |= {page for page, at in comes_at.items() if at <= step}
        comes_at = {page: at for page, at in comes_at.items() if at > step}
        seen = reach(window, position, tokens, page_tokens)
        missing = {page for page in (*seen.sinks, *seen.window) if page not in resident}
        faults += len(missing)
        resident |= missing
        for page in plan(seen.ahead, set(seen.ahead) - resident, set(comes_at), 4).fetch:
            comes_at[page] = step + 2
    return faults


@pytest.mark.parametrize("values", [(0, 0, 0), (1, -1, 0), (1, 0, -1), (1.5, 0, 0)])
def test_bad_windows_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^window\."):
        Window(*values)
