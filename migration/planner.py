"""Which blocks to move, and why: pure functions of (view, thresholds, now).

The caller takes a `PoolView` under the directory's lock, plans outside it, and checks each move again when it is
carried out: by then the row may be leased, moved or gone. `plan` looks downwards (demotions and evictions of one pool)
and respects law 7 through `choose_victims`; `promotions` looks upwards. Both leave out rows that are not eligible and
give every move the figures it was decided on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.hysteresis import latched
from hybridkv.migration.view import PoolView, Thresholds
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import Reason
from hybridkv.tiers.victims import choose_victims

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]
Figures = tuple[tuple[str, float], ...]

_WINDOW = 1024


class Direction(StrEnum):
    """Where a move takes a block's copy."""

    DEMOTE = "demote"
    PROMOTE = "promote"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Move:
    """A decision. DEMOTE of a block with a clean lower copy moves no bytes; EVICT drops this copy and nothing else.

    `figures` are (name, value) pairs: what was measured and the threshold it crossed, units in the names.
    """

    row: int
    pool: PoolId
    direction: Direction
    reason: Reason
    figures: Figures

    def explain(self) -> str:
        shown = ", ".join(f"{name}={value:g}" for name, value in self.figures)
        return f"{self.direction} from {self.pool} by {self.reason} ({shown})"


def draining(view: PoolView, thresholds: Thresholds, before: bool) -> bool:
    """Is the pool on its way from its high to its low watermark? Keep the answer and put it into the next view."""
    return latched(view.staying_fraction, high=thresholds.high_watermark, low=thresholds.low_watermark, before=before)


def due(staying_fraction: float, thresholds: Thresholds, before: bool, *, any_idle: bool) -> bool:
    """Could `plan` find anything in a pool of which that much stays used, asked for no `return_bytes`? `before`: as for
    `draining`; `any_idle`: a row has been idle for longer than `idle_timeout_s`.

    False only when it could not. It costs much less than a view, and most passes end here.
    """
    high, low = thresholds.high_watermark, thresholds.low_watermark
    draining = latched(staying_fraction, high=high, low=low, before=before)
    return draining or any_idle or thresholds.demote_below_accesses > 0


def plan(view: PoolView, thresholds: Thresholds, now: float) -> list[Move]:
    """Moves out of the pool, at most one per row, in the order to carry them out.

    1. memory pressure: coldest first until `view.return_bytes` are on their way out. Ignores the cooldown.
    2. watermark: above high (or still draining), coldest first until the use that stays is at low.
    3. idle: not used for longer than `idle_timeout_s`.
    4. few accesses: here for `min_residency_s` and used (decayed) fewer than `demote_below_accesses` times.
    Rules 1 and 2 take orphans first, then copies of blocks that also lie higher. Rules 3 and 4 never drop a block's
    last copy: in the lowest tier they concern only such second copies.
    """
    planning = _Planning(view)
    rested = now - view.last_moved >= thresholds.cooldown_s
    keeps_a_copy = ~view.highest | (not view.lowest)

    planning.take(view.eligible, Reason.PRESSURE, _pressure_figures(view), until_bytes=view.return_bytes)
    if draining(view, thresholds, view.draining):
        excess = view.staying_bytes - int(thresholds.low_watermark * view.capacity_bytes) - planning.taken_bytes
        figures = _watermark_figures(view, thresholds)
        planning.take(view.eligible & rested, Reason.WATERMARK, figures, until_bytes=excess)

    idle_s = now - view.last_access
    if thresholds.idle_timeout_s is not None:
        idle = _Column("idle_s", idle_s, "idle_timeout_s", thresholds.idle_timeout_s)
        planning.take(view.eligible & rested & keeps_a_copy & idle.above(), Reason.IDLE, idle)
    if thresholds.demote_below_accesses > 0:
        few = _Column("accesses", view.accesses, "demote_below_accesses", thresholds.demote_below_accesses)
        resident = now - view.arrived >= thresholds.min_residency_s
        planning.take(view.eligible & rested & keeps_a_copy & resident & few.below(), Reason.FEW_ACCESSES, few)
    return planning.moves


def promotions(view: PoolView, thresholds: Thresholds, now: float, room_bytes: int) -> list[Move]:
    """Moves one tier up: blocks whose highest copy is here and that were used `promote_at_accesses` times in a window.

    Most used first, then most recently used; stops at the first that does not fit into `room_bytes` (the room the tier
    above has below its low watermark, so that a promotion never starts a demotion).
    """
    if thresholds.promote_at_accesses <= 0:
        return []
    figures = _Column("window_accesses", view.window_accesses, "promote_at_accesses", thresholds.promote_at_accesses)
    rested = now - view.last_moved >= thresholds.cooldown_s
    in_window = now - view.last_access <= thresholds.promote_window_s
    wanted = np.flatnonzero(view.eligible & view.highest & rested & in_window & ~figures.below())[::-1]
    # Reversed policy order stays within ties: of one request the head was touched last, and goes up first.
    hottest = wanted[np.lexsort((-view.last_access[wanted], -view.window_accesses[wanted]))]
    fits = int(np.searchsorted(np.cumsum(view.slot_bytes[hottest]), room_bytes, side="right"))
    return [
        Move(int(view.rows[at]), view.pool, Direction.PROMOTE, Reason.PROMOTE_AT_ACCESSES, figures.at(at))
        for at in hottest[:fits].tolist()
    ]


@dataclass(frozen=True, slots=True)
class _Column:
    """A measured column beside its threshold."""

    name: str
    values: NDArray[np.float64] | NDArray[np.int64]
    limit_name: str
    limit: float

    def above(self) -> Mask:
        return np.asarray(self.values > self.limit)

    def below(self) -> Mask:
        return np.asarray(self.values < self.limit)

    def at(self, position: int) -> Figures:
        return ((self.name, float(self.values[position])), (self.limit_name, float(self.limit)))


class _Planning:
    """The moves so far, and law 7's counts as they stand after them. Works on positions in the view, not on rows."""

    def __init__(self, view: PoolView) -> None:
        self.moves: list[Move] = []
        self.taken_bytes = 0
        self._view = view
        self._left = np.ones(len(view.rows), np.bool_)
        # A copy of a block that also lies higher may always go, and lets nothing else go.
        self._blocking = np.where(view.highest, view.blocking_children, 0)
        self._parents = np.where(view.highest, view.parent_positions(), NO_ROW)

    def take(self, wanted: Mask, reason: Reason, figures: Figures | _Column, until_bytes: int | None = None) -> None:
        """Move the `wanted` that are left: all of them, or the coldest until `until_bytes` are on their way."""
        if until_bytes is not None and until_bytes <= 0:
            return
        view, free = self._view, wanted & self._left
        target = int(view.slot_bytes.sum()) if until_bytes is None else until_bytes
        picked = choose_victims(
            _windows(np.arange(len(free)) if until_bytes is None else self._first_victims_first()),
            free.__getitem__,
            self._blocking.__getitem__,
            self._parents.__getitem__,
            target,
            view.slot_bytes.__getitem__,
        )
        for at in picked:
            shown = figures.at(at) if isinstance(figures, _Column) else figures
            self.moves.append(Move(int(view.rows[at]), view.pool, self._direction(at), reason, shown))
        self._note(np.array(picked, np.int64))

    def _direction(self, at: int) -> Direction:
        falls = self._view.highest[at] and not self._view.lowest
        return Direction.DEMOTE if falls else Direction.EVICT

    def _note(self, picked: Positions) -> None:
        self._left[picked] = False
        self.taken_bytes += int(self._view.slot_bytes[picked].sum())
        parents = self._parents[picked]
        np.subtract.at(self._blocking, parents[parents != NO_ROW], 1)

    def _first_victims_first(self) -> Positions:
        """Orphans (nothing can hit them), then second copies (nothing is lost with them), then the rest."""
        rank = np.where(self._view.orphan, 0, np.where(self._view.highest, 2, 1))
        return np.argsort(rank, kind="stable")


def _windows(positions: Positions) -> Iterator[Positions]:
    for start in range(0, len(positions), _WINDOW):
        yield positions[start : start + _WINDOW]


def _pressure_figures(view: PoolView) -> Figures:
    return (("return_bytes", float(view.return_bytes)), ("used_bytes", float(view.used_bytes)))


def _watermark_figures(view: PoolView, thresholds: Thresholds) -> Figures:
    return (
        ("used_fraction", view.staying_fraction),
        ("high_watermark", thresholds.high_watermark),
        ("low_watermark", thresholds.low_watermark),
    )
