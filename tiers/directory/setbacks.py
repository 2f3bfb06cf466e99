"""Setbacks: blocks whose moves failed. Each is tried again alone, so that it takes no other with it, and after ever longer
rests."""

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.replacement import Rows

TRIES = 5
"""After so many failures in a row a block is tried only once in `LONG_REST_S`."""

FIRST_REST_S = 0.5
"""After the second failure; twice as long after each one more. After the first there is none: it may have been another's."""

LONG_REST_S = 60.0

MOST_ROWS = 4096
"""Beyond it the oldest is forgotten, and tried like any other."""


class Setbacks:
    """Failures in a row of each block, and when it may be tried again. Called under the directory's lock."""

    def __init__(self) -> None:
        self._by_row: dict[int, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._by_row)

    def __repr__(self) -> str:
        return f"Setbacks({len(self)} blocks)"

    def failed(self, row: int, now: float) -> None:
        """A move of the block failed, and not for want of room or of a tier."""
        count = self._by_row.pop(row, (0, 0.0))[0] + 1
        rest_s = 0.0 if count == 1 else FIRST_REST_S * 2.0 ** (count - 2) if count < TRIES else LONG_REST_S
        self._by_row[row] = (count, now + rest_s)
        if len(self._by_row) > MOST_ROWS:
            del self._by_row[next(iter(self._by_row))]

    def forget(self, rows: Rows) -> None:
        """These moved after all, or are gone."""
        if self._by_row:
            for row in rows.tolist():
                self._by_row.pop(row, None)

    def clear(self) -> None:
        """What failed may have been a tier, and that is back."""
        self._by_row.clear()

    def failures_of(self, row: int) -> int:
        """In a row; 0: none is known."""
        return self._by_row.get(row, (0, 0.0))[0]

    def resting(self, rows: Rows, now: float) -> NDArray[np.bool_]:
        """Which of these no rule moves now. bool [n]."""
        if not self._by_row:
            return np.zeros(len(rows), np.bool_)
        by_row = self._by_row
        return np.fromiter((row in by_row and by_row[row][1] > now for row in rows.tolist()), np.bool_, len(rows))

    def figures(self, now: float) -> dict[str, int]:
        """For stats: blocks that failed last time, those that rest now, those that failed `TRIES` times in a row."""
        return {
            "blocks": len(self._by_row),
            "resting": sum(until > now for _, until in self._by_row.values()),
            "given_up": sum(count >= TRIES for count, _ in self._by_row.values()),
        }
