"""Access counts that forget: pure functions over columns. Times in seconds of one clock, scalars or arrays alike."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def decayed(counts: Floats, noted_at: Floats, now: float, half_life_s: float) -> Floats:
    """`counts`, right at `noted_at`, as of `now`: count * 2^(-dt / half_life_s).

    A half-life of `inf` never forgets. A clock that went back counts as no time passed.
    """
    elapsed = np.maximum(now - noted_at, 0.0)
    return np.asarray(counts * np.exp2(-elapsed / half_life_s), np.float64)


def accessed(counts: Floats, noted_at: Floats, now: float, half_life_s: float) -> Floats:
    """The counts as of `now` after one more access each."""
    return decayed(counts, noted_at, now, half_life_s) + 1.0


def accessed_in_window(
    counts: NDArray[np.int64], opened_at: Floats, now: float, window_s: float
) -> tuple[NDArray[np.int64], Floats]:
    """(counts, opened_at) after one more access each, where an access later than `window_s` opens a new window.

    `counts` reaches k exactly when the k-th access falls within `window_s` of the first of its window.
    """
    over = now - opened_at > window_s
    return np.where(over, 1, counts + 1), np.where(over, now, opened_at)
