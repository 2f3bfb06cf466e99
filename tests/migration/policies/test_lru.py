"""Exact LRU order against OrderedDict."""

from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkv.migration.policies.lru import Lru
from hybridkv.tiers.replacement import Policy, Rows

ROWS = st.lists(st.integers(0, 40), max_size=30)
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "touch", "remove", "scan"]), ROWS), max_size=40)


def rows(*numbers: int) -> Rows:
    return np.array(numbers, np.int64)


def order(policy: Policy) -> list[int]:
    return [row for window in policy.scan() for row in window.tolist()]


@settings(deadline=None)
@given(STEPS)
def test_equals_an_ordered_dict(steps: list[tuple[str, list[int]]]) -> None:
    lru, model = Lru(), OrderedDict[int, None]()
    for step, numbers in steps:
        distinct = list(dict.fromkeys(numbers))
        if step == "insert":
            new = [row for row in distinct if row not in model]
            lru.inserted(rows(*new), 0.0)
            model.update(dict.fromkeys(new))
        elif step == "touch":
            known = [row for row in numbers if row in model]
            lru.touched(rows(*known), 0.0)
            for row in known:
                model.move_to_end(row)
        elif step == "remove":
            gone = [row for row in distinct if row in model]
            lru.removed(rows(*gone))
            for row in gone:
                del model[row]
        else:
            assert order(lru) == list(model)
        assert len(lru) == len(model)
        assert lru.check() == []
    assert order(lru) == list(model)


def test_last_in_a_batch_is_most_recent_even_when_a_row_repeats() -> None:
    lru = Lru()
    lru.inserted(rows(1, 2, 3), 0.0)
    lru.touched(rows(3, 1, 3, 2, 1), 1.0)
    assert order(lru) == [3, 2, 1]
