"""What the planner looks at: one pool's figures with columns of candidate rows, and the thresholds that apply to it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.errors import InternalError, InvalidArgumentError
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.replacement import NO_ROW, Rows


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When blocks leave a pool or go up from it. Marks are used fractions; 1.0, None and 0 switch a rule off."""

    high_watermark: float = 1.0
    low_watermark: float = 1.0
    idle_timeout_s: float | None = None
    demote_below_accesses: float = 0.0
    min_residency_s: float = 0.0
    promote_at_accesses: int = 0
    promote_window_s: float = 0.0
    cooldown_s: float = 0.0

    def __post_init__(self) -> None:
        low, high = self.low_watermark, self.high_watermark
        if not 0.0 < high <= 1.0:
            raise InvalidArgumentError("high_watermark", f"{high} is not in (0, 1]")
        if not 0.0 <= low <= 1.0 or (high < 1.0 and low >= high):
            raise InvalidArgumentError("low_watermark", f"{low} is not in [0, high_watermark = {high})")
        if self.idle_timeout_s is not None and self.idle_timeout_s <= 0:
            raise InvalidArgumentError(
                "idle_timeout_s", f"{self.idle_timeout_s} is not above 0 (leave it unset for off)"
            )
        for name in (
            "demote_below_accesses",
            "min_residency_s",
            "promote_at_accesses",
            "promote_window_s",
            "cooldown_s",
        ):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(name, f"{getattr(self, name)} is below 0")
        if self.promote_at_accesses > 0 and self.promote_window_s <= 0:
            raise InvalidArgumentError("promote_window_s", "must be above 0 when promote_at_accesses is")


@dataclass(frozen=True, slots=True)
class PoolView:
    """A snapshot of one pool. Columns have one entry per candidate row, coldest first by the pool's policy.

    The view need not hold every row of the pool; rules apply to what it holds. Times are seconds of the clock whose
    `now` goes to the planner.
    """

    pool: PoolId
    capacity_bytes: int
    used_bytes: int  # sealed copies in the pool, those about to leave included
    rows: Rows
    slot_bytes: NDArray[np.int64]
    last_access: NDArray[np.float64]
    arrived: NDArray[np.float64]  # when this copy came into the pool
    last_moved: NDArray[np.float64]  # last move of the block by the planner; -inf for never
    accesses: NDArray[np.float64]  # decayed, as of now
    window_accesses: NDArray[np.int64]  # accesses in the block's current promotion window
    eligible: NDArray[np.bool_]  # not leased, not in flight, not protected by a request or a leased descendant
    highest: NDArray[np.bool_]  # no other copy of the block lies as high or higher
    orphan: NDArray[np.bool_]  # has a parent by its key, and that block is gone
    blocking_children: NDArray[np.int64]  # children whose highest copy lies in this tier or above
    parents: Rows  # the parent's row, or NO_ROW
    lowest: bool = False  # no tier below is configured, or it is off
    leaving_bytes: int = 0  # of used_bytes: on their way out by moves in flight
    return_bytes: int = 0  # asked for by memory pressure, beyond what is leaving
    draining: bool = False  # `planner.draining` as of the last plan

    def __post_init__(self) -> None:
        for name in self._columns():
            if len(getattr(self, name)) != len(self.rows):
                raise InternalError(
                    f"pool view: {name} has {len(getattr(self, name))} entries for {len(self.rows)} rows"
                )

    @staticmethod
    def _columns() -> tuple[str, ...]:
        timed = ("last_access", "arrived", "last_moved", "accesses", "window_accesses")
        return ("slot_bytes", *timed, "eligible", "highest", "orphan", "blocking_children", "parents")

    @property
    def staying_bytes(self) -> int:
        """What is used once the moves in flight are done."""
        return self.used_bytes - self.leaving_bytes

    @property
    def staying_fraction(self) -> float:
        return self.staying_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    def parent_positions(self) -> NDArray[np.int64]:
        """Where in the columns each row's parent is; NO_ROW when it is not in the view."""
        if not len(self.rows):
            return np.zeros(0, np.int64)
        order = np.argsort(self.rows)
        ranked = self.rows[order]
        place = np.minimum(np.searchsorted(ranked, self.parents), len(ranked) - 1)
        return np.where(ranked[place] == self.parents, order[place], NO_ROW)
