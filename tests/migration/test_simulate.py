"""The shipped policies and victim choice on samples of real workloads: exactly the hits of an independent simulator."""

from collections.abc import Iterator

import numpy as np
import pytest

from hybridkv.migration.optimum import optimum
from hybridkv.migration.policies import POLICY_NAMES, make_policy
from hybridkv.migration.simulate import PlainFacts, Request, hit_tokens, replay_one_tier
from hybridkv.migration.simulate_tiers import Model, TierCounts, three_tiers
from hybridkv.tiers.replacement import Policy, Rows
from tests.migration.samples import sample

TAU, MOONCAKE, WEKA = "taubench_first150", "mooncake_first200", "weka_first250"
BLOCK_TOKENS = {TAU: 16, MOONCAKE: 512, WEKA: 64}

# sample, capacity in blocks: hit blocks of lru, of fifo without chain order, of the offline optimum
ONE_TIER = [
    (TAU, 17, 2533, 2533, 2533),
    (TAU, 86, 11686, 11684, 11929),
    (TAU, 433, 14630, 13556, 16398),
    (TAU, 867, 17091, 15108, 17586),
    (MOONCAKE, 52, 199, 199, 250),
    (MOONCAKE, 260, 199, 199, 322),
    (MOONCAKE, 2607, 203, 203, 322),
    (WEKA, 235, 12125, 12125, 27635),
    (WEKA, 1176, 52158, 48571, 121004),
    (WEKA, 5884, 263941, 217549, 279630),
]

# sample, capacities: hits, up, down, dropped, new blocks, hit tokens
EXCLUSIVE = [
    (TAU, (34, 173, 867), [5066, 7500, 4709], [7500, 4709], [14376, 6703], 1127, 2201, 276400),
    (MOONCAKE, (104, 521, 2607), [199, 0, 41], [0, 41], [5234, 4713], 2065, 5297, 122880),
    (WEKA, (470, 2353, 11769), [23038, 133148, 134570], [133148, 134570], [290786, 155285], 8946, 23538, 18608384),
]
INCLUSIVE = [
    (TAU, (34, 173, 867), [5066, 7168, 4857], [12025, 4857], [2385, 2385], 0, 2385, 273456),
    (MOONCAKE, (104, 521, 2607), [199, 0, 4], [4, 4], [5334, 5334], 0, 5334, 103936),
    (WEKA, (470, 2353, 11769), [23038, 103895, 162286], [266181, 162286], [25075, 25075], 0, 25075, 18510016),
]


def tier(name: str, capacity: int) -> Policy:
    return make_policy(name, PlainFacts(capacity))


def hits(name: str, trace: str, capacity: int, *, chain_order: bool = True) -> int:
    policy = tier(name, capacity)
    found = sum(replay_one_tier(sample(trace), policy, capacity, chain_order=chain_order))
    assert len(policy) <= capacity
    assert policy.check() == []
    return found


@pytest.mark.parametrize(("trace", "capacity", "lru", "fifo", "best"), ONE_TIER)
def test_one_tier_equals_the_independent_simulator(trace: str, capacity: int, lru: int, fifo: int, best: int) -> None:
    assert hits("lru", trace, capacity) == lru
    assert hits("fifo", trace, capacity, chain_order=False) == fifo
    assert sum(optimum(sample(trace), capacity)) == best


@pytest.mark.parametrize(("capacity", "tokens"), [(86, 186976), (433, 234080)])
def test_hit_tokens_equal_the_independent_simulator(capacity: int, tokens: int) -> None:
    found = replay_one_tier(sample(TAU), tier("lru", capacity), capacity)
    assert hit_tokens(sample(TAU), found, BLOCK_TOKENS[TAU]) == tokens


@pytest.mark.parametrize(
    ("model", "trace", "capacities", "served", "up", "down", "dropped", "new", "tokens"),
    [("exclusive", *row) for row in EXCLUSIVE] + [("inclusive", *row) for row in INCLUSIVE],
)
def test_three_tiers_equal_the_independent_simulator(
    model: Model, trace: str, capacities: tuple[int, int, int], served: list[int], up: list[int], down: list[int],
    dropped: int, new: int, tokens: int,
) -> None:  # fmt: skip
    policies = [tier("lru", capacity) for capacity in capacities]
    counts: TierCounts = three_tiers(sample(trace), policies, capacities, model)
    assert (counts.hits, counts.up, counts.down) == (served, up, down)
    assert (counts.dropped, counts.new_blocks) == (dropped, new)
    assert hit_tokens(sample(trace), counts.hits_by_request, BLOCK_TOKENS[trace]) == tokens
    assert [policy.check() for policy in policies] == [[], [], []]


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("model", ["exclusive", "inclusive"])
def test_every_policy_can_order_every_tier(name: str, model: Model) -> None:
    capacities = (34, 173, 867)
    policies = [tier(name, capacity) for capacity in capacities]
    counts = three_tiers(sample(TAU), policies, capacities, model)
    assert 5000 < sum(counts.hits) < 17_743  # an endless cache has 17,742
    assert all(len(policy) <= capacity for policy, capacity in zip(policies, capacities, strict=True))
    assert [policy.check() for policy in policies] == [[], [], []]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_no_policy_beats_the_optimum_and_replays_are_repeatable(name: str) -> None:
    first = hits(name, TAU, 173)
    assert first == hits(name, TAU, 173) <= sum(optimum(sample(TAU), 173))


def test_a_block_of_the_request_itself_may_be_the_victim_only_in_chain_order() -> None:
    requests = [Request(0.0, np.array([0, 1])), Request(1.0, np.array([2])), Request(2.0, np.array([0, 1]))]
    kept = Stubborn()
    assert replay_one_tier(requests, kept, 2) == [0, 0, 2]
    assert replay_one_tier(requests, Stubborn(), 2, chain_order=False) == [0, 0, 0]


class Stubborn:
    """Offers the newest row first."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def inserted(self, rows: Rows, now: float) -> None:
        self.rows += rows.tolist()

    def touched(self, rows: Rows, now: float) -> None:
        pass

    def removed(self, rows: Rows) -> None:
        self.rows = [row for row in self.rows if row not in rows]

    def scan(self) -> Iterator[Rows]:
        yield np.array(self.rows[::-1], np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def check(self) -> list[str]:
        return []
