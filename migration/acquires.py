"""Acquires: leases on what is there, and on what comes up while their callers wait or ask again.

Everything here runs under the directory's lock and returns at once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.advice import Advice, Bet
from hybridkv.migration.placement import Placement
from hybridkv.migration.reclaim import Reclaim
from hybridkv.migration.tickets import FAILURES, AskedAgain, Hooks, Ticket
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.columns import add_at
from hybridkv.tiers.directory.holds import Lease, Session
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState, Outcome, Priority, Reason, Tier

_TRIES = 2
"""Transfers one acquire begins for a block at most: after a bad copy another may serve, a failing tier is a MISS."""

# Plain numbers: looking an enum member up costs as much as the operation it is for.
_HIT, _PENDING, _MISS = int(Outcome.HIT), int(Outcome.PENDING), int(Outcome.MISS)
_SEALED = int(BlockState.SEALED)


@dataclass(frozen=True, slots=True)
class AcquireReply:
    """States (Outcome, uint8 [n]) and translations (SLOT_DTYPE [n]) of the keys; what is HIT is leased."""

    lease: int
    states: NDArray[np.uint8]
    slots: NDArray[np.void]
    expires_in_s: float
    no_room: int = 0
    """Of the keys that are MISS: those that are here, but found no room where they were to go."""


class _Acquire:
    """An acquire under way: positions of the lease's keys that are still PENDING, in order."""

    def __init__(self, lease: Lease, states: NDArray[np.uint8], pools: list[int], target: int) -> None:
        self.lease = lease
        self.states = states
        self.pools = pools
        self.target = target
        self.pending: dict[int, int] = {}
        """Position → row; kept here because a lease that lapses forgets its rows."""
        self.no_room = 0
        self.failures = 0
        self.bet: Bet | None = None
        """The caller could compute what it waits for."""
        self.tries: Counter[int] = Counter()
        """Transfers begun for a row: one that does not bring the block is followed by one more, not by many."""
        self.ticket: Ticket[AcquireReply]


class Acquires:
    """Acquires under way, by lease."""

    def __init__(
        self,
        directory: Directory,
        reclaim: Reclaim,
        send: Callable[[Iterable[Transfer]], None],
        placement: Placement,
        advice: Advice,
        hooks: Hooks,
    ) -> None:
        self._directory = directory
        self._reclaim = reclaim
        self._send = send
        self._placement = placement
        self._hooks = hooks
        self.advice = advice
        self._acquires: dict[int, _Acquire] = {}
        self.hits: Counter[Tier] = Counter()
        self.outcomes: Counter[Outcome] = Counter()

    def __len__(self) -> int:
        return len(self._acquires)

    def acquire(
        self,
        session: Session,
        keys: Sequence[bytes],
        *,
        tier: Tier | None,
        device: int | None,
        views: bool,
        independent: bool,
        request: int | None,
        life_s: float,
        recompute_s: float | None = None,
        hints: Hints = NO_HINTS,
    ) -> Ticket[AcquireReply]:
        """Lease what is there and bring up what lies elsewhere. `recompute_s`: what the caller needs to compute one block;
        the tail of the chain that is loaded more slowly than that is answered RECOMPUTE, and not loaded."""
        directory = self._directory
        pools, target = self._placement.acceptable(tier, device)
        rows = directory.sealed(session.namespace, keys)
        if not independent:
            behind = np.flatnonzero(rows == NO_ROW)
            rows[behind[0] if len(behind) else len(rows) :] = NO_ROW
        self._count(rows)
        directory.accesses.join(session, request, rows[:0], life_s)  # refused beyond the limit before anything is held
        lease = directory.leases.open(session, rows, views=views, request=request, life_s=life_s)
        directory.accesses.hinted(session, lease, hints)
        directory.accesses.hinting.asked(hints, len(rows), int(np.count_nonzero(rows != NO_ROW)))
        states = np.where(rows == NO_ROW, _MISS, _PENDING).astype(np.uint8)
        acquire = _Acquire(lease, states, pools, target)
        acquire.ticket = Ticket(lambda: self._reply_acquire(acquire), lambda: self._abandon_acquire(acquire))
        self._hold_what_is_there(acquire, np.flatnonzero(rows != NO_ROW))
        if recompute_s is not None:
            self._decline(acquire, recompute_s)
        self._wait_for(acquire, np.flatnonzero(states == _PENDING))
        if acquire.pending:
            self._acquires[lease.id] = acquire
            self._advance_acquire(acquire)
        if not acquire.pending:
            self._acquires.pop(lease.id, None)
            self._settle(acquire)
            acquire.ticket.finish()
        if not independent:
            self._hooks.acquired(rows, target)
        return acquire.ticket

    def _decline(self, acquire: _Acquire, recompute_s: float) -> None:
        """Leave to the caller what it computes sooner than it would land."""
        pending = np.flatnonzero(acquire.states == _PENDING)
        if not len(pending):
            return
        kept = self.advice.worth_loading(acquire.lease.rows[pending], acquire.target, recompute_s)
        acquire.states[pending[kept:]] = Outcome.RECOMPUTE
        self.outcomes[Outcome.HIT] -= len(pending) - kept
        self.outcomes[Outcome.RECOMPUTE] += len(pending) - kept
        if kept:
            acquire.bet = self.advice.bet(recompute_s)

    def _settle(self, acquire: _Acquire) -> None:
        """Nothing is pending any more."""
        bet, acquire.bet = acquire.bet, None
        if bet is not None:
            self.advice.settle(bet)

    def again(self, lease: Lease) -> Ticket[AcquireReply]:
        """A ticket for an acquire that still waits; a finished one for a lease that does not. The lease is its owner's by
        now: who gives this ticket up keeps it."""
        acquire = self._acquires.get(lease.id)
        if acquire is not None:
            return AskedAgain(acquire.ticket)
        states = np.where(lease.held, _HIT, _MISS).astype(np.uint8)
        settled = _Acquire(lease, states, [], 0)
        settled.ticket = Ticket(lambda: self._reply_acquire(settled), lambda: None)
        settled.ticket.finish()
        return settled.ticket

    def _count(self, rows: Rows) -> None:
        known = rows[rows != NO_ROW]
        for tier, count in enumerate(np.bincount(self._directory.blocks.highest[known]).tolist()):
            if count:
                self.hits[Tier(tier)] += count
        self.outcomes[Outcome.HIT] += len(known)
        self.outcomes[Outcome.MISS] += len(rows) - len(known)

    def note_reads(self, rows: Rows, times: NDArray[np.int64]) -> None:
        """Blocks that were read without an acquire, so many times each: hits as any."""
        for tier, count in zip(self._directory.blocks.highest[rows].tolist(), times.tolist(), strict=True):
            self.hits[Tier(tier)] += count
        self.outcomes[Outcome.HIT] += int(times.sum())

    def _hold_what_is_there(self, acquire: _Acquire, positions: NDArray[np.int64]) -> None:
        """Lease copies in acceptable pools, best pool first."""
        blocks, unverified = self._directory.blocks, self._directory.state.unverified
        for pool in acquire.pools:
            if not len(positions):
                return
            rows = acquire.lease.rows[positions]
            here = blocks.slot[pool][rows] != NO_SLOT
            if unverified.any_in(pool):
                here &= ~unverified.among(rows, pool)
            self._directory.leases.hold(acquire.lease, positions[here], pool)
            acquire.states[positions[here]] = _HIT
            positions = positions[~here]

    def _wait_for(self, acquire: _Acquire, positions: NDArray[np.int64]) -> None:
        """Protect the blocks that are waited for."""
        if not len(positions):
            return
        rows = acquire.lease.rows[positions]
        add_at(self._directory.blocks.holds, rows, 1)
        add_at(self._directory.blocks.waiting, rows, 1)
        acquire.pending = dict(zip(positions.tolist(), rows.tolist(), strict=True))

    def _stop_waiting(self, acquire: _Acquire, positions: Sequence[int], state: Outcome) -> None:
        if not len(positions):
            return
        acquire.states[list(positions)] = state
        rows = np.fromiter(map(acquire.pending.pop, positions), np.int64, len(positions))
        add_at(self._directory.blocks.holds, rows, -1)
        add_at(self._directory.blocks.waiting, rows, -1)
        self._directory.copies.sweep(rows)

    def _advance_acquire(self, acquire: _Acquire) -> None:
        """Resolve what has arrived or is gone; start what has not been started; give up what can have no room."""
        if acquire.lease.lapsed:
            self._stop_waiting(acquire, list(acquire.pending), Outcome.MISS)
            return
        blocks = self._directory.blocks
        self._resolve(acquire)
        rows = np.fromiter(acquire.pending.values(), np.int64, len(acquire.pending))
        positions = np.fromiter(acquire.pending, np.int64, len(acquire.pending))
        idle = blocks.busy[rows] == 0
        self._hooks.hasten(rows[~idle])
        todo: list[int] = positions[idle].tolist()
        resting = zip(todo, rows[idle].tolist(), strict=True)
        failing = [position for position, row in resting if acquire.tries[row] >= _TRIES] if acquire.tries else []
        if failing:
            self._directory.state.counters["acquires_given_up"] += len(failing)
            self._stop_waiting(acquire, failing, Outcome.MISS)
            todo = [position for position in todo if position in acquire.pending]
        if todo and self._directory.state.unverified.any_in(acquire.target):
            # What was taken over and is not verified yet needs no transfer, but that.
            waits = self._directory.state.unverified.awaited(acquire.lease.rows[todo], acquire.target)
            todo = np.array(todo)[~waits].tolist()
        if todo and not self._start(acquire, np.array(todo, np.int64)):
            unstarted = [p for p, row in acquire.pending.items() if not blocks.busy[row]]
            acquire.no_room += len(unstarted)
            self._directory.state.counters["acquires_without_room"] += len(unstarted)
            self._stop_waiting(acquire, unstarted, Outcome.MISS)

    def _resolve(self, acquire: _Acquire) -> None:
        blocks, lease = self._directory.blocks, acquire.lease
        positions = np.fromiter(acquire.pending, np.int64, len(acquire.pending))
        rows = lease.rows[positions]
        gone = positions[blocks.state[rows] != _SEALED]
        self._stop_waiting(acquire, gone.tolist(), Outcome.MISS)
        positions = np.fromiter(acquire.pending, np.int64, len(acquire.pending))
        self._hold_what_is_there(acquire, positions)
        landed: list[int] = positions[lease.held[positions]].tolist()
        if acquire.bet is not None:
            acquire.bet.landed_blocks += len(landed)
        self._stop_waiting(acquire, landed, Outcome.HIT)

    def _start(self, acquire: _Acquire, positions: NDArray[np.int64]) -> bool:
        """Begin transfers for the longest prefix that fits; True when something moves or room is on its way."""
        directory, target = self._directory, acquire.target
        rows = np.fromiter(dict.fromkeys(acquire.lease.rows[positions].tolist()), np.int64)
        size = directory.state.size_of(int(rows[0]))
        room = directory.books[target].free_slots(size)
        moving = self._begin(acquire, rows[:room], target)
        if moving < len(rows):
            given_up = self._hooks.displace(target, size, len(rows) - moving)
            moving += self._begin(acquire, rows[moving : moving + given_up], target)
        if moving == len(rows):
            return True
        wanted, space = len(rows) - moving, int(directory.blocks.namespace[rows[0]])
        coming, barred = self._reclaim.allowance.made(target, space, wanted)
        if wanted > barred and acquire.failures < FAILURES:
            coming |= self._reclaim.make_room(target, size, wanted - barred)
        if coming and acquire.failures < FAILURES:
            self._begin(acquire, rows[moving : moving + directory.books[target].free_slots(size)], target)
            return True
        return False

    def _begin(self, acquire: _Acquire, rows: Rows, target: int) -> int:
        """Bring `rows` to `target`, each from its nearest copy, which it keeps: how many were begun."""
        begun = 0
        blocks = self._directory.blocks
        while len(rows):
            sources = self._nearest(rows, target)
            same = int(np.argmin(sources == sources[0])) if (sources != sources[0]).any() else len(rows)
            run = rows[:same][blocks.busy[rows[:same]] == 0]
            started = self._directory.moves.begin(
                run, int(sources[0]), target, Reason.DEMAND, Priority.DEMAND, keep_source=True
            )
            self._send(started)
            acquire.tries.update([transfer.row for transfer in started])
            begun += same if len(started) == len(run) else len(started)
            if len(started) < len(run):
                break
            rows = rows[same:]
        return begun

    def _nearest(self, rows: Rows, target: int) -> NDArray[np.int64]:
        """The pool to copy each from: the highest copy that is not the target's own. int64 [n]."""
        nearest = np.full(len(rows), NO_SLOT, np.int64)
        for pool, column in reversed([*enumerate(self._directory.blocks.slot)]):
            if pool != target:
                nearest[column[rows] != NO_SLOT] = pool
        return nearest

    def _reply_acquire(self, acquire: _Acquire) -> AcquireReply:
        directory = self._directory
        with directory.lock:
            lease = acquire.lease
            if lease.lapsed:
                slots = np.zeros(len(acquire.states), SLOT_DTYPE)
                return AcquireReply(lease.id, np.full(len(acquire.states), _MISS, np.uint8), slots, 0.0)
            hits = acquire.states == _HIT
            if acquire.no_room and not hits.any() and not acquire.pending:
                space = directory.state.ledger.sessions[lease.session].namespace
                self.forget_lease(lease)
                directory.leases.end(lease)
                book, no_room = directory.books[acquire.target], acquire.no_room
                figures = f"no room for {no_room} blocks: {book.used_bytes} of {book.capacity_bytes} bytes used"
                by_quota = self._reclaim.allowance.refusal(acquire.target, space, no_room)
                raise by_quota or ResourceExhaustedError(str(book.id), figures)
            left_s = max(0.0, lease.expires_at - directory.state.clock.now())
            slots = directory.leases.slots(lease)
            return AcquireReply(lease.id, acquire.states.copy(), slots, left_s, acquire.no_room)

    def _abandon_acquire(self, acquire: _Acquire) -> None:
        with self._directory.lock:
            self.forget_lease(acquire.lease)
            if acquire.lease.id in self._directory.state.ledger.leases:
                self._directory.leases.end(acquire.lease)
        acquire.ticket.finish()

    def forget_lease(self, lease: Lease) -> Ticket[AcquireReply] | None:
        """The lease ends: what it still waits for is dropped. The ticket to finish, once the lock is free."""
        acquire = self._acquires.pop(lease.id, None)
        if acquire is None:
            return None
        self._stop_waiting(acquire, list(acquire.pending), Outcome.MISS)
        return acquire.ticket

    # ------------------------------------------------------------------------------------------------ events

    def of_session(self, session: int) -> list[Ticket[AcquireReply]]:
        """The session ends: what it waits for is dropped. Its tickets, to be finished once the lock is free."""
        ended = [a for a in self._acquires.values() if a.lease.session == session]
        for acquire in ended:
            self.forget_lease(acquire.lease)
        return [acquire.ticket for acquire in ended]

    def note_failures(self, pools: set[int]) -> None:
        """Demotions out of these pools failed."""
        for acquire in self._acquires.values():
            acquire.failures += acquire.target in pools

    def advance(self) -> list[Ticket[AcquireReply]]:
        """Something ended, was freed or lapsed: the tickets that are done now."""
        done = []
        for acquire in list(self._acquires.values()):
            self._advance_acquire(acquire)
            if not acquire.pending:
                self._acquires.pop(acquire.lease.id, None)
                self._settle(acquire)
                done.append(acquire.ticket)
        return done
