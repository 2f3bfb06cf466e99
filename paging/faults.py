"""Page faults: blocks are brought up, allocated or copied in one batch; all of it, or nothing.

A fault is a ticket. It looks for room first and is refused when there is none. Then it leases what it reads, through the
machinery of acquires, which joins copies that are on their way for others; it reserves what it writes; it copies what was
shared; and at its end all blocks are mapped in one step. Nobody sees a part of it.
"""

from typing import Any

import numpy as np

from hybridkv.migration.migrator import Migrator
from hybridkv.migration.tickets import Ticket
from hybridkv.paging.backing import Blocks
from hybridkv.paging.copier import Copier
from hybridkv.paging.copying import check_all_came, slots_to_copy
from hybridkv.paging.fault import Fault, Fresh, Missing, Part, Unwritten
from hybridkv.paging.landing import Landing
from hybridkv.paging.mappings import Mappings
from hybridkv.paging.planning import Planning, sealed_rows
from hybridkv.paging.replies import FaultReply, Figures
from hybridkv.paging.runs import Runs
from hybridkv.paging.sequence import Sequence
from hybridkv.tiers.directory.holds import Session
from hybridkv.tiers.errors import (
    DeadlineExceededError,
    HybridKVError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Tier

_LIFE_S = 3600.0
"""Of the lease under which a fault works: it ends with the fault or its session, long before."""


class Faults:
    """Faults under way. Called under the directory's lock, but for what tickets call."""

    def __init__(
        self, migrator: Migrator, mappings: Mappings, copier: Copier, planning: Planning, runs: Runs, figures: Figures
    ) -> None:
        self._migrator = migrator
        self._directory = migrator.directory
        self._mappings = mappings
        self._copier = copier
        self._planning = planning
        self._landing = Landing(migrator.directory, mappings)
        self._runs = runs
        self._figures = figures
        self._faults: list[Fault] = []
        self._finished: list[Ticket[FaultReply]] = []

    def __len__(self) -> int:
        return len(self._faults)

    # ------------------------------------------------------------------------------------------------ begin

    def start(self, session: Session, parts: list[Part], *, hold: bool, life_s: float) -> Ticket[FaultReply]:
        """See `Sequences.fault`. Raises ResourceExhaustedError; nothing was changed then."""
        now = self._directory.state.clock.now()
        fault = Fault(
            session, parts, hold, life_s, now, Ticket(lambda: self._reply(fault), lambda: self._give_up(fault))
        )
        for part in parts:
            part.sequence.last_used = now
        self._faults.append(fault)
        try:
            self._go_on(fault)
        except HybridKVError:
            self._undo(fault)
            raise
        return self._started(fault)

    def _started(self, fault: Fault) -> Ticket[FaultReply]:
        """Its ticket, finished at once when nothing is missing: nobody can wait for it yet."""
        if fault.reply is not None:
            self._finished.remove(fault.ticket)
            fault.ticket.finish()
        return fault.ticket

    def _go_on(self, fault: Fault) -> None:
        """Plan it when nothing hinders it; finish it when nothing is missing."""
        if not fault.planned:
            if self._planning.hindered(fault):
                return
            self._plan(fault)
        waits: list[Ticket[Any]] = [*fault.acquires, *(fresh.ticket for fresh in fault.reserves)]
        if fault.copying or any(not ticket.done for ticket in waits):
            return
        if waits and not fault.copied:
            check_all_came(fault)
            self._copy(fault)
        if not fault.copying:
            self._finish(fault)

    # ------------------------------------------------------------------------------------------------ plan

    def _plan(self, fault: Fault) -> None:
        reads = self._planning.reads(fault)
        writes = self._planning.writes(fault)
        self._planning.count(fault, reads, writes)
        fault.planned = True
        if not reads and not writes:
            return
        self._planning.check_room(fault, reads, writes)
        for sequence, blocks in writes.items():
            sequence.busy.update(blocks.tolist())
        self._lease(fault, reads, writes)
        self._reserve(fault, writes)

    # ------------------------------------------------------------------------------------------------ get

    def _lease(self, fault: Fault, reads: Missing, writes: Unwritten) -> None:
        """Lease all that is read or copied, wherever it lies; what lies lower comes up."""
        by_pool: dict[int, list[Rows]] = {}
        for part in fault.parts:
            if not part.write:
                by_pool.setdefault(part.sequence.pool, []).append(sealed_rows(part.sequence, part.blocks))
        for sequence, blocks in (*reads, *writes.items()):
            by_pool.setdefault(sequence.pool, []).append(sealed_rows(sequence, blocks))
        for sequence, blocks in reads:
            self._runs.bring(sequence, blocks)
        keys = self._directory.blocks.keys
        for pool, parts in by_pool.items():
            rows = np.unique(np.concatenate(parts))
            if not len(rows):
                continue
            tier = self._directory.books[pool].id
            ticket = self._migrator.demand.acquires.acquire(
                fault.session,
                [keys[row] for row in rows.tolist()],
                tier=tier.tier,
                device=tier.device if tier.tier is Tier.GPU else None,
                views=False,
                independent=True,
                request=None,
                life_s=_LIFE_S,
            )
            fault.acquires.append(ticket)
            self._wait_for(fault, ticket)

    def _reserve(self, fault: Fault, writes: Unwritten) -> None:
        """One reservation for all blocks of a pool that come in runs of one length."""
        groups: dict[tuple[int, int], list[tuple[Sequence, Blocks]]] = {}
        for sequence, blocks in writes.items():
            run = sequence.page_blocks if len(blocks) % sequence.page_blocks == 0 else 1
            groups.setdefault((sequence.pool, run), []).append((sequence, blocks))
        for (pool, run), some in groups.items():
            count = sum(len(blocks) for _, blocks in some)
            reservation, ticket = self._migrator.demand.reserves.reserve_private(fault.session, count, pool, run)
            self._mappings.filling.add(reservation.id)
            fault.reserves.append(Fresh(some, reservation, ticket))
            self._wait_for(fault, ticket)

    def _wait_for(self, fault: Fault, ticket: Ticket[Any]) -> None:
        if not ticket.done:
            ticket.add_done_callback(lambda: self._wake(fault))

    # ------------------------------------------------------------------------------------------------ copy

    def _copy(self, fault: Fault) -> None:
        """Begin the copies of what was shared."""
        fault.copied = True
        for fresh in fault.reserves:
            sources, targets = slots_to_copy(self._directory, fresh)
            if len(sources):
                fault.copying += 1
                pool, size = fresh.reservation.pool, fresh.parts[0][0].block_bytes
                self._figures.copied_on_write += len(sources)
                self._figures.copied_on_write_bytes += len(sources) * size
                self._copier.begin(pool, size, sources, targets, lambda error: self._copied(fault, error))

    def _copied(self, fault: Fault, error: BaseException | None) -> None:
        with self._directory.lock:
            fault.copying -= 1
            if error is not None and fault in self._faults:
                self._fail(fault, UnavailableError(f"a copy on write failed: {error}"))
        self._wake(fault)
        self._migrator.stir()

    # ------------------------------------------------------------------------------------------------ end

    def _wake(self, fault: Fault) -> None:
        """Something it waited for is there. Without the lock."""
        with self._directory.lock:
            self._try(fault)
            done = self.advance()
        for ticket in done:
            ticket.finish()

    def _try(self, fault: Fault) -> None:
        if fault not in self._faults:
            return
        try:
            self._go_on(fault)
        except HybridKVError as error:
            self._fail(fault, error)

    def _fail(self, fault: Fault, error: HybridKVError) -> None:
        if isinstance(error, ResourceExhaustedError):
            self._figures.faults_without_room += 1
        fault.error = error
        self._undo(fault)
        self._finished.append(fault.ticket)

    def advance(self) -> list[Ticket[FaultReply]]:
        """Go on with faults that others hindered. Tickets that are done: to be finished without the lock."""
        for fault in [fault for fault in self._faults if not fault.planned]:
            self._try(fault)
        done, self._finished = self._finished, []
        return done

    def _undo(self, fault: Fault) -> None:
        """Nothing of it stays but what was brought up."""
        if fault not in self._faults:
            return
        self._faults.remove(fault)
        for acquire in fault.acquires:
            acquire.abandon()
        for fresh in fault.reserves:
            self._mappings.filling.discard(fresh.reservation.id)
            for sequence, blocks, _ in fresh.places():
                sequence.busy.difference_update(blocks.tolist())
            fresh.ticket.abandon()

    def _finish(self, fault: Fault) -> None:
        fault.reply = self._landing.land(fault)
        for acquire in fault.acquires:
            acquire.abandon()
        self._faults.remove(fault)
        took_s = self._directory.state.clock.now() - fault.began_at
        self._note(fault, took_s)
        self._finished.append(fault.ticket)

    def _note(self, fault: Fault, took_s: float) -> None:
        self._figures.minor_faults += fault.minor
        self._figures.major_faults += fault.major
        self._figures.fault_s += took_s
        if fault.major:
            self._figures.major_fault_s += took_s

    # ------------------------------------------------------------------------------------------------ callers

    def _reply(self, fault: Fault) -> FaultReply:
        with self._directory.lock:
            if fault.reply is None and fault.error is None:
                self._fail(fault, DeadlineExceededError("the fault was not served in time; nothing was changed"))
            done = self.advance()
        for ticket in done:
            ticket.finish()
        if fault.error is not None:
            raise fault.error
        assert fault.reply is not None
        return fault.reply

    def _give_up(self, fault: Fault) -> None:
        """The caller is gone: a fault under way ends, and so do the leases of one that has ended."""
        with self._directory.lock:
            if fault.reply is not None:
                ledger = self._directory.state.ledger.leases
                for number in fault.reply.leases:
                    if number in ledger:
                        self._directory.leases.end(ledger[number])
            elif fault.error is None:
                self._fail(fault, NotFoundError("the caller of this fault is gone"))
            done = self.advance()
        for ticket in done:
            ticket.finish()

    def forget_session(self, session: int) -> None:
        """The session ends: so do its faults. Their tickets are among those that `advance` gives next."""
        for fault in [fault for fault in self._faults if fault.session.id == session]:
            self._fail(fault, NotFoundError(f"session: {session} is not attached"))

    def forget_sequence(self, sequence: Sequence, error: HybridKVError) -> None:
        """It is being closed or suspended; likewise."""
        for fault in self.of(sequence):
            self._fail(fault, error)

    def of(self, sequence: Sequence) -> list[Fault]:
        """Faults of the sequence that are under way."""
        return [fault for fault in self._faults if any(part.sequence is sequence for part in fault.parts)]
