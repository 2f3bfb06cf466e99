"""How every benchmark here measures: floor and subject take turns in one run, and medians are compared."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

PAIRS = 7
"""Fewest rounds from which a median is reported."""


@dataclass(slots=True)
class Lap:
    """What one run took: by the clock, and of processor time in this process, all its threads together. Seconds."""

    wall_s: float = math.nan
    cpu_s: float = math.nan


@contextmanager
def lap() -> Iterator[Lap]:
    """Times its block; the lap is complete when the block has ended."""
    taken = Lap()
    cpu = time.process_time()
    wall = time.perf_counter()
    yield taken
    taken.wall_s = time.perf_counter() - wall
    taken.cpu_s = time.process_time() - cpu


Timed = Callable[[], Lap]
"""One run of a subject or of a floor: sets itself up, times what counts, and leaves things as it found them."""


@dataclass(frozen=True, slots=True)
class Laps:
    """The laps of one subject."""

    taken: tuple[Lap, ...]

    @property
    def wall_s(self) -> float:
        return median(lap.wall_s for lap in self.taken)

    @property
    def cpu_s(self) -> float:
        return median(lap.cpu_s for lap in self.taken)

    def gb_per_s(self, nbytes: int) -> float:
        return nbytes / self.wall_s / 1e9

    def cpu_s_per_gb(self, nbytes: int) -> float:
        return self.cpu_s / nbytes * 1e9


def interleaved(timed: Mapping[str, Timed], pairs: int = PAIRS, warmups: int = 1) -> dict[str, Laps]:
    """Rounds in which each of `timed` runs once, every other round in reverse order, so that neither a drift of the
    machine nor the neighbour favours any. The first `warmups` rounds are not counted."""
    taken: dict[str, list[Lap]] = {name: [] for name in timed}
    for number in range(warmups + pairs):
        for name in list(timed) if number % 2 == 0 else list(timed)[::-1]:
            found = timed[name]()
            if number >= warmups:
                taken[name].append(found)
    return {name: Laps(tuple(laps)) for name, laps in taken.items()}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]
