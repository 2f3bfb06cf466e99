"""The sequences of a host: every call on them, over one directory and its migrator.

Thread-safe. No call waits: what may take time is a `Ticket`. A call is decided under the directory's lock; bytes move
outside it. Sessions own sequences: when one ends or lapses, by whatever way, its sequences are gone.
"""

from collections.abc import Sequence as ListOf
from typing import Any

import numpy as np

from hybridkv.migration.migrator import Migrator
from hybridkv.migration.tickets import Ticket
from hybridkv.paging.backing import Blocks
from hybridkv.paging.fault import Part
from hybridkv.paging.looking import look
from hybridkv.paging.registry import PagingRules
from hybridkv.paging.replies import (
    AdvanceReply,
    FaultReply,
    ResizeReply,
    ResumeReply,
    SequenceInfo,
    StickyReply,
    SuspendReply,
    TranslateReply,
    Want,
)
from hybridkv.paging.resizing import split_pages
from hybridkv.paging.sequences_base import NO_EVENTS, Events, SequencesBase
from hybridkv.paging.states import Backed
from hybridkv.paging.table_checks import checked_page_blocks
from hybridkv.paging.windows import Window
from hybridkv.tiers.directory.holds import Session
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.points import point


class Sequences(SequencesBase):
    """Calls take the directory's `Session`, alive, and check everything else. See `service/sequence_calls.py`."""

    def __init__(self, migrator: Migrator, rules: PagingRules) -> None:
        super().__init__(migrator, rules)
        migrator.on_stir = self._advance
        migrator.others_at_rest = self._at_rest

    # ------------------------------------------------------------------------------------------------ pages

    def fault(self, session: Session, wants: ListOf[Want], *, hold: bool, life_s: float) -> Ticket[FaultReply]:
        """See `Faults`. Raises ResourceExhaustedError when there is no room: nothing was changed then."""
        with self._directory.lock:
            parts = []
            for want in wants:
                sequence = self.registry.of(session, want.sequence)
                parts.append(Part(sequence, sequence.checked(np.asarray(want.blocks, np.int64)), want.write))
            return self.faults.start(session, parts, hold=hold, life_s=life_s)

    def translate(self, session: Session, number: int, blocks: Blocks) -> TranslateReply:
        """Where blocks are now. Brings nothing."""
        with self._directory.lock:
            sequence = self.registry.used(self.registry.of(session, number))
            states, slots = look(self._directory, [(sequence, sequence.checked(np.asarray(blocks, np.int64)))])
            return TranslateReply(states, slots, sequence.page_blocks)

    # ------------------------------------------------------------------------------------------------ suspend

    def suspend(self, session: Session, numbers: ListOf[int], events: Events = NO_EVENTS) -> Ticket[SuspendReply]:
        """The sequences leave their pools; their leases end. Done when nothing more of them is on its way down."""

        def act() -> Ticket[SuspendReply]:
            sequences = self.registry.all_of(session, numbers)
            for sequence in sequences:
                self.sharing.end_leases(sequence)
                self.sharing.seal_for_itself(sequence)
            self.figures.suspends += len(sequences)
            return self._all_suspended(self.suspension.start(sequences))

        with self._directory.lock:
            for sequence in self.registry.all_of(session, numbers):
                ended = FailedPreconditionError(f"sequence: {sequence.id} was suspended meanwhile")
                self.faults.forget_sequence(sequence, ended)
            ticket = self.deferred.run(session.id, events, act)
        self._migrator.stir()
        return ticket

    def _all_suspended(self, tickets: list[Ticket[SuspendReply]]) -> Ticket[SuspendReply]:
        """One ticket for those of several pools."""
        if len(tickets) == 1:
            return tickets[0]

        def reply() -> SuspendReply:
            replies = [ticket.reply() for ticket in tickets]
            return SuspendReply(sum(r.left for r in replies), sum(r.stayed for r in replies))

        whole: Ticket[SuspendReply] = Ticket(reply, lambda: None)

        def look_again() -> None:
            if all(ticket.done for ticket in tickets):
                whole.finish()

        look_again()
        for ticket in tickets:
            ticket.add_done_callback(look_again)
        return whole

    def resume(self, session: Session, numbers: ListOf[int]) -> Ticket[ResumeReply]:
        """All their blocks come back in one batch. Raises ResourceExhaustedError when they do not fit: they stay suspended."""
        with self._directory.lock:
            sequences = self.registry.all_of(session, numbers)
            parts = [Part(sequence, sequence.sealed(), False) for sequence in sequences]
            fault = self.faults.start(session, parts, hold=False, life_s=0.0)
            self.figures.resumes += len(sequences)

        def reply() -> ResumeReply:
            fault.reply()
            point("sequence.resumed")
            with self._directory.lock:
                return ResumeReply(
                    sum(sequence.table.mapped_count for sequence in sequences),
                    sum(len(sequence.backing.blocks(Backed.LOST)) for sequence in sequences),
                )

        ticket: Ticket[ResumeReply] = Ticket(reply, fault.abandon)
        fault.add_done_callback(ticket.finish)
        return ticket

    # ------------------------------------------------------------------------------------------------ pages' sizes, places

    def adjust_page_size(
        self, page_blocks: int, *, session: Session | None = None, number: int | None = None
    ) -> Ticket[ResizeReply]:
        """Pages of so many blocks from now on: one sequence's, or, with neither argument, all there are and will be."""
        size = checked_page_blocks(page_blocks)
        with self._directory.lock:
            if session is not None and number is not None:
                return self.resizing.start([self.registry.used(self.registry.of(session, number))], size)
            self._page_blocks = size
            return self.resizing.start(list(self.mappings.sequences.values()), size)

    def set_sticky(self, session: Session, number: int, first_block: int, count: int, sticky: bool) -> StickyReply:
        """Blocks that are never evicted while the sequence is awake, or are again like others."""
        with self._directory.lock:
            sequence = self.registry.used(self.registry.of(session, number))
            sequence.checked(np.array([first_block, first_block + count - 1] if count > 0 else [], np.int64))
            blocks = np.arange(first_block, first_block + max(0, count))
            return self.stickiness.set(sequence, blocks, sticky, self.rules.sticky_limit)

    def advance(self, session: Session, number: int, position: int, window: Window | None = None) -> AdvanceReply:
        """The sequence is read around `position` (in tokens; its end is allowed). What `window` (None: the last one given, or
        else the pattern of the positions) needs is kept, what it will need is prefetched, the rest of that is given up."""
        with self._directory.lock:
            sequence = self.registry.used(self.registry.of(session, number))
            if not 0 <= position <= sequence.tokens:
                raise InvalidArgumentError("position", f"{position}: {sequence} ends at {sequence.tokens}")
            slots = self._directory.books[sequence.pool].capacity_slots(sequence.block_bytes)
            return self.ahead.advance(sequence, position, window, int(slots * self.rules.sticky_limit))

    def describe(self, session: Session, number: int) -> SequenceInfo:
        """One sequence in figures."""
        with self._directory.lock:
            sequence = self.registry.of(session, number)
            backing, table = sequence.backing, sequence.table
            lost = len(backing.blocks(Backed.LOST))
            return SequenceInfo(
                sequence.id,
                sequence.tokens,
                sequence.blocks,
                len(backing.blocks()) - lost,
                table.mapped_count,
                len(sequence.writable),
                lost,
                len(sequence.sticky),
                sequence.suspended,
                sequence.page_blocks,
                table.entry_count,
                split_pages(sequence),
                table.nbytes + backing.nbytes,
                sequence.pool,
            )

    # ------------------------------------------------------------------------------------------------ time

    def tick(self) -> None:
        """One background pass: events, idle sequences, pages that can be joined now. Without the lock."""
        self.deferred.settle()
        with self._directory.lock:
            self._suspend_idle()
            self.resizing.run_once()

    def _suspend_idle(self) -> None:
        """What nobody asked for lately goes down. What is written stays: its owner may be writing at this moment."""
        idle = [sequence for sequence in self.registry.idle() if not self.faults.of(sequence)]
        if idle:
            self.figures.idle_suspends += len(idle)
            self.suspension.start(idle)

    def settle(self) -> None:
        """What workers' device streams have reached meanwhile counts for whoever calls now. Without the lock."""
        self.deferred.settle()

    def _advance(self) -> list[Ticket[Any]]:
        """Something ended (the migrator says so, under the lock): tickets that are done by it."""
        forgotten, self._forgotten = self._forgotten, []
        return [*forgotten, *self.faults.advance(), *self.suspension.advance(), *self.resizing.advance()]

    def _at_rest(self) -> bool:
        return not (len(self.faults) or self.copier.under_way or len(self.suspension) or len(self.resizing))

    def close_all(self) -> None:
        """The host closes. The lanes have ended."""
        self.copier.close()
