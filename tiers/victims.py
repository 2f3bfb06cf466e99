"""Which rows to take from a pool: the policy's order under law 7 (no parent goes before its children)."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.replacement import NO_ROW, Rows

Eligible = Callable[[Rows], NDArray[np.bool_]]
Lookup = Callable[[Rows], NDArray[np.int64]]
_Columns = tuple[Rows, ...]


def choose_victims(
    scan: Iterable[Rows],
    eligible: Eligible,
    blocking_children: Lookup,
    parents: Lookup,
    want: int,
    weigh: Lookup | None = None,
) -> list[int]:
    """Rows to take, in the order to take them, until their weights reach `want` or the scan ends. Changes nothing.

    scan               arrays of rows, coldest first, each row at most once (scans may be chained: first victims first)
    eligible           bool[n]: may the row go at all (not leased, not in flight, ...)
    blocking_children  int[n]: children whose highest copy lies in this tier or above. 0 for a row whose block has
                       another copy as high or higher: such a copy may always go
    parents            int64[n]: the row this one counts against in `blocking_children`, or NO_ROW where it counts
                       against none (no parent here; or the block stays as high as it is when this copy goes)
    want, weigh        the sum of weights to reach; a row weighs 1 unless `weigh` says otherwise (its bytes, say)

    A row with blocking children is picked only after all of them were picked in this pass: at its own place in the scan
    when they came before, else right after the last of them. So a tail and its parent both go in one pass.
    """
    picking = _Picking(want)
    for window in scan:
        if picking.done:
            break
        rows = window[eligible(window)]
        if not len(rows):
            continue
        weights = np.ones(len(rows), np.int64) if weigh is None else weigh(rows)
        picking.go_through(rows, blocking_children(rows), parents(rows), weights)
    return picking.picked


class _Picking:
    """One pass of `choose_victims`.

    `_released[p]`: children of row p picked so far; `_waiting[row]`: (blocking children, parent, weight) of the blocked
    rows passed by. Plain dicts: whether a row may go depends on the rows picked before it. Windows in which all is
    blocked before any row was released stay arrays, in `_passed`, until a release makes them matter.
    """

    def __init__(self, want: int) -> None:
        self.picked: list[int] = []
        self._left = want
        self._released: dict[int, int] = {}
        self._waiting: dict[int, tuple[int, int, int]] = {}
        self._passed: list[_Columns] = []

    @property
    def done(self) -> bool:
        return self._left <= 0

    def go_through(self, *columns: Rows) -> None:
        """One window in order, picking what may go. Columns: rows, blocking children, parents, weights."""
        if not self._released and columns[1].all():
            self._passed.append(columns)
            return
        for row, blocked, parent, weight in _tuples(columns):
            if blocked and self._released.get(row, 0) < blocked:
                self._waiting[row] = (blocked, parent, weight)
                continue
            self._pick(row, weight)
            if parent != NO_ROW:
                self._release(parent)
            if self.done:
                return

    def _release(self, row: int) -> None:
        """A child of `row` was picked: if `row` was passed by and nothing blocks it now, pick it; then its parent."""
        while self._passed:
            self._waiting.update((row, (a, b, c)) for row, a, b, c in _tuples(self._passed.pop()))
        while True:
            self._released[row] = self._released.get(row, 0) + 1
            blocked, parent, weight = self._waiting.get(row, (0, NO_ROW, 0))
            if not blocked or self._released[row] < blocked or self.done:
                return
            del self._waiting[row]
            self._pick(row, weight)
            if parent == NO_ROW:
                return
            row = parent

    def _pick(self, row: int, weight: int) -> None:
        self.picked.append(row)
        self._left -= weight


def _tuples(columns: _Columns) -> Iterator[tuple[int, int, int, int]]:
    rows, blocking, parents, weights = (column.tolist() for column in columns)
    return zip(rows, blocking, parents, weights, strict=True)
