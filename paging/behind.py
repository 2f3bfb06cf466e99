"""What lies behind a window makes room for what lies ahead of it.

Policies never take a block before its children (law 7), and the children of what lies behind a window are in the window: no
policy could let it go. The sequence that has moved on can: the pages are let down in order, and none is lost for it.
"""

import numpy as np

from hybridkv.migration.reclaim import Reclaim
from hybridkv.paging.mappings import Mappings
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.states import Priority, Reason


class Behind:
    """Called under the directory's lock."""

    def __init__(self, directory: Directory, mappings: Mappings, reclaim: Reclaim) -> None:
        self._directory = directory
        self._mappings = mappings
        self._reclaim = reclaim

    def make_room(self, sequence: Sequence, pages: range, slots: int) -> int:
        """Let the first of `pages` down until `slots` slots are free or about to be: how many blocks go. Stays: what somebody
        holds, and what another awake sequence of the pool uses."""
        book, size = self._directory.state.mapped(sequence.pool), sequence.block_bytes
        missing = (
            slots - book.free_slots(size) - self._reclaim.coming(sequence.pool, size) - book.table.uncarved_slots(size)
        )
        if missing <= 0 or not len(pages):
            return 0
        k = sequence.page_blocks
        blocks = np.arange(pages.start * k, pages.stop * k)
        rows = sequence.backing.rows(blocks[sequence.backing.kinds(blocks) == Backed.SEALED])
        rows = rows[self._directory.choice.may_go(sequence.pool, None)(rows)]
        going = [row for row in rows.tolist() if self._is_ours(sequence, row)][:missing]
        freed, started = self._reclaim.lower(sequence.pool, _distinct(going), Reason.WINDOW, Priority.PREFETCH)
        return freed + started

    def _is_ours(self, sequence: Sequence, row: int) -> bool:
        sequences = self._mappings.sequences
        others = (sequences[number] for number, _ in self._mappings.reverse.of(row) if number != sequence.id)
        return all(other.suspended or other.pool != sequence.pool for other in others)


def _distinct(rows: list[int]) -> list[int]:
    return list(dict.fromkeys(rows))
