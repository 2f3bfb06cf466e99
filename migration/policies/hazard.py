"""What a pool has learned about reuse: hazards by class and age, and the value of keeping that follows from them."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.policies.counts import MAX_ACCESSES

Floats = NDArray[np.float64]
Cells = NDArray[np.int64]

BINS: Final = 40
CLASSES: Final = 5
_LAST_ACCESSES_OF_CLASS: Final = (1, 2, 4, 16)  # and more
_PRIOR_BLOCKS: Final = 50.0  # weight of the hazard over all classes in each one's
_NEIGHBOUR_SHARE: Final = 0.25
_MEMORY: Final = 0.99  # what is left of the counts each time they were learned from

_CLASS_OF: Final = np.searchsorted(_LAST_ACCESSES_OF_CLASS, np.arange(MAX_ACCESSES + 1)).astype(np.int64)
_EDGES_S: Final = np.exp2(np.arange(BINS + 1) / 2) - 1
_ENDS_S: Final = _EDGES_S[1:-1]
_WIDTHS_S: Final = np.diff(_EDGES_S)
_NOT_BEFORE: Final = np.tri(BINS, dtype=np.bool_).T  # [k, j]: j >= k
_AFTER: Final = np.tri(BINS, k=-1, dtype=np.bool_).T  # [k, j]: j > k


def class_of(accesses: NDArray[np.integer]) -> Cells:
    """Class of a block by its accesses, of at most MAX_ACCESSES (0 counts as 1): 1 | 2 | 3-4 | 5-16 | 17 and more."""
    classes: Cells = _CLASS_OF[accesses]
    return classes


def bin_of(age_s: Floats) -> Cells:
    """Age bin floor(2 log2(1 + age)), of at most BINS - 1. Ages below 0 (a clock of another host) count as 0."""
    bins: Cells = np.searchsorted(_ENDS_S, age_s, side="right")
    return bins


def cell_of(classes: Cells, bins: Cells) -> Cells:
    """One number for (class, bin)."""
    return classes * BINS + bins


class Hazard:
    """Counts of reuse by (class, bin), and `value` [CLASSES, BINS]: best reuses per block-second from that age on.

    Until something was learned, the value falls with age alone: least recently used.
    """

    def __init__(self) -> None:
        self._reused = np.zeros(CLASSES * BINS)
        self._given_up = np.zeros(CLASSES * BINS)
        self.value: Floats = np.tile(1.0 / (1 + np.arange(BINS)), (CLASSES, 1))

    def reused(self, cells: Cells) -> None:
        """A block of each of these cells was used again."""
        self._reused += np.bincount(cells, minlength=CLASSES * BINS)

    def given_up(self, cells: Cells) -> None:
        """A block of each of these cells was not used again for as long as it was remembered."""
        self._given_up += np.bincount(cells, minlength=CLASSES * BINS)

    def learn(self, waiting: Floats) -> None:
        """Compute `value` from the counts and the blocks `waiting` (by cell) for their next use."""
        reused = self._reused.reshape(CLASSES, BINS)
        ended = (self._reused + self._given_up + waiting).reshape(CLASSES, BINS)
        at_risk = np.cumsum(ended[:, ::-1], axis=1)[:, ::-1] - 0.5 * waiting.reshape(CLASSES, BINS)
        everyone = at_risk.sum(axis=0)
        pooled = np.divide(reused.sum(axis=0), everyone, out=np.zeros(BINS), where=everyone > 0)
        self.value = keeping_value((_spread(reused) + _PRIOR_BLOCKS * pooled) / (_spread(at_risk) + _PRIOR_BLOCKS))

    def fade(self) -> None:
        """What was counted so far weighs a little less from now on."""
        self._reused *= _MEMORY
        self._given_up *= _MEMORY


def _spread(counts: Floats) -> Floats:
    """Every bin with a part of its neighbours: few blocks were seen in one bin of one class, and hazards change slowly."""
    spread = counts.copy()
    spread[:, 1:] += _NEIGHBOUR_SHARE * counts[:, :-1]
    spread[:, :-1] += _NEIGHBOUR_SHARE * counts[:, 1:]
    return spread


def keeping_value(hazard: Floats) -> Floats:
    """Gittins index of every (class, bin), [CLASSES, BINS].

    max over m >= k of  sum_{j=k..m} S_j h_j  /  sum_{j=k..m} S_j (1 - h_j / 2) w_j,  with S_k = 1 and
    S_{j+1} = S_j (1 - h_j): a block in bin j is used again there with chance h_j, half a bin after it began on average.
    """
    stays = np.concatenate([np.ones((len(hazard), 1)), 1 - hazard[:, :-1]], axis=1)  # survives the bin before
    steps = np.where(_AFTER, stays[:, None, :], 1.0)  # [class, k, j]: 1 up to k, so that the product begins there
    survives = np.where(_NOT_BEFORE, np.cumprod(steps, axis=2), 0.0)
    reuses = np.cumsum(survives * hazard[:, None, :], axis=2)
    block_seconds = np.cumsum(survives * ((1 - hazard / 2) * _WIDTHS_S)[:, None, :], axis=2)
    ratio = np.divide(reuses, block_seconds, out=np.zeros_like(reuses), where=block_seconds > 0)
    return np.asarray(ratio.max(axis=2))
