"""Patterns are found after three equal steps, earn their reach, and end with the first step that differs."""

from hybridkv.paging.patterns import Accesses, Pattern, detect, predicted


def test_sequential_strided_and_backwards() -> None:
    assert detect([5, 6, 7, 8]) == Pattern(1, 3)
    assert detect([0, 9, 3, 6, 9, 12]) == Pattern(3, 3)
    assert detect([9, 8, 7, 6, 5]) == Pattern(-1, 4)


def test_no_pattern_in_few_steps_or_in_a_step_that_differs() -> None:
    assert detect([]) is None
    assert detect([1, 2, 3]) is None
    assert detect([1, 2, 3, 4, 9]) is None
    assert detect([3, 3, 3, 3, 3]) is None


def test_a_page_that_is_accessed_again_counts_once() -> None:
    assert detect([1, 1, 2, 2, 2, 3, 4]) == Pattern(1, 3)


def test_what_comes_next_is_bounded_by_the_space_the_limit_and_what_was_seen() -> None:
    assert predicted(Pattern(1, 3), 10, 100, 64) == (11, 12, 13, 14, 15, 16)
    assert predicted(Pattern(2, 30), 10, 100, 4) == (12, 14, 16, 18)
    assert predicted(Pattern(2, 30), 96, 100, 4) == (98,)
    assert predicted(Pattern(-4, 3), 5, 100, 4) == (1,)


def test_a_moving_window_is_sequential() -> None:
    accesses = Accesses()
    for start in range(5):
        accesses.note([0, *range(start + 10, start + 20)])
    assert accesses.pattern == Pattern(1, 13)
    assert accesses.next_pages(1000, 4) == (24, 25, 26, 27)
    accesses.note([500])
    assert accesses.next_pages(1000, 4) == ()
