"""What a daemon did between two readings of its stats, or since its start when there is one. Pure functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Stats = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Moves:
    """Blocks moved in the period that a rule looks at together."""

    count: int
    nbytes: int


class Period:
    """Figures of the period. Counters that the tree lacks are 0."""

    def __init__(self, now: Stats, before: Stats | None = None) -> None:
        """`before` counts when it is an earlier reading of the same daemon."""
        if before is not None and (before.get("epoch") != now.get("epoch") or _uptime(before) > _uptime(now)):
            before = None
        self.now = now
        self._before: Stats = before or {}
        self.seconds = max(1e-9, _uptime(now) - _uptime(self._before))

    def count(self, *path: str) -> float:
        """How much the counter at `path` grew."""
        return _at(self.now, path) - _at(self._before, path)

    def sum_of(self, *path: str) -> float:
        """How much all counters of the table at `path` grew together."""
        names = _table(self.now, path)
        return sum(self.count(*path, name) for name in names)

    def moves(self, wanted: Callable[[Mapping[str, Any]], bool]) -> Moves:
        """The moves that `wanted` picks by their labels (from, to, reason, outcome)."""
        count = nbytes = 0
        for sign, stats in ((1, self.now), (-1, self._before)):
            for move in stats.get("moves", ()):
                if wanted(move):
                    count += sign * move["count"]
                    nbytes += sign * move["bytes"]
        return Moves(count, nbytes)

    @property
    def tiers(self) -> Mapping[str, Mapping[str, Any]]:
        return _table(self.now, ("tiers",))


def _uptime(stats: Stats) -> float:
    return float(stats.get("uptime_s", 0.0))


def _at(stats: Stats, path: tuple[str, ...]) -> float:
    value: Any = stats
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else 0.0


def _table(stats: Stats, path: tuple[str, ...]) -> Mapping[str, Any]:
    value: Any = stats
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
