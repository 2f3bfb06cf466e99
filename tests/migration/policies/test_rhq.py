"""Reuse-hazard queues: what is learned, what is kept for it, and the bounds of what is remembered."""

import numpy as np
import pytest

from hybridkv.migration.policies.cohorts import Cohorts
from hybridkv.migration.policies.hazard import BINS, CLASSES, Hazard, bin_of, cell_of, class_of, keeping_value
from hybridkv.migration.policies.lru import Lru
from hybridkv.migration.policies.rhq import Rhq, merged
from hybridkv.migration.simulate import PlainFacts, replay_one_tier
from tests.migration.policies.facts import Facts, order, rows, serve
from tests.migration.samples import sample


def test_classes_and_bins() -> None:
    assert class_of(np.array([0, 1, 2, 3, 4, 5, 16, 17, 65535])).tolist() == [0, 0, 1, 2, 2, 3, 3, 4, 4]
    ages = np.array([-5.0, 0.0, 0.42, 1.0, 1.83, 3.0, 1e3, 1e12])
    assert bin_of(ages).tolist() == [0, 0, 1, 2, 3, 4, 19, BINS - 1]
    assert np.array_equal(bin_of(ages[1:-1]), np.floor(2 * np.log2(1 + ages[1:-1])))


def test_value_is_the_best_reuses_per_block_second() -> None:
    hazard = np.random.default_rng(1).random((CLASSES, BINS)) * (np.arange(CLASSES)[:, None] < CLASSES - 1)
    edges = 2 ** (np.arange(BINS + 1) / 2) - 1
    value = keeping_value(hazard)
    assert not value[CLASSES - 1].any()
    for kind, k in ((0, 0), (1, 7), (2, BINS - 1)):
        best, survives, reuses, seconds = 0.0, 1.0, 0.0, 0.0
        for j in range(k, BINS):
            reuses += survives * hazard[kind, j]
            seconds += survives * (1 - hazard[kind, j] / 2) * (edges[j + 1] - edges[j])
            best = max(best, reuses / seconds)
            survives *= 1 - hazard[kind, j]
        assert value[kind, k] == pytest.approx(best)


def test_until_something_is_learned_the_oldest_go_first() -> None:
    rhq, lru = Rhq(Facts()), Lru()
    for policy in (rhq, lru):
        serve(policy, 1, 2, 3, now=0.0)
        serve(policy, 4, 5, now=10.0)
        policy.touched(rows(5, 2), 100.0)
        policy.touched(rows(2), 101.0)
        serve(policy, 6, now=101.1)
    assert order(rhq) == order(lru) == [1, 3, 4, 5, 2, 6]


def test_a_class_that_is_used_again_outlives_one_that_is_not() -> None:
    """Rows below 100 are used every 20 s; a stream of others is used once. Soon the stream goes first, though younger."""
    facts = PlainFacts(120)
    rhq = Rhq(facts)
    serve(rhq, *range(20), now=0.0)
    newest = 100
    for step in range(1, 400):
        serve(rhq, newest, now=float(step))
        newest += 1
        if step % 20 == 0:
            rhq.touched(np.arange(20), float(step))
        if len(rhq) > 40:
            rhq.removed(rows(order(rhq)[0]))
    going = order(rhq)[:20]
    assert min(going) >= 100
    assert set(range(20)) <= set(order(rhq)[20:])
    assert rhq.check() == []


def test_a_ghost_comes_back_with_its_count() -> None:
    rhq = Rhq(Facts(capacity=4))
    serve(rhq, 1, 2, now=0.0)
    rhq.touched(rows(1), 1.0)
    rhq.removed(rows(1, 2))
    rhq.inserted(rows(1, 2), 5.0)
    rhq.touched(rows(1, 2), 5.0)
    assert rhq.check() == []
    assert rhq._accesses[[1, 2]].tolist() == [3, 2]


def test_when_accesses_are_worked_off_makes_no_difference() -> None:
    """One is asked for its order after every request, the other hardly ever."""
    rng = np.random.default_rng(1)
    asked, unasked = Rhq(PlainFacts(400)), Rhq(PlainFacts(400))
    for policy in (asked, unasked):
        serve(policy, *range(300), now=0.0)
    for step in range(1, 600):
        used = np.unique((rng.random(6) ** 2 * 300).astype(np.int64))
        for policy in (asked, unasked):
            policy.touched(used[::-1], float(step))
        head = order(asked)
        if step % 97 == 0:
            assert order(unasked) == head
            for policy in (asked, unasked):
                policy.removed(rows(*head[:5]))
                policy.inserted(rows(*head[:5]), float(step))
    assert np.array_equal(asked._hazard.value, unasked._hazard.value)
    assert asked.check() == unasked.check() == []


def test_what_is_never_used_again_is_learned_from_forgotten_ghosts() -> None:
    hazard = Hazard()
    cells = cell_of(np.array([0, 1]), np.array([5, 5]))
    for _ in range(200):
        hazard.reused(cells[1:])
        hazard.given_up(cells[:1])
    hazard.learn(np.zeros(CLASSES * BINS))
    assert hazard.value[1, 5] > 3 * hazard.value[0, 5] > 0


def test_one_batch_of_runs_comes_in_the_order_of_stamps() -> None:
    runs = [
        iter([(rows(1, 2), rows(10, 40)), (rows(3), rows(50))]),
        iter([(rows(4, 5, 6), rows(20, 30, 60))]),
        iter([]),
    ]
    assert np.concatenate(list(merged(runs))).tolist() == [1, 4, 5, 2, 3, 6]


def test_cohorts_stay_few_however_small_requests_are() -> None:
    cohorts = Cohorts(1)
    for step in range(100_000):
        cohorts.join(0, step * 0.001, 1, step)
    assert len(cohorts) < 40_000
    assert int(cohorts.count.sum()) == 100_000


def test_an_empty_cohort_is_used_again() -> None:
    cohorts = Cohorts(2)
    first = cohorts.join(0, 1.0, 2, 1)
    assert cohorts.join(0, 1.0, 1, 3) == first
    assert cohorts.join(1, 1.0, 1, 4) != first
    cohorts.leave(np.array([first, first, first]))
    assert len(cohorts) == 1
    assert cohorts.join(0, 1.0, 1, 9) == first
    assert cohorts.first_stamp[first] == 9


# sample, capacity: lru's hits are the independent simulator's
@pytest.mark.parametrize(
    ("trace", "capacity", "lru"),
    [("taubench_first150", 86, 11686), ("taubench_first150", 433, 14630), ("weka_first250", 1176, 52158),
     ("weka_first250", 5884, 263941), ("mooncake_first200", 260, 199)],
)  # fmt: skip
def test_is_never_much_worse_than_lru(trace: str, capacity: int, lru: int) -> None:
    hits = sum(replay_one_tier(sample(trace), Rhq(PlainFacts(capacity)), capacity))
    assert hits >= 0.995 * lru
