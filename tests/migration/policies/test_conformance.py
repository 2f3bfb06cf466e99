"""What every policy must do: yield each row once, refuse wrong calls, stay bounded, hand over to another."""

import sys
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkv.migration.policies import POLICY_NAMES, make_policy, succeed
from hybridkv.migration.simulate import PlainFacts
from hybridkv.tiers.errors import InternalError, InvalidArgumentError
from hybridkv.tiers.replacement import Policy
from tests.migration.policies.facts import Facts, order, rows, serve

EVERY = pytest.mark.parametrize("name", POLICY_NAMES)
ROWS = st.lists(st.integers(0, 40), max_size=30)
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "touch", "remove", "evict", "shrink"]), ROWS), max_size=40)


@EVERY
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_every_held_row_is_yielded_once(name: str, steps: list[tuple[str, list[int]]]) -> None:
    facts = Facts(capacity=20)
    policy, held, now = make_policy(name, facts), set[int](), 0.0
    for step, numbers in steps:
        now += 1.5
        distinct = list(dict.fromkeys(numbers))
        if step == "insert":
            new = [row for row in distinct if row not in held]
            policy.inserted(rows(*new), now)
            held.update(new)
        elif step == "touch":
            policy.touched(rows(*[row for row in numbers if row in held]), now)
        elif step == "remove":
            policy.removed(rows(*[row for row in distinct if row in held]))
            held.difference_update(distinct)
        elif step == "evict":
            going = order(policy)[: len(distinct)]
            policy.removed(rows(*going))
            held.difference_update(going)
        else:
            facts.capacity = 3 + len(numbers)
        found = order(policy)
        assert sorted(found) == sorted(held)
        assert order(policy) == found
        assert len(policy) == len(held)
        assert policy.check() == []


@EVERY
def test_wrong_calls_are_refused_and_change_nothing(name: str) -> None:
    policy = make_policy(name, Facts())
    serve(policy, 0, 1, 2)
    before = order(policy)
    for wrong in (rows(1), rows(5, 2), rows(-1)):
        with pytest.raises(InternalError):
            policy.inserted(wrong, 1.0)
    for wrong in (rows(3), rows(0, 900), rows(-1)):
        with pytest.raises(InternalError):
            policy.touched(wrong, 1.0)
        with pytest.raises(InternalError):
            policy.removed(wrong)
    assert order(policy) == before
    assert (len(policy), policy.check()) == (3, [])


@EVERY
def test_a_million_distinct_blocks_leave_no_growth(name: str) -> None:
    """Rows are reused, identities are not: what the policy holds is the same size after 10^5 blocks and after 10^6."""
    facts = PlainFacts(1000)
    policy, sizes = make_policy(name, facts), []
    for step in range(1000):
        new = np.arange(1000) + 1000 * (step % 2)
        facts.identities = lambda rows, step=step: (rows + 2000 * step).astype(np.uint64)  # type: ignore[method-assign, misc]
        policy.inserted(new, float(step))
        policy.touched(new, float(step))
        if len(policy) > 1000:
            policy.removed(np.sort(np.concatenate(list(policy.scan()))[:1000]))
            left = np.concatenate(list(policy.scan()))
            policy.removed(left)
            policy.inserted(new, float(step))
        if step in (100, 999):
            sizes.append(deep_size(policy))
    assert policy.check() == []
    assert sizes[1] <= 1.5 * sizes[0]


def deep_size(thing: object, seen: set[int] | None = None) -> int:
    """Bytes of an object and of what it refers to, this package's objects, containers and arrays."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return int(thing.nbytes)
    if isinstance(thing, dict):
        inner = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set):
        inner = list(thing)
    elif type(thing).__module__.startswith("hybridkv"):
        slots = [getattr(thing, name) for name in getattr(type(thing), "__slots__", ())]
        inner = [*getattr(thing, "__dict__", {}).values(), *slots]
    else:
        inner = []
    return sys.getsizeof(thing) + sum(deep_size(part, seen) for part in inner)


@pytest.mark.parametrize(("old", "new"), list(permutations(["lru", "s3fifo", "rhq"], 2)))
def test_a_successor_takes_over_all_rows(old: str, new: str) -> None:
    facts = Facts(capacity=10)
    before, after = make_policy(old, facts), make_policy(new, facts)
    serve(before, 5, 4, 3, 2, 1, now=1.0)
    before.touched(rows(2, 1), 2.0)
    succeed(before, after, 3.0)
    assert sorted(order(after)) == [1, 2, 3, 4, 5]
    assert after.check() == []
    if new == "lru":
        assert order(after) == order(before)


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidArgumentError, match="lru, lfu, fifo, clock, arc, s3fifo, gdsf, rhq"):
        make_policy("mru", Facts())


@EVERY
def test_shows_its_state(name: str) -> None:
    policy: Policy = make_policy(name, Facts())
    empty = repr(policy)
    serve(policy, 1, 2)
    assert type(policy).__name__ in empty
    assert repr(policy) != empty
