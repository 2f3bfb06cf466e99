"""The seam between the directory and the sequences (paging/): what they hear of blocks that they map."""

from collections.abc import Mapping
from typing import Protocol

from hybridkv.tiers.replacement import Rows


class Mapper(Protocol):
    """Called under the directory's lock, in the middle of its changes: it notes what it hears, and calls nothing back.

    It hears of rows only whose `mapped` column is above zero, and keeps that column itself.
    """

    def left(self, rows: Rows, pool: int) -> None:
        """The copies of `rows` in `pool` are gone, or lie in other slots now. `gone` follows where that was the last one."""

    def gone(self, rows: Rows) -> None:
        """These blocks are gone, or removed: nobody finds them any more, and their rows become others'."""

    def holds(self) -> Mapping[int, int]:
        """How often sequences hold each row in its `holds` column. For `check`."""

    def check(self) -> list[str]:
        """One line for each finding that sequences and directory disagree."""
