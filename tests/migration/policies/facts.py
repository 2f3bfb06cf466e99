"""`PoolFacts` that tests set by hand."""

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.replacement import Policy, Rows


class Facts:
    """Rows are identities unless `identity_of` says otherwise; blocks are clean, of one size, and unused."""

    def __init__(self, capacity: int = 100) -> None:
        self.capacity = capacity
        self.identity_of: dict[int, int] = {}
        self.bytes_of: dict[int, int] = {}
        self.dirty_rows: set[int] = set()
        self.accesses_of: dict[int, float] = {}

    def capacity_slots(self) -> int:
        return self.capacity

    def identities(self, rows: Rows) -> NDArray[np.uint64]:
        return np.array([self.identity_of.get(row, row) for row in rows.tolist()], np.uint64)

    def block_bytes(self, rows: Rows) -> NDArray[np.int64]:
        return np.array([self.bytes_of.get(row, 4096) for row in rows.tolist()], np.int64)

    def dirty(self, rows: Rows) -> NDArray[np.bool_]:
        return np.array([row in self.dirty_rows for row in rows.tolist()], np.bool_)

    def history(self, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array([self.accesses_of.get(row, 0.0) for row in rows.tolist()]), np.zeros(len(rows))


def rows(*numbers: int) -> Rows:
    return np.array(numbers, np.int64)


def order(policy: Policy) -> list[int]:
    return [row for window in policy.scan() for row in window.tolist()]


def serve(policy: Policy, *numbers: int, now: float = 0.0) -> None:
    """These rows come in and are used once, the last being the most recent."""
    policy.inserted(rows(*numbers), now)
    policy.touched(rows(*numbers), now)
