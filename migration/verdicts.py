"""What would happen next to one copy, and what keeps it where it is: pure functions of what the planner itself looks at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hybridkv.migration.planner import Move, draining, plan, promotions
from hybridkv.migration.view import PoolView, Thresholds


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rule and the figures it goes by. Of those that keep a copy: why the rule does not move it."""

    rule: str
    why: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "why": self.why, "figures": dict(self.figures)}


@dataclass(frozen=True, slots=True)
class Grip:
    """Who holds the copy: leases of it, requests and waiting calls that protect its block, and a move in flight."""

    leases: int = 0
    holds: int = 0
    moving: bool = False


def next_move(
    view: PoolView, upwards: PoolView, thresholds: Thresholds, now: float, row: int, room: int
) -> Move | None:
    """What the next background pass would do with `row`'s copy in the view's pool; None: leave it.

    `upwards` looks at the same copy for a promotion, for which the tier above has `room` bytes (below 0: no such tier).
    """
    found = next((move for move in plan(view, thresholds, now) if move.row == row), None)
    if found is None and room >= 0:
        found = next((move for move in promotions(upwards, thresholds, now, room) if move.row == row), None)
    return found


def what_keeps(view: PoolView, at: int, thresholds: Thresholds, now: float, grip: Grip) -> list[Verdict]:
    """Why the copy at position `at` of the view stays: what forbids any move, then each rule that does not move it."""
    return [*_forbidden(view, at, thresholds, now, grip), *_rules(view, at, thresholds, now)]


def _forbidden(view: PoolView, at: int, thresholds: Thresholds, now: float, grip: Grip) -> list[Verdict]:
    found = []
    if grip.leases:
        found.append(Verdict("leased", "a leased copy stays where it is", {"leases": grip.leases}))
    if grip.holds:
        found.append(Verdict("in_request", "in an open request, or waited for by a call", {"holders": grip.holds}))
    if grip.moving:
        found.append(Verdict("moving", "a move of it is under way"))
    children = int(view.blocking_children[at])
    if children and view.highest[at]:
        found.append(Verdict("children_above", "its children go first, or with it", {"children": children}))
    rested_s = now - float(view.last_moved[at])
    if rested_s < thresholds.cooldown_s:
        figures = {"rested_s": rested_s, "cooldown_s": thresholds.cooldown_s}
        found.append(Verdict("cooldown", "it moved a moment ago", figures))
    return found


def _rules(view: PoolView, at: int, thresholds: Thresholds, now: float) -> list[Verdict]:
    return [
        _watermark(view, thresholds),
        *([_last_copy()] if view.lowest and view.highest[at] else []),
        _idle(now - float(view.last_access[at]), thresholds),
        _few_accesses(float(view.accesses[at]), now - float(view.arrived[at]), thresholds),
        _promotion(int(view.window_accesses[at]), thresholds),
    ]


def _watermark(view: PoolView, thresholds: Thresholds) -> Verdict:
    figures = {
        "used_fraction": view.staying_fraction,
        "high_watermark": thresholds.high_watermark,
        "low_watermark": thresholds.low_watermark,
    }
    if thresholds.high_watermark >= 1.0:
        return Verdict("watermark", "off", figures)
    if not draining(view, thresholds, view.draining):
        return Verdict("watermark", "the tier's use is not above the mark", figures)
    return Verdict("watermark", "the tier drains, but others go before it", figures)


def _last_copy() -> Verdict:
    return Verdict("last_copy", "no tier below: only want of room makes the last copy go")


def _idle(idle_s: float, thresholds: Thresholds) -> Verdict:
    if thresholds.idle_timeout_s is None:
        return Verdict("idle", "off", {"idle_s": idle_s})
    figures = {"idle_s": idle_s, "idle_timeout_s": thresholds.idle_timeout_s}
    over = idle_s > thresholds.idle_timeout_s
    return Verdict("idle", "idle long enough, but kept by the above" if over else "used lately", figures)


def _few_accesses(accesses: float, here_s: float, thresholds: Thresholds) -> Verdict:
    rule, limit = "demote_below_accesses", thresholds.demote_below_accesses
    if limit <= 0:
        return Verdict(rule, "off", {"accesses": accesses})
    figures = {
        "accesses": accesses,
        rule: limit,
        "here_s": here_s,
        "min_residency_s": thresholds.min_residency_s,
    }
    if accesses >= limit:
        return Verdict(rule, "used often enough", figures)
    early = here_s < thresholds.min_residency_s
    return Verdict(rule, "not here long enough yet" if early else "used too rarely, but kept by the above", figures)


def _promotion(accesses: int, thresholds: Thresholds) -> Verdict:
    rule = "promote_at_accesses"
    if thresholds.promote_at_accesses <= 0:
        return Verdict(rule, "off", {"window_accesses": accesses})
    figures = {"window_accesses": accesses, rule: thresholds.promote_at_accesses}
    enough = accesses >= thresholds.promote_at_accesses
    why = "used often enough; it goes up when it is touched again and the tier above has room" if enough else "too few"
    return Verdict(rule, why, figures)
