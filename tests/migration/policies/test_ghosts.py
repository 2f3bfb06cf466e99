"""Ghosts against an ordered dict: what is remembered, for how long, and in how much memory."""

from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkv.migration.policies.ghosts import Ghosts, Identities


def identities(*numbers: int) -> Identities:
    return np.array(numbers, np.uint64)


STEPS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 60), max_size=12, unique=True)), max_size=60)


@settings(deadline=None)
@given(STEPS, st.integers(1, 8))
def test_remembers_the_last_pushed(steps: list[tuple[bool, list[int]]], limit: int) -> None:
    """Up to 8 ghosts share one bucket of 16, so that nothing is lost to the index."""
    ghosts, model, pushes = Ghosts(limit), OrderedDict[int, int](), 0
    for push, numbers in steps:
        if push:
            new = [number for number in numbers if number not in model]
            ghosts.push(identities(*new), np.array(new, np.int64) + 100)
            for number in new:
                model[number] = pushes
                pushes += 1
            model = OrderedDict((number, at) for number, at in model.items() if at >= pushes - limit)
        else:
            found, tags = ghosts.take(identities(*numbers))
            assert found.tolist() == [number in model for number in numbers]
            assert tags[found].tolist() == [number + 100 for number in numbers if number in model]
            for number in numbers:
                model.pop(number, None)
        assert len(ghosts) == len(model)
        assert ghosts.check() == []


def test_tells_what_it_forgets_once() -> None:
    ghosts = Ghosts(3)
    assert ghosts.push(identities(1, 2, 3), np.array([10, 20, 30])).tolist() == []
    ghosts.take(identities(2))
    assert ghosts.push(identities(4, 5), np.array([40, 50])).tolist() == [10]
    assert ghosts.push(identities(*range(6, 14)), np.arange(60, 68)).tolist() == [30, 40, 50, 60, 61, 62, 63, 64]
    assert ghosts.resize(1).tolist() == [65, 66]
    assert ghosts.take(identities(13))[1].tolist() == [67]


def test_trim_forgets_the_oldest() -> None:
    ghosts = Ghosts(1000)
    ghosts.push(identities(*range(900)), np.arange(900))
    ghosts.take(identities(*range(0, 900, 2)))
    ghosts.trim(100)
    assert (len(ghosts), ghosts.check()) == (100, [])
    assert ghosts.take(identities(*range(900)))[0].tolist() == [n % 2 == 1 and n > 699 for n in range(900)]


def test_few_are_lost_to_full_buckets() -> None:
    ghosts = Ghosts(20_000)
    for start in range(0, 60_000, 500):
        ghosts.push(np.arange(start, start + 500).astype(np.uint64), np.arange(500))
    found, _ = ghosts.take(np.arange(40_000, 60_000).astype(np.uint64))
    assert found.mean() > 0.99


def test_a_million_distinct_identities_leave_no_growth() -> None:
    ghosts = Ghosts(1000)
    held = ghosts._index.size, ghosts._tags.size
    for start in range(0, 1_000_000, 10_000):
        ghosts.push(np.arange(start, start + 10_000).astype(np.uint64), np.zeros(10_000, np.int64))
    assert (len(ghosts), ghosts._index.size, ghosts._tags.size) == (1000, *held)
