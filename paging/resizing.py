"""Changing the page size while sequences are in use: entries are joined or split at once, blocks move where they must.

Blocks that somebody holds, or that are written, stay where they are: their pages stay split, and are tried again with every
background pass. To smaller pages nothing is copied.
"""

from dataclasses import dataclass, field

import numpy as np

from hybridkv.migration.tickets import Ticket
from hybridkv.paging.answers import Answer
from hybridkv.paging.mappings import Mappings
from hybridkv.paging.replies import Figures, ResizeReply
from hybridkv.paging.runs import Runs
from hybridkv.paging.sequence import Sequence
from hybridkv.tiers.directory.moves import Stage, Transfer

_BLOCKS_PER_PASS = 256
"""Blocks that a background pass begins to move next to one another: it is to cost little."""


_TRIES = 4
"""Rounds in which one change of the page size moves blocks: what somebody holds again and again is left to the passes."""


@dataclass(slots=True, eq=False)
class _Joining:
    """Blocks on their way to their neighbours."""

    page_blocks: int
    sequences: list[Sequence]
    entries_before: int
    transfers: list[Transfer]
    tries: int = 0
    answer: Answer[ResizeReply] = field(default_factory=Answer)


class Resizing:
    """Changes under way. Called under the directory's lock."""

    def __init__(self, mappings: Mappings, runs: Runs, figures: Figures) -> None:
        self._mappings = mappings
        self._runs = runs
        self._figures = figures
        self._joinings: list[_Joining] = []
        self._passes: list[Transfer] = []

    def __len__(self) -> int:
        return len(self._joinings)

    def start(self, sequences: list[Sequence], page_blocks: int) -> Ticket[ResizeReply]:
        """These sequences have pages of `page_blocks` from now on. Done when no block moves any more for its sake."""
        before = sum(sequence.table.entry_count for sequence in sequences)
        for sequence in sequences:
            sequence.table.regroup(page_blocks)
        joining = _Joining(page_blocks, sequences, before, [])
        self._joinings.append(joining)
        if self._ended(joining):
            joining.answer.ticket.finish()
        return joining.answer.ticket

    def _ended(self, joining: _Joining) -> bool:
        if any(transfer.stage in (Stage.QUEUED, Stage.RUNNING) for transfer in joining.transfers):
            return False
        if self._go_on(joining):
            return False
        copied = sum(transfer.size for transfer in joining.transfers if transfer.stage is Stage.DONE)
        self._figures.resize_copied_bytes += copied
        open_ones = [sequence for sequence in joining.sequences if not sequence.closed]
        joining.answer.give(
            ResizeReply(
                joining.page_blocks,
                joining.entries_before,
                sum(sequence.table.entry_count for sequence in open_ones),
                copied,
                sum(split_pages(sequence) for sequence in open_ones),
            )
        )
        self._joinings.remove(joining)
        return True

    def _go_on(self, joining: _Joining) -> bool:
        """Begin what may move now; True when something is under way. After a few rounds the background pass goes on."""
        if joining.tries == _TRIES:
            return False
        coming, begun = False, []
        for sequence in joining.sequences:
            if sequence.closed or sequence.page_blocks != joining.page_blocks or sequence.page_blocks == 1:
                continue
            scattered = sequence.table.scattered()
            coming |= self._runs.coming(sequence, len(scattered))
            begun += self._runs.join(sequence, scattered, len(scattered) * joining.page_blocks)
        joining.transfers += begun
        joining.tries += bool(begun)
        return coming or bool(begun)

    def advance(self) -> list[Ticket[ResizeReply]]:
        """Something ended: those that are done."""
        ended = [transfer for transfer in self._passes if transfer.stage not in (Stage.QUEUED, Stage.RUNNING)]
        if ended:
            self._passes = [transfer for transfer in self._passes if transfer not in ended]
            self._figures.resize_copied_bytes += sum(t.size for t in ended if t.stage is Stage.DONE)
            self._join_some()  # before others take the slots that were cleared for it
        return [joining.answer.ticket for joining in list(self._joinings) if self._ended(joining)]

    def run_once(self) -> None:
        """One background pass: pages that were split, and whose blocks may move now, are joined; where no run of slots is
        free for them, one is cleared."""
        self._join_some()
        if self._passes:
            return
        for sequence in self._mappings.sequences.values():
            if sequence.page_blocks > 1 and not sequence.suspended and self._runs.could_join(sequence):
                self._passes += self._runs.make_room(sequence)
                return

    def _join_some(self) -> None:
        left = _BLOCKS_PER_PASS
        for sequence in self._mappings.sequences.values():
            if left > 0 and sequence.page_blocks > 1 and not sequence.suspended:
                begun = self._runs.join(sequence, sequence.table.scattered(), left)
                self._passes += begun
                left -= len(begun)


def split_pages(sequence: Sequence) -> int:
    """Pages with all their blocks resident that are not one entry."""
    return len(sequence.table.scattered()) if sequence.page_blocks > 1 else 0


def waste_blocks(sequence: Sequence) -> int:
    """Slots the sequence writes in beyond the end of its space: what large pages cost."""
    return int(np.count_nonzero(np.fromiter(sequence.writable, np.int64, len(sequence.writable)) >= sequence.blocks))
