"""The seam between the directory and the policies that say which rows are coldest.

A pool has one policy. The directory tells it what came, was used and went, and asks for its rows coldest first; whether
a row may go now (leases, moves in flight, children above) is the directory's to judge, see `tiers/victims.py`.
"""

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Directory row numbers, one dimension. A policy keeps no reference to an array it was given."""

NO_ROW: Final = -1
"""Stands for "none" inside columns of row numbers; never a row."""


class PoolFacts(Protocol):
    """What a policy may ask about its pool and the rows in it, in every call made to it, `removed` included.

    Read under the lock, vectorised, without side effects.
    """

    def capacity_slots(self) -> int:
        """Blocks the pool has room for, as near as is known now: at least 1. May change at any time."""

    def identities(self, rows: Rows) -> NDArray[np.uint64]:
        """uint64[n]: what outlives the row; equal for a block that left and came back, else different but for chance."""

    def block_bytes(self, rows: Rows) -> NDArray[np.int64]:
        """int64[n]: size of each block."""

    def dirty(self, rows: Rows) -> NDArray[np.bool_]:
        """bool[n]: no lower tier has a copy, so that the block's going costs a write or the block."""

    def history(self, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Accesses of each block so far (decayed as of the last one; 0: none yet) and when the last one was."""


class Policy(Protocol):
    """Orders the rows of one pool. Not thread-safe: every call is made under the directory's lock.

    Row numbers are reused after `removed`; the directory calls it while the row still holds its block. A policy that
    needs more about a row than its number is given `PoolFacts` when it is made. Coming into the pool is no access: the
    access for which a block came, if there was one, is told by `touched`, in one call for all blocks of a request. Wrong
    calls (a row inserted that is held, one touched or removed that is not) raise `InternalError` and change nothing. `now`
    is in seconds of any one clock and never decreases.
    """

    def inserted(self, rows: Rows, now: float) -> None:
        """`rows` (distinct, not held) came into the pool, in this order; the last is the most recent."""

    def touched(self, rows: Rows, now: float) -> None:
        """`rows` (held) were used, in this order; the last is the most recent. A row may occur more than once."""

    def removed(self, rows: Rows) -> None:
        """`rows` (distinct, held) left the pool."""

    def scan(self) -> Iterator[Rows]:
        """Every held row once, coldest first, in arrays that begin small and grow: taking a few costs little.

        Changes nothing that can be seen. Take what is needed, then change the policy: what an open scan yields after a
        change is not defined (it stays safe to drop).
        """

    def __len__(self) -> int:
        """Number of rows held."""

    def check(self) -> list[str]:
        """One line for each finding that the inner state is broken; linear in the rows held."""
