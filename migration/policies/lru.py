"""Least recently used, exactly."""

from collections.abc import Iterator

from hybridkv.migration.policies.lists import RowLists
from hybridkv.tiers.replacement import Rows


class Lru:
    """A `Policy`: the row whose insertion or last touch is longest ago comes first. Not thread-safe."""

    def __init__(self) -> None:
        self._lists = RowLists()

    def inserted(self, rows: Rows, now: float) -> None:
        self._lists.require_new(rows)
        self._lists.append(rows, 0)

    def touched(self, rows: Rows, now: float) -> None:
        self._lists.renew(rows)

    def removed(self, rows: Rows) -> None:
        self._lists.require_held(rows)
        self._lists.remove(rows)

    def scan(self) -> Iterator[Rows]:
        return (rows for rows, _ in self._lists.scan(0))

    def __len__(self) -> int:
        return len(self._lists)

    def __repr__(self) -> str:
        return f"Lru({self._lists!r})"

    def check(self) -> list[str]:
        return self._lists.check()
