"""What replacement policies cost: per block access, and for choosing victims, in pools of 10^4 and 10^6 blocks."""

import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.report import Better, Row
from hybridkv.migration.policies import make_policy
from hybridkv.tiers.replacement import NO_ROW, Policy, Rows
from hybridkv.tiers.victims import choose_victims

POOLS = (10_000, 1_000_000)
REQUEST_BLOCKS = 32
REQUESTS = 400
VICTIMS = 1000
ACCESS_LIMIT_US = {"lru": 1.0, "rhq": 3.0}
VICTIMS_LIMIT_MS = 5.0
AIMED = 1_000_000
_STEP_S = 0.01


class PlainFacts:
    """What policies ask of their pool, from columns: a pool without a directory."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._identities = np.random.default_rng(5).integers(1, 1 << 63, count, np.uint64)

    def capacity_slots(self) -> int:
        return self._count

    def identities(self, rows: Rows) -> NDArray[np.uint64]:
        return self._identities[rows]

    def block_bytes(self, rows: Rows) -> NDArray[np.int64]:
        return np.full(len(rows), 65536, np.int64)

    def dirty(self, rows: Rows) -> NDArray[np.bool_]:
        even: NDArray[np.bool_] = rows % 2 == 0
        return even

    def history(self, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.ones(len(rows)), np.zeros(len(rows))


def costs(setting: Setting, policy: str, count: int) -> list[Row]:
    """A full pool whose blocks are used, 32 to a request, the popular ones more often, and now and then replaced."""
    rng = np.random.default_rng(6)
    held: Policy = make_policy(policy, PlainFacts(count))
    order = rng.permutation(count).astype(np.int64)
    for first in range(0, count, 4096):
        held.inserted(order[first : first + 4096], first * 1e-6)
    access: list[float] = []
    choice: list[float] = []
    now = 10.0
    for number in range(setting.pairs + 1):
        requests = [_request(rng, count) for _ in range(REQUESTS)]
        begin = time.thread_time()
        for rows in requests:
            now += _STEP_S
            held.touched(rows, now)
        middle = time.thread_time()
        victims = _victims(held)
        end = time.thread_time()
        gone = np.array(victims, np.int64)
        held.removed(gone)
        held.inserted(gone, now)
        if number:
            access.append((middle - begin) / (REQUESTS * REQUEST_BLOCKS) * 1e6)
            choice.append((end - middle) * 1e3)
    aimed = count == AIMED
    return [
        _row(access_name(policy, count), median(access), "µs", ACCESS_LIMIT_US.get(policy) if aimed else None),
        _row(victims_name(policy, count), median(choice), "ms", VICTIMS_LIMIT_MS if aimed else None),
    ]


def access_name(policy: str, count: int) -> str:
    return f"{policy}, one block access among {count:,} blocks"


def victims_name(policy: str, count: int) -> str:
    return f"{policy}, choosing {VICTIMS:,} victims among {count:,} blocks"


def _row(name: str, value: float, unit: str, target: float | None) -> Row:
    return Row(name, value, unit, None, target, Better.LOWER)


def _request(rng: np.random.Generator, count: int) -> Rows:
    """Distinct rows, low numbers more often."""
    rows = (rng.random(2 * REQUEST_BLOCKS) ** 2 * count).astype(np.int64)
    return np.unique(rows)[:REQUEST_BLOCKS]


def _victims(policy: Policy) -> list[int]:
    """As the directory chooses, when all may go and none has children above."""
    return choose_victims(
        policy.scan(),
        lambda rows: np.ones(len(rows), np.bool_),
        lambda rows: np.zeros(len(rows), np.int64),
        lambda rows: np.full(len(rows), NO_ROW, np.int64),
        VICTIMS,
    )
