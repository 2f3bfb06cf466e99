"""What became of blocks: the last moves, each with the rule that made it and the figures it was decided on.

Found by namespace and key, never by row: rows are reused, and a block that is gone still has its history.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

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
_Entry = tuple[int, bytes, float, float, int, int | None, Reason, str, _Names, _Values]


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


class MoveHistory:
    """The last `capacity` moves, a ring. Written under the directory's lock; about 300 bytes a move and the key's own."""

    def __init__(self, directory: Directory, capacity: int) -> None:
        self.capacity = capacity
        self._directory = directory
        self._entries: list[_Entry] = []
        self._next = 0
        self._deciding: Mapping[int, Figures] = {}
        self._names: dict[_Names, _Names] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"MoveHistory({len(self)}/{self.capacity})"

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
        """These were begun just now: what they were decided on is noted on them, until they end."""
        blocks = self._directory.blocks
        rows = np.array([transfer.row for transfer in transfers], np.int64)
        spaces, keys = blocks.namespace[rows].tolist(), blocks.keys.of(rows)
        uses: dict[int, _Values] = {}
        for transfer, space, key in zip(transfers, spaces, keys, strict=True):
            pool = transfer.target if transfer.keep_source else transfer.source
            names, values = self._figures(transfer.row, pool, uses)
            transfer.note = (space, key, names, values)

    def ended(self, transfer: Transfer, ended_at: float) -> None:
        """A transfer that was noted has ended, as its stage says. Its row may be another block's by now."""
        if transfer.note is not None:
            space, key, names, values = transfer.note
            outcome = _OUTCOMES[transfer.stage]
            self._add(
                (space, key, transfer.decided_at, ended_at, transfer.source, transfer.target, transfer.reason, outcome,
                 names, values)
            )  # fmt: skip

    def dropped(self, pool: int, rows: Rows, reason: Reason, outcome: str) -> None:
        """Copies are about to leave a pool without a transfer."""
        blocks, now = self._directory.blocks, self._directory.state.clock.now()
        uses: dict[int, _Values] = {}
        spaces, keys = blocks.namespace[rows].tolist(), blocks.keys.of(rows)
        for row, space, key in zip(rows.tolist(), spaces, keys, strict=True):
            names, values = self._figures(row, pool, uses)
            self._add((space, key, now, now, pool, None, reason, outcome, names, values))

    def removed(self, rows: Rows, reason: Reason) -> None:
        """Blocks are about to go from every tier because somebody asked: one entry for each copy."""
        for book in self._directory.books:
            here = self._directory.blocks.slot[book.index][rows] != NO_SLOT
            self.dropped(book.index, rows[here], reason, "removed")

    def _figures(self, row: int, pool: int, uses: dict[int, _Values]) -> tuple[_Names, _Values]:
        """Those of the rule, or else the pool's use, which `uses` remembers."""
        figures = self._deciding.get(row)
        if figures is None:
            if pool not in uses:
                book = self._directory.books[pool]
                uses[pool] = (float(book.used_bytes), float(book.capacity_bytes))
            return _USE, uses[pool]
        names = tuple(name for name, _ in figures)
        return self._names.setdefault(names, names), tuple(value for _, value in figures)

    def _add(self, entry: _Entry) -> None:
        if len(self._entries) < self.capacity:
            self._entries.append(entry)
            return
        self._entries[self._next] = entry
        self._next = (self._next + 1) % self.capacity

    # ------------------------------------------------------------------------------------------------ read

    def of(self, space: int, key: bytes) -> list[PastMove]:
        """The block's moves that are remembered, oldest first. Linear in the ring; takes the lock for a copy of it."""
        with self._directory.lock:
            entries, start = self._entries.copy(), self._next
        names = [str(book.id) for book in self._directory.books]
        return [
            PastMove(decided, ended, names[source], None if target is None else names[target], reason, outcome,
                     dict(zip(labels, values, strict=True)))
            for of_space, of_key, decided, ended, source, target, reason, outcome, labels, values
            in chain(entries[start:], entries[:start])
            if of_key == key and of_space == space
        ]  # fmt: skip

    def spaces_of(self, key: bytes) -> set[int]:
        """Namespaces in which a block of this key has moved."""
        with self._directory.lock:
            entries = self._entries.copy()
        return {entry[0] for entry in entries if entry[1] == key}


_USE: _Names = ("used_bytes", "capacity_bytes")
