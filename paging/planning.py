"""What a fault needs: which blocks are to come up, which need a slot, and whether there is room for them.

Looks only, but for prefetches that give way. Called under the directory's lock.
"""

import numpy as np

from hybridkv.paging.backing import Blocks
from hybridkv.paging.fault import Fault, Missing, Unwritten
from hybridkv.paging.room import Room
from hybridkv.paging.runs import Runs
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.replacement import Rows


class Planning:
    """Plans faults."""

    def __init__(self, directory: Directory, room: Room, runs: Runs) -> None:
        self._directory = directory
        self._room = room
        self._runs = runs

    def hindered(self, fault: Fault) -> bool:
        """Another fault makes one of its blocks writable: it goes first. Or memory is being carved that gives its pages
        adjacent slots."""
        if any(
            part.sequence.busy and not part.sequence.busy.isdisjoint(part.blocks.tolist())
            for part in fault.parts
            if part.write
        ):
            return True
        if all(part.sequence.page_blocks == 1 for part in fault.parts):
            return False
        wanted = [*self.reads(fault), *self.writes(fault).items()]
        return any(
            self._runs.coming(sequence, len(np.unique(blocks // sequence.page_blocks))) for sequence, blocks in wanted
        )

    def reads(self, fault: Fault) -> Missing:
        """Blocks to read that lie in a lower tier only, in whole pages."""
        missing = []
        for part in fault.parts:
            if part.write:
                continue
            sequence = part.sequence
            blocks = sequence.pages(part.blocks, whole=False) if sequence.page_blocks > 1 else part.blocks
            if (sequence.table.words(blocks) != 0).all():
                continue
            absent = self._absent(sequence, blocks)
            if len(absent):
                missing.append((sequence, absent))
        return missing

    def _absent(self, sequence: Sequence, blocks: Blocks) -> Blocks:
        """Of `blocks` those that are sealed and not in the sequence's pool, or not verified there since they were taken
        over."""
        sealed = sequence.backing.kinds(blocks) == Backed.SEALED
        rows = sequence.backing.rows(blocks)
        absent = self._directory.blocks.slot[sequence.pool][rows] == NO_SLOT
        unverified = self._directory.state.unverified
        if unverified.any_in(sequence.pool):
            absent |= unverified.among(rows, sequence.pool)
        return np.asarray(blocks[sealed & absent])

    def writes(self, fault: Fault) -> Unwritten:
        """Blocks that need a slot of the sequence's own, in whole pages."""
        missing: Unwritten = {}
        for part in fault.parts:
            sequence = part.sequence
            if not part.write:
                continue
            needed = part.blocks[sequence.backing.kinds(part.blocks) != Backed.WRITABLE]
            pages = sequence.pages(needed, whole=True)
            kinds = sequence.backing.kinds(pages)
            # A lost block that nobody asked for stays lost: its reader is to hear of it.
            pages = pages[(kinds != Backed.WRITABLE) & ((kinds != Backed.LOST) | np.isin(pages, needed))]
            if len(pages):
                before = missing.get(sequence)
                missing[sequence] = pages if before is None else np.union1d(before, pages)
        return missing

    def count(self, fault: Fault, reads: Missing, writes: Unwritten) -> None:
        for sequence, blocks in reads:
            fault.major += len(np.unique(blocks // sequence.page_blocks))
        for sequence, blocks in writes.items():
            pages = len(np.unique(blocks // sequence.page_blocks))
            below = len(np.unique(self._absent(sequence, blocks) // sequence.page_blocks))
            fault.major += below
            fault.minor += pages - below

    def check_room(self, fault: Fault, reads: Missing, writes: Unwritten) -> None:
        """Raises ResourceExhaustedError when what is missing finds no room, while what is here and needed stays."""
        rows: dict[tuple[int, int], list[Rows]] = {}
        slots: dict[tuple[int, int], int] = {}
        needed = [(part.sequence, part.blocks) for part in fault.parts if not part.write]
        for sequence, blocks in (*needed, *reads, *writes.items()):
            where = sequence.pool, sequence.block_bytes
            rows.setdefault(where, []).append(sealed_rows(sequence, blocks))
        for sequence, blocks in writes.items():
            where = sequence.pool, sequence.block_bytes
            slots[where] = slots.get(where, 0) + len(blocks)
        for (pool, size), parts in rows.items():
            distinct = np.unique(np.concatenate(parts))
            here = self._directory.blocks.slot[pool][distinct] != NO_SLOT
            coming = self._on_their_way(distinct[~here], pool)
            need = int(np.count_nonzero(~here)) - coming + slots.get((pool, size), 0)
            self._room.check(pool, size, need, distinct[here])

    def _on_their_way(self, rows: Rows, pool: int) -> int:
        """Of these blocks, those that have a slot in `pool` already and are being copied there."""
        transfers = self._directory.state.transfers
        moving = rows[self._directory.blocks.busy[rows] > 0].tolist()
        return sum(row in transfers and transfers[row].target == pool for row in moving)


def sealed_rows(sequence: Sequence, blocks: Blocks) -> Rows:
    """Rows of those of `blocks` that are sealed."""
    return sequence.backing.rows(blocks[sequence.backing.kinds(blocks) == Backed.SEALED])
