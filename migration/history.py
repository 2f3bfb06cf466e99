"""What became of blocks: the last moves, each with the rule that made it and the figures it was decided on.

Found by namespace and key, never by row: rows are reused, and a block that is gone still has its history.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.moves import Stage, Transfer
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Reason

Figures = tuple[tuple[str, float], ...]
"""(name, value) pairs: what was measured and the threshold it was held against, units in the names."""

_OUTCOMES = {Stage.DONE: "done", Stage.FAILED: "failed", Stage.CANCELLED: "cancelled"}

_Names = tuple[str, ...]
_Values = tuple[float, ...]
_Noted = tuple[_Names, _Values]
_FIGURES, _KEEPS, _SOURCE, _TARGET = map(attrgetter, ("figures", "keep_source", "source", "target"))


@dataclass(frozen=True, slots=True)
class PastMove:
    """One move of one block. `target` None: a copy was dropped. Times in seconds of the host's clock."""

    decided_at: float
    ended_at: float
    source: str
    target: str | None
    reason: Reason
    outcome: str
    figures: Mapping[str, float]

    def as_dict(self, now: float) -> dict[str, Any]:
        """For JSON: ages instead of times."""
        return {
            "ago_s": max(0.0, now - self.ended_at),
            "took_s": max(0.0, self.ended_at - self.decided_at),
            "from": self.source,
            "to": self.target,
            "reason": str(self.reason),
            "outcome": self.outcome,
            "figures": dict(self.figures),
        }


@dataclass(frozen=True, slots=True)
class _Drop:
    """A copy that left its pool without a transfer."""

    space: int
    key: bytes
    source: int
    reason: Reason
    outcome: str
    figures: _Noted
    ended_at: float


class MoveHistory:
    """The last `capacity` moves, a ring. Written under the directory's lock; about 300 bytes a move and the key's own.

    A transfer that has ended is kept as it is: lanes end thousands at once.
    """

    def __init__(self, directory: Directory, capacity: int) -> None:
        self._directory = directory
        self._entries: deque[Transfer | _Drop] = deque(maxlen=capacity)
        self._deciding: Mapping[int, Figures] = {}
        self._names: dict[_Names, _Names] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"MoveHistory({len(self)}/{self._entries.maxlen})"

    # ------------------------------------------------------------------------------------------------ write

    @contextmanager
    def deciding(self, figures: Mapping[int, Figures]) -> Iterator[None]:
        """What is decided meanwhile about a row was decided on its figures; on the pool's use where it has none."""
        self._deciding = figures
        try:
            yield
        finally:
            self._deciding = {}

    def decided(self, transfers: Sequence[Transfer]) -> None:
        """These were begun just now: what they were decided on is noted on them."""
        uses: dict[int, _Noted] = {}
        if not self._deciding:
            for keeps, group in groupby(transfers, _KEEPS):
                for pool, some in groupby(group, _TARGET if keeps else _SOURCE):
                    figures = self._use(pool, uses)
                    for transfer in some:
                        transfer.figures = figures
            return
        for transfer in transfers:
            pool = transfer.target if transfer.keep_source else transfer.source
            transfer.figures = self._figures(transfer.row, pool, uses)

    def ended(self, transfers: Sequence[Transfer]) -> None:
        """Transfers have ended, as their stages say; those of which nothing was noted are none of its business."""
        if all(map(_FIGURES, transfers)):
            self._entries.extend(transfers)
        else:
            self._entries.extend(transfer for transfer in transfers if transfer.figures is not None)

    def dropped(self, pool: int, rows: Rows, reason: Reason, outcome: str) -> None:
        """Copies are about to leave a pool without a transfer."""
        blocks, now = self._directory.blocks, self._directory.state.clock.now()
        uses: dict[int, _Noted] = {}
        # Only so many are remembered: the last.
        rows = rows[-(self._entries.maxlen or 1) :]
        self._entries.extend(
            _Drop(space, key, pool, reason, outcome, self._figures(row, pool, uses), now)
            for row, space, key in zip(
                rows.tolist(), blocks.namespace[rows].tolist(), blocks.keys.of(rows), strict=True
            )
        )

    def removed(self, rows: Rows, reason: Reason) -> None:
        """Blocks are about to go from every tier because somebody asked: one entry for each copy."""
        for book in self._directory.books:
            here = self._directory.blocks.slot[book.index][rows] != NO_SLOT
            self.dropped(book.index, rows[here], reason, "removed")

    def _figures(self, row: int, pool: int, uses: dict[int, _Noted]) -> _Noted:
        """Those of the rule, or else the pool's use, which `uses` remembers."""
        figures = self._deciding.get(row)
        if figures is None:
            return self._use(pool, uses)
        names = tuple(name for name, _ in figures)
        return self._names.setdefault(names, names), tuple(value for _, value in figures)

    def _use(self, pool: int, uses: dict[int, _Noted]) -> _Noted:
        """How full the pool is, which `uses` remembers."""
        used = uses.get(pool)
        if used is None:
            book = self._directory.books[pool]
            used = uses[pool] = (_USE, (float(book.used_bytes), float(book.capacity_bytes)))
        return used

    # ------------------------------------------------------------------------------------------------ read

    def of(self, space: int, key: bytes) -> list[PastMove]:
        """The block's moves that are remembered, oldest first. Linear in the ring, under the lock."""
        with self._directory.lock:
            found = [entry for entry in self._entries if entry.key == key and entry.space == space]
        names = [str(book.id) for book in self._directory.books]
        return [_told(entry, names) for entry in found]

    def spaces_of(self, key: bytes) -> set[int]:
        """Namespaces in which a block of this key has moved."""
        with self._directory.lock:
            return {entry.space for entry in self._entries if entry.key == key}


_USE: _Names = ("used_bytes", "capacity_bytes")


def _told(entry: Transfer | _Drop, names: Sequence[str]) -> PastMove:
    figures: Mapping[str, float] = dict(zip(*entry.figures, strict=True)) if entry.figures else {}
    source = names[entry.source]
    if isinstance(entry, _Drop):
        return PastMove(entry.ended_at, entry.ended_at, source, None, entry.reason, entry.outcome, figures)
    outcome = _OUTCOMES[entry.stage]
    return PastMove(entry.decided_at, entry.ended_at, source, names[entry.target], entry.reason, outcome, figures)
