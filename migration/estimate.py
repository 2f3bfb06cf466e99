"""Load or compute? How long blocks will take to land, and how many of a chain are worth waiting for. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """One leg of a way up: its measured speed (None: not known, taken for no delay) and the bytes that go before."""

    bytes_per_s: float | None
    bytes_ahead: int

    def seconds(self, nbytes: NDArray[np.int64]) -> Seconds:
        """Until `nbytes` more have passed. float64 [n]."""
        if self.bytes_per_s is None:
            return np.zeros(len(nbytes))
        return np.asarray((self.bytes_ahead + nbytes) / self.bytes_per_s)


def landing_times(sources: NDArray[np.int64], ways: Mapping[int, Sequence[LaneLoad]], block_bytes: int) -> Seconds:
    """Seconds until each block of a chain, and all before it, will have landed. float64 [n], never decreasing.

    `sources`: the pool each block comes from, [n]; `ways`: the legs from each such pool, passed one after the other by a
    batch. Blocks of one source queue behind one another, those of different sources do not. Room is taken for granted.
    """
    landing = np.zeros(len(sources))
    for source, legs in ways.items():
        here = np.flatnonzero(sources == source)
        nbytes = block_bytes * np.arange(1, len(here) + 1)
        for leg in legs:
            landing[here] += leg.seconds(nbytes)
    return np.asarray(np.maximum.accumulate(landing))


def blocks_worth_loading(landing_s: Seconds, recompute_s: float) -> int:
    """How many blocks, from the head, to load so that loading them and then computing the rest takes the least time.

    `landing_s` as by `landing_times`; `recompute_s`: to compute one block. Of equal choices the one that computes least.
    """
    rest = np.arange(len(landing_s), -1, -1)
    total_s = np.concatenate([[0.0], landing_s]) + recompute_s * rest
    return int(len(landing_s) - np.argmin(total_s[::-1]))
