"""What moves were made: counts and bytes by direction, reason and outcome."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from hybridkv.migration.history import MoveHistory
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.moves import Stage, Transfer
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Reason

_OUTCOMES = {Stage.DONE: "done", Stage.FAILED: "failed", Stage.CANCELLED: "cancelled"}


_label = attrgetter("source", "target", "reason", "stage", "size")


class MoveLedger:
    """Counts moves. Called under the directory's lock. Bounded: pools × pools × reasons × outcomes."""

    def __init__(self, directory: Directory, history_moves: int) -> None:
        self.history = MoveHistory(directory, history_moves)
        self._directory = directory
        self._names = [str(book.id) for book in directory.books]
        self._counts: Counter[tuple[str, str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str, str, str]] = Counter()

    def ended(self, transfer: Transfer) -> None:
        """A transfer has ended, in whatever way its stage says."""
        self.all_ended([transfer])

    def all_ended(self, transfers: Sequence[Transfer]) -> None:
        """These transfers have."""
        for (source, target, reason, stage, size), group in groupby(transfers, _label):
            count = len([*group])
            self._add(source, self._names[target], reason, _OUTCOMES[stage], count * size, count)
        self.history.ended(transfers)

    def dropped(self, pool: int, reason: Reason, outcome: str, rows: Rows, size: int) -> None:
        """Copies (of one size) are about to leave a pool without a transfer: outcome "free" (another copy stays) or
        "evicted" (the last one)."""
        if len(rows):
            self._add(pool, "none", reason, outcome, len(rows) * size, len(rows))
            self.history.dropped(pool, rows, reason, outcome)

    def _add(self, source: int, target: str, reason: Reason, outcome: str, nbytes: int, count: int = 1) -> None:
        label = (self._names[source], target, str(reason), outcome)
        self._counts[label] += count
        self._bytes[label] += nbytes

    def rows(self) -> list[dict[str, Any]]:
        """For stats: one entry per label."""
        return [
            {
                "from": a,
                "to": b,
                "reason": reason,
                "outcome": outcome,
                "count": n,
                "bytes": self._bytes[a, b, reason, outcome],
            }
            for (a, b, reason, outcome), n in sorted(self._counts.items())
        ]
