"""Advice to callers who can compute a block instead of waiting for it, and what following it was worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hybridkv.migration.estimate import LaneLoad, blocks_worth_loading, landing_times
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.replacement import Rows

Ways = Callable[[int, int], Sequence[LaneLoad]]


@dataclass(slots=True)
class AdviceFigures:
    """Seconds against having done the other thing. Declined blocks: as estimated. Loaded ones: as measured at the end."""

    asked_blocks: int = 0
    declined_blocks: int = 0
    saved_by_computing_s: float = 0.0
    saved_by_loading_s: float = 0.0
    lost_by_loading_s: float = 0.0


@dataclass(slots=True)
class Bet:
    """A load that an acquire waits for although it could compute: since when, and what computing a block would take."""

    recompute_s: float
    begun_at: float
    landed_blocks: int = 0


class Advice:
    """Called under the directory's lock. `ways` tells the legs between two pools as they are loaded now."""

    def __init__(self, directory: Directory, ways: Ways) -> None:
        self.figures = AdviceFigures()
        self._directory = directory
        self._ways = ways

    def worth_loading(self, rows: Rows, target: int, recompute_s: float) -> int:
        """How many of `rows` (a chain's blocks that are not in `target`, in order) to load; the rest is to be computed."""
        blocks, figures = self._directory.blocks, self.figures
        sources = np.array([self._nearest(row, target) for row in rows.tolist()], np.int64)
        ways = {source: self._ways(source, target) for source in np.unique(sources).tolist()}
        landing_s = landing_times(sources, ways, int(self._directory.state.sizes[blocks.namespace[rows[0]]]))
        kept = blocks_worth_loading(landing_s, recompute_s)
        declined = len(rows) - kept
        figures.asked_blocks += len(rows)
        figures.declined_blocks += declined
        if declined:
            loading_s = landing_s[-1] - (landing_s[kept - 1] if kept else 0.0)
            figures.saved_by_computing_s += float(loading_s) - declined * recompute_s
        return kept

    def bet(self, recompute_s: float) -> Bet:
        return Bet(recompute_s, self._directory.state.clock.now())

    def settle(self, bet: Bet) -> None:
        """Nothing more will land: was waiting worth it?"""
        waited_s = self._directory.state.clock.now() - bet.begun_at
        gain_s = bet.landed_blocks * bet.recompute_s - waited_s
        self.figures.saved_by_loading_s += max(0.0, gain_s)
        self.figures.lost_by_loading_s += max(0.0, -gain_s)

    def _nearest(self, row: int, target: int) -> int:
        """The highest copy that is not the target's own, as demand takes it."""
        columns = self._directory.blocks.slot
        return next(pool for pool in range(len(columns)) if pool != target and columns[pool][row] != NO_SLOT)
