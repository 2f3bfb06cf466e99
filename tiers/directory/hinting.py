"""What hints come to: at the end of a request its blocks get a standing among the victims.

Only blocks that are the request's alone go first: a block that another request is using, or that another chain builds on,
keeps its place, and with it its ancestors.

Of a class of requests it is learned whether its blocks are used again. Where hardly any is, the class goes first as well,
without anybody saying so; one request in 16 is spared, so that a class that changes is noticed.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridkv.tiers.directory.standings import Standing
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.hints import NO_HINTS, Hints, Importance
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import BlockState, Tier

DEFAULT_FAR_S = 600.0

JUDGED_AFTER_BLOCKS = 1024
"""Blocks of a class that are followed before it is judged."""

SELDOM_REUSED = 0.02
"""The share of a class's blocks used again, below which the class goes first."""

SPARED_EVERY_REQUESTS = 16
_FADES_AT_BLOCKS = 1 << 16


@dataclass(slots=True)
class ClassCounts:
    """Of one request class: requests that ended, keys they asked for, and keys that were found; blocks whose reuse was
    followed, and those of them that were used again (both halved now and then, so that the class may change)."""

    requests: int = 0
    asked: int = 0
    found: int = 0
    followed: int = 0
    used_again: int = 0

    @property
    def goes_first(self) -> bool:
        """Its blocks are hardly ever used again."""
        return self.followed >= JUDGED_AFTER_BLOCKS and self.used_again < SELDOM_REUSED * self.followed


class Hinting:
    """Carries hints out. Called under the lock. `far_s` tells the idle timeout, beyond which a next use is far away."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.far_s: Callable[[], float] = lambda: DEFAULT_FAR_S
        self.classes: dict[int, ClassCounts] = {}

    def asked(self, hints: Hints, asked: int, found: int) -> None:
        """A call of the hints' class asked for so many keys, and so many were here."""
        if hints.request_class is not None:
            counts = self.classes.setdefault(hints.request_class, ClassCounts())
            counts.asked += asked
            counts.found += found

    def ended(self, rows: Rows, hints: Hints) -> None:
        """A request on `rows` (in the order of first use) is over, its accesses noted and its own holds gone."""
        if hints == NO_HINTS:
            return
        self._state.counters["sessions_ended"] += hints.end_of_session
        standing, until = self._judge(hints)
        rows = rows[self._state.blocks.state[rows] == BlockState.SEALED]
        if hints.request_class is not None and self._counted(hints.request_class, rows):
            may_cool = standing is Standing.NONE and hints.priority is not Importance.HIGH
            standing, until = (Standing.COLD, math.inf) if may_cool else (standing, until)
        if standing is Standing.COLD:
            rows = self._of_its_own(rows)
            self._state.counters["blocks_cooled"] += len(rows)
        elif standing is Standing.KEPT:
            self._state.counters["blocks_kept_longer"] += len(rows)
        if standing is not Standing.NONE:
            self._state.standings.set(rows, standing, until)

    def used(self, rows: Rows) -> None:
        """Blocks are used: of those that a class left, count it."""
        if not self.classes:
            return
        column = self._state.blocks.request_class
        found, counts = np.unique(column[rows], return_counts=True)
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            if number:
                self.classes[number - 1].used_again += count
        column[rows] = 0

    def _counted(self, number: int, rows: Rows) -> bool:
        """A request of this class on `rows` is over: whether its blocks go first. If not, their reuse is followed."""
        counts = self.classes.setdefault(number, ClassCounts())
        counts.requests += 1
        if counts.goes_first and counts.requests % SPARED_EVERY_REQUESTS:
            return True
        self._state.blocks.request_class[rows] = number + 1
        counts.followed += len(rows)
        if counts.followed >= _FADES_AT_BLOCKS:
            counts.followed, counts.used_again = counts.followed // 2, counts.used_again // 2
        return False

    def _judge(self, hints: Hints) -> tuple[Standing, float]:
        """The standing that the hints ask for, and until when."""
        now, far_s, expected_s = self._state.clock.now(), self.far_s(), hints.expected_next_use_s
        high = hints.priority is Importance.HIGH
        kept_s = far_s if high else 0.0
        if hints.end_of_session or hints.priority is Importance.LOW:
            return (Standing.NONE, now) if high else (Standing.COLD, math.inf)
        if expected_s is not None and expected_s > far_s:
            return (Standing.KEPT, now + kept_s) if high else (Standing.COLD, now + expected_s)
        if expected_s is not None:
            kept_s = max(kept_s, 2 * expected_s)
        return (Standing.KEPT, now + kept_s) if kept_s else (Standing.NONE, now)

    def _of_its_own(self, rows: Rows) -> Rows:
        """Those that nobody else uses or builds on, the last of a chain first."""
        blocks = self._state.blocks
        free = (blocks.holds[rows] == 0).tolist()
        children = blocks.children_from(rows, Tier.DISK).tolist()
        own, own_children = [], Counter[int]()
        for row, unheld, count, parent in reversed(
            list(zip(rows.tolist(), free, children, blocks.parent[rows].tolist(), strict=True))
        ):
            if unheld and count == own_children[row]:
                own.append(row)
                own_children[parent] += 1
        return np.array(own, np.int64)
