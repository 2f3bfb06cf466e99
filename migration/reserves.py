"""Reservations that may have to wait for room.

Everything here runs under the directory's lock and returns at once.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.placement import Placement
from hybridkv.migration.reclaim import Reclaim
from hybridkv.migration.tickets import FAILURES, Hooks, Ticket
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.holds import Part, Reservation, Session
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.states import ReserveOutcome, Tier


@dataclass(frozen=True, slots=True)
class ReserveReply:
    """Outcomes (ReserveOutcome, uint8 [n]) and, where NEW, the slots to fill. `reservation` is 0 when none is NEW."""

    reservation: int
    outcomes: NDArray[np.uint8]
    slots: NDArray[np.void]
    expires_in_s: float


class _Reserve:
    """A reservation under way, waiting for room."""

    def __init__(self, reservation: Reservation, outcomes: NDArray[np.uint8]) -> None:
        self.reservation = reservation
        self.outcomes = outcomes
        self.failures = 0
        self.reply: ReserveReply | None = None
        self.ticket: Ticket[ReserveReply]


class Reserves:
    """Reservations under way, by number."""

    def __init__(self, directory: Directory, reclaim: Reclaim, placement: Placement, hooks: Hooks) -> None:
        self._directory = directory
        self._reclaim = reclaim
        self._placement = placement
        self._hooks = hooks
        self._reserves: dict[int, _Reserve] = {}

    def __len__(self) -> int:
        return len(self._reserves)

    def reserve(
        self,
        session: Session,
        keys: Sequence[bytes],
        *,
        parent: bytes,
        tier: Tier | None,
        device: int | None,
        request: int | None,
        life_s: float,
        hints: Hints = NO_HINTS,
    ) -> Ticket[ReserveReply]:
        """Slots for the keys that nobody has; the longest prefix of them that finds room."""
        pools, target = self._placement.acceptable(tier, device)
        if tier is None:
            gpus = [p for p in pools if self._directory.books[p].id.tier is Tier.GPU]
            target = self._placement.least_used(gpus) if gpus else target
        reservation, outcomes = self._directory.writes.begin(session, keys, parent, target, request, life_s)
        self._directory.accesses.hinted(session, reservation, hints)
        return self._begin(reservation, outcomes)

    def reserve_private(
        self, session: Session, count: int, pool: int, run_blocks: int
    ) -> tuple[Reservation, Ticket[ReserveReply]]:
        """Slots in `pool` for `count` blocks of a sequence's own; every `run_blocks` of them adjacent where that can be."""
        width = self._directory.state.spaces[session.namespace].key_bytes
        keys = Keys(secrets.token_bytes(count * width), width).as_list()
        reservation = self._directory.writes.begin_private(session, keys, pool, run_blocks)
        return reservation, self._begin(reservation, np.full(count, ReserveOutcome.NO_ROOM, np.uint8))

    def _begin(self, reservation: Reservation, outcomes: NDArray[np.uint8]) -> Ticket[ReserveReply]:
        reserve = _Reserve(reservation, outcomes)
        reserve.ticket = Ticket(lambda: self._reply_reserve(reserve), lambda: self._abandon_reserve(reserve))
        self._reserves[reservation.id] = reserve
        if self._advance_reserve(reserve):
            self._reserves.pop(reservation.id, None)
            reserve.ticket.finish()
        return reserve.ticket

    def _advance_reserve(self, reserve: _Reserve) -> bool:
        """True when nothing more can come: every key has its slot, or no room can be made."""
        directory, reservation = self._directory, reserve.reservation
        waiting = directory.writes.fill(reservation)
        size = directory.state.spaces[reservation.namespace].block_bytes
        if waiting and self._hooks.displace(reservation.pool, size, waiting):
            waiting = directory.writes.fill(reservation)
        while waiting and not reservation.lapsed and reserve.failures < FAILURES:
            coming, barred = self._reclaim.allowance.made(reservation.pool, reservation.namespace, waiting)
            if waiting > barred:
                coming |= self._reclaim.make_room(reservation.pool, size, waiting - barred)
            before, waiting = waiting, directory.writes.fill(reservation)
            if not coming:
                return True
            if waiting == before:
                return False
            # Slots came free without a byte moved. It may be that nothing else is on its way, so look again.
        return True

    def _reply_reserve(self, reserve: _Reserve) -> ReserveReply:
        directory, reservation = self._directory, reserve.reservation
        with directory.lock:
            if reserve.reply is not None:
                return reserve.reply
            self._reserves.pop(reservation.id, None)
            if reservation.lapsed or reservation.id not in directory.state.ledger.reservations:
                raise ResourceExhaustedError("reservation", "ended while it waited for room")
            wanted = int(np.count_nonzero(np.isin(reservation.parts, (Part.WAITING, Part.OPEN))))
            directory.writes.stop_waiting(reservation)
            ours = np.flatnonzero(reservation.parts == Part.OPEN)
            if wanted and not len(ours):
                raise self._no_room(reservation, wanted)
            slots = np.zeros(len(reservation.keys), SLOT_DTYPE)
            slots[ours] = directory.state.mapped(reservation.pool).translations(reservation.slots[ours])
            reserve.outcomes[ours] = ReserveOutcome.NEW
            left_s = max(0.0, reservation.expires_at - directory.state.clock.now())
            number = reservation.id if len(ours) else 0
            directory.writes.tell(reservation)
            reserve.reply = ReserveReply(number, reserve.outcomes, slots, left_s)
            return reserve.reply

    def _no_room(self, reservation: Reservation, wanted: int) -> ResourceExhaustedError:
        self._directory.state.counters["reserves_without_room"] += 1
        refused = self._reclaim.allowance.refusal(reservation.pool, reservation.namespace, wanted)
        if refused is not None:
            return refused
        book = self._directory.state.mapped(reservation.pool)
        uses = ", ".join(
            f"{use.name.lower()} {book.table.bytes_by_use[use]}" for use in SlotUse if use is not SlotUse.FREE
        )
        size = self._directory.state.spaces[reservation.namespace].block_bytes
        return ResourceExhaustedError(
            str(book.id),
            f"no room for {wanted} blocks of {size} bytes: {book.used_bytes} of {book.capacity_bytes} bytes used ({uses})",
        )

    def _abandon_reserve(self, reserve: _Reserve) -> None:
        with self._directory.lock:
            self._reserves.pop(reserve.reservation.id, None)
            if reserve.reservation.id in self._directory.state.ledger.reservations:
                self._directory.writes.end(reserve.reservation)
        reserve.ticket.finish()

    # ------------------------------------------------------------------------------------------------ events

    def of_session(self, session: int) -> list[Ticket[ReserveReply]]:
        """The session ends: nobody waits for its reservations. Its tickets, to be finished once the lock is free."""
        ended = [r for r in self._reserves.values() if r.reservation.session == session]
        for reserve in ended:
            del self._reserves[reserve.reservation.id]
        return [reserve.ticket for reserve in ended]

    def note_failures(self, pools: set[int]) -> None:
        """Demotions out of these pools failed."""
        for reserve in self._reserves.values():
            reserve.failures += reserve.reservation.pool in pools

    def advance(self) -> list[Ticket[ReserveReply]]:
        """Something ended, was freed or lapsed: the tickets that are done now."""
        done = []
        for reserve in list(self._reserves.values()):
            if self._advance_reserve(reserve):
                self._reserves.pop(reserve.reservation.id, None)
                done.append(reserve.ticket)
        return done
