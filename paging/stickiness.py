"""Sticky blocks: sinks and system prompts, which are never evicted; and how much of a pool they may take.

Called under the directory's lock.
"""

import numpy as np

from hybridkv.paging.backing import Blocks
from hybridkv.paging.mappings import Mappings
from hybridkv.paging.replies import StickyReply
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.errors import InvalidArgumentError, ResourceExhaustedError


class Stickiness:
    """Marks blocks. A block that several sequences share counts once."""

    def __init__(self, directory: Directory, mappings: Mappings) -> None:
        self._directory = directory
        self._mappings = mappings

    def set(self, sequence: Sequence, blocks: Blocks, sticky: bool, limit: float) -> StickyReply:
        """These blocks, which are mapped, are sticky, or not any more. `limit`: the fraction of the pool they may take.

        Raises ResourceExhaustedError with the figures beyond it, InvalidArgumentError for a block with nothing in it.
        """
        kinds = sequence.backing.kinds(blocks)
        empty = blocks[(kinds == Backed.NOTHING) | (kinds == Backed.LOST)]
        limit_bytes = int(self._directory.books[sequence.pool].capacity_bytes * limit)
        before = set(sequence.sticky)
        if sticky:
            if len(empty):
                raise InvalidArgumentError("first_block", f"block {int(empty[0])} has nothing in it that could be kept")
            sequence.sticky |= set(blocks.tolist())
            asked = self.bytes_in(sequence.pool)
            if asked > limit_bytes:
                sequence.sticky = before
                raise ResourceExhaustedError(
                    "paging.sticky_limit",
                    f"{asked} bytes would be sticky in {self._directory.books[sequence.pool].id}; the limit is {limit_bytes}",
                )
        else:
            sequence.sticky -= set(blocks.tolist())
        if not sequence.suspended:
            self._mappings.hold(sequence, sequence.sticky - before, 1)
            self._mappings.hold(sequence, before - sequence.sticky, -1)
        return StickyReply(self.bytes_in(sequence.pool), limit_bytes)

    def bytes_in(self, pool: int) -> int:
        """Bytes of the sticky blocks of the sequences that live in `pool`."""
        rows: dict[int, int] = {}
        for sequence in self._mappings.sequences.values():
            if sequence.pool == pool and sequence.sticky:
                blocks = np.fromiter(sequence.sticky, np.int64, len(sequence.sticky))
                found = sequence.backing.rows(blocks)
                rows.update(dict.fromkeys(found[found >= 0].tolist(), sequence.block_bytes))
        return sum(rows.values())
