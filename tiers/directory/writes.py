"""Reservations: the first half of a write, its publication, and every way it can end without one."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.accesses import Accesses
from hybridkv.tiers.directory.blocks import Checksum
from hybridkv.tiers.directory.copies import Copies
from hybridkv.tiers.directory.holds import Part, Reservation, Session
from hybridkv.tiers.directory.packed import PackedKeys
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.points import point
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState, ReserveOutcome, SealOutcome

Positions = NDArray[np.int64]


class Writes:
    """Opens, fills, seals and ends reservations. Called under the lock."""

    def __init__(self, state: State, copies: Copies, accesses: Accesses) -> None:
        self._state = state
        self._copies = copies
        self._accesses = accesses

    # ------------------------------------------------------------------------------------------------ begin

    def begin(
        self, session: Session, keys: Sequence[bytes], parent: bytes, pool: int, request: int | None, life_s: float
    ) -> tuple[Reservation, NDArray[np.uint8]]:
        """Make the keys that nobody has ours to write, their slots still WAITING; outcomes so far, uint8 [n].

        `keys` are distinct, a chain after `parent` (empty at the head). From now on others are told BEING_WRITTEN.
        """
        state, blocks = self._state, self._state.blocks
        packed = PackedKeys.of(keys)
        rows = blocks.find(session.namespace, packed)
        known = rows != NO_ROW
        outcomes = np.full(len(keys), ReserveOutcome.NO_ROOM, np.uint8)
        outcomes[known] = np.where(
            blocks.state[rows[known]] == BlockState.SEALED, ReserveOutcome.PRESENT, ReserveOutcome.BEING_WRITTEN
        )
        present = rows[known]
        self._accesses.join(session, request, present[blocks.state[present] == BlockState.SEALED], life_s)
        ours = np.flatnonzero(~known)
        new = blocks.allocate(len(ours))
        rows[ours] = new
        head = blocks.find_one(session.namespace, parent) if parent else NO_ROW
        parents = np.concatenate([np.array([head], np.int64), rows[:-1]])
        before = packed.after(parent)
        blocks.insert(session.namespace, packed[ours], new, before[ours], BlockState.RESERVED, parents[ours])
        blocks.set_highest(new, state.books[pool].id.tier)
        parts = np.full(len(keys), Part.NOT_OURS, np.uint8)
        parts[ours] = Part.WAITING
        rows[known] = NO_ROW
        reservation = Reservation(
            state.ledger.next_number(),
            session.id,
            request,
            session.namespace,
            pool,
            keys,
            rows,
            np.full(len(keys), -1, np.int64),
            parts,
            state.clock.now() + life_s,
        )
        reservation.begun_at = state.clock.now()
        state.ledger.add(reservation)
        return reservation, outcomes

    def begin_private(self, session: Session, keys: Sequence[bytes], pool: int, run_blocks: int) -> Reservation:
        """Blocks of a sequence's own, under keys that nobody else knows and no chain has; they live until they are ended."""
        reservation, _ = self.begin(session, keys[:0], b"", pool, None, math.inf)
        blocks, rows = self._state.blocks, self._state.blocks.allocate(len(keys))
        blocks.insert(session.namespace, keys, rows, [b""] * len(keys), BlockState.RESERVED)
        blocks.set_highest(rows, self._state.books[pool].id.tier)
        blocks.private[rows] = 1
        reservation.keys, reservation.rows = list(keys), rows
        reservation.slots = np.full(len(keys), -1, np.int64)
        reservation.parts = np.full(len(keys), Part.WAITING, np.uint8)
        reservation.run_blocks = run_blocks
        return reservation

    def rekey(self, reservation: Reservation, positions: Positions, keys: Sequence[bytes], parent: bytes) -> None:
        """Private blocks that are still written become those of `keys`, a chain after `parent` that nobody has."""
        blocks, rows = self._state.blocks, reservation.rows[positions]
        blocks.unindex(rows)
        blocks.insert(reservation.namespace, keys, rows, [parent, *keys[:-1]], BlockState.RESERVED)
        blocks.private[rows] = 0
        names = list(reservation.keys)
        for position, key in zip(positions.tolist(), keys, strict=True):
            names[position] = key
        reservation.keys = names

    def fill(self, reservation: Reservation) -> int:
        """Give slots to WAITING keys, first come first: how many still wait."""
        waiting = np.flatnonzero(reservation.parts == Part.WAITING)
        if len(waiting):
            book = self._state.books[reservation.pool]
            size = self._state.spaces[reservation.namespace].block_bytes
            if reservation.run_blocks > 1:
                slots = self._state.mapped(reservation.pool).take_in_runs(
                    size, reservation.rows[waiting], SlotUse.RESERVED, reservation.run_blocks
                )
            else:
                slots = book.take(size, reservation.rows[waiting], SlotUse.RESERVED)
            filled = waiting[: len(slots)]
            reservation.slots[filled] = slots
            reservation.parts[filled] = Part.OPEN
            point("reserve.granted")
        return int(np.count_nonzero(reservation.parts == Part.WAITING))

    def tell(self, reservation: Reservation) -> None:
        """Its owner is about to hear of the slots, and may write to them from then on: that outlives this daemon."""
        reservation.told = True
        self.own(reservation)

    def own(self, reservation: Reservation) -> None:
        """Note in the headers whose the open slots are."""
        owner = self._state.ledger.sessions[reservation.session].owner
        if owner:
            slots = reservation.slots[np.isin(reservation.parts, (Part.OPEN, Part.LAPSED))]
            self._state.mapped(reservation.pool).own(slots, owner)

    def stop_waiting(self, reservation: Reservation) -> None:
        """Keys that got no slot are no longer ours; a reservation without any is over."""
        waiting = np.flatnonzero(reservation.parts == Part.WAITING)
        reservation.parts[waiting] = Part.NOT_OURS
        self._forget_rows(reservation.rows[waiting])
        reservation.rows[waiting] = NO_ROW
        ours = np.flatnonzero(reservation.parts == Part.OPEN)
        if len(ours):
            session = self._state.ledger.sessions[reservation.session]
            life_s = max(0.0, reservation.expires_at - self._state.clock.now())
            self._accesses.join(session, reservation.request, reservation.rows[ours], life_s)
        else:
            self._drop_if_done(reservation)

    # ------------------------------------------------------------------------------------------------ end

    def seal(
        self, reservation: Reservation, positions: Positions, checksums: NDArray[np.uint64] | None
    ) -> NDArray[np.uint8]:
        """Publish the blocks at `positions`. SealOutcome of each, uint8 [m]; checksums uint64 [m], None: not known."""
        outcomes = np.full(len(positions), SealOutcome.EXPIRED, np.uint8)
        if reservation.lapsed:
            self._confirm(reservation, positions)
            keys = [reservation.keys[i] for i in positions.tolist()]
            outcomes[self._sealed_by_now(reservation.namespace, keys)] = SealOutcome.ALREADY_SEALED
            self._state.counters["late_seals"] += len(positions)
            return outcomes
        parts = reservation.parts[positions]
        outcomes[parts == Part.SEALED] = SealOutcome.ALREADY_SEALED
        self._state.counters["second_seals"] += int(np.count_nonzero(parts == Part.SEALED))
        now = np.flatnonzero(parts == Part.OPEN)
        if len(now):
            self._publish(reservation, positions[now], None if checksums is None else checksums[now])
            outcomes[now] = SealOutcome.SEALED
            if reservation.request is None:
                self._accesses.hinting.ended(reservation.rows[positions[now]], reservation.hints)
        self._drop_if_done(reservation)
        return outcomes

    def _publish(self, reservation: Reservation, positions: Positions, checksums: NDArray[np.uint64] | None) -> None:
        blocks, now = self._state.blocks, self._state.clock.now()
        # The head of a chain comes last, as in a touch, so that policies see it as the most recent.
        positions = positions[::-1]
        rows, slots = reservation.rows[positions], reservation.slots[positions]
        if checksums is not None:
            blocks.checksum[rows] = checksums[::-1]
            blocks.checked[rows] = Checksum.CLAIMED
        point("seal.before_publish")
        blocks.state[rows] = BlockState.SEALED
        blocks.sealed_at[rows] = blocks.last_access[rows] = now
        # A reservation of its own is the access; within a request the access is noted at the request's end.
        blocks.accesses[rows] = 1 if reservation.request is None else 0
        reservation.parts[positions] = Part.SEALED
        self._copies.place(rows, reservation.pool, slots)
        self._state.counters["sealed"] += len(rows)
        point("seal.published")

    def abort(self, reservation: Reservation, positions: Positions) -> None:
        """Undo what is not sealed at `positions`; slots are free at once, the caller touches them no more."""
        if reservation.lapsed:
            self._confirm(reservation, positions)
            return
        parts = reservation.parts[positions]
        self._free_slots(reservation, positions[parts == Part.OPEN])
        point("reserve.aborted")
        self._drop_if_done(reservation)

    def end(self, reservation: Reservation) -> None:
        """The owner is proved gone, or says goodbye."""
        everything = np.arange(len(reservation.keys))
        if reservation.lapsed:
            self._confirm(reservation, everything)
            return
        self._forget_rows(reservation.rows[reservation.parts == Part.WAITING])
        reservation.parts[reservation.parts == Part.WAITING] = Part.ENDED
        self._free_slots(reservation, np.flatnonzero(reservation.parts == Part.OPEN))
        self._drop_if_done(reservation)

    def lapse(self, reservation: Reservation) -> None:
        """Its time is over, or its owner's grace. The keys are free for others; slots that may still be written are not."""
        self._forget_rows(reservation.rows[reservation.parts == Part.WAITING])
        reservation.parts[reservation.parts == Part.WAITING] = Part.ENDED
        opened = np.flatnonzero(reservation.parts == Part.OPEN)
        slots = reservation.slots[opened]
        book = self._state.mapped(reservation.pool)
        if reservation.told and self._state.ledger.sessions[reservation.session].maps:
            book.table.set_use(slots, SlotUse.QUARANTINED)
            book.haunt(slots.tolist())
            reservation.haunts = [(reservation.pool, slot) for slot in slots.tolist()]
        else:
            book.free(slots)
        self._forget_rows(reservation.rows[opened])
        reservation.parts[opened] = Part.LAPSED
        reservation.rows[:] = NO_ROW
        reservation.lapsed, reservation.lapsed_at = True, self._state.clock.now()
        self._state.counters["reservations_lapsed"] += 1
        point("reserve.lapsed")
        self._drop_if_done(reservation)

    def renew(self, reservation: Reservation, life_s: float) -> bool:
        """False when it has lapsed. Its slots stay in quarantine: a renewal does not say that its owner stopped writing."""
        if reservation.lapsed:
            return False
        reservation.expires_at = self._state.clock.now() + life_s
        return True

    def _confirm(self, reservation: Reservation, positions: Positions) -> None:
        confirmed = set(reservation.slots[positions].tolist())
        for pool, slot in reservation.haunts:
            if slot in confirmed:
                self._state.mapped(pool).release([slot])
        reservation.haunts = [place for place in reservation.haunts if place[1] not in confirmed]
        parts = reservation.parts[positions]
        reservation.parts[positions[parts == Part.LAPSED]] = Part.ENDED
        self._drop_if_done(reservation)

    def _sealed_by_now(self, namespace: int, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        rows = self._state.blocks.find(namespace, keys)
        return np.asarray((rows != NO_ROW) & (self._state.blocks.state[rows] == BlockState.SEALED))

    def _free_slots(self, reservation: Reservation, positions: Positions) -> None:
        book = self._state.mapped(reservation.pool)
        rows, slots = reservation.rows[positions], reservation.slots[positions]
        if self._state.ledger.sessions[reservation.session].owner:
            book.own(slots, 0)
        book.give(0, slots, SlotUse.RESERVED, rows)
        self._forget_rows(rows)
        reservation.parts[positions] = Part.ENDED
        reservation.rows[positions] = NO_ROW

    def _forget_rows(self, rows: Rows) -> None:
        """Reserved rows end unsealed; their keys are free again."""
        if not len(rows):
            return
        blocks = self._state.blocks
        blocks.unindex(rows)
        blocks.set_highest(rows, blocks.highest_of(rows))
        blocks.state[rows] = BlockState.REMOVED
        self._copies.sweep(rows)

    def _drop_if_done(self, reservation: Reservation) -> None:
        if not np.isin(reservation.parts, (Part.WAITING, Part.OPEN, Part.LAPSED)).any():
            self._state.ledger.drop(reservation)
