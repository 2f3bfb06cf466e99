"""Lanes: one direction between two neighbouring pools. Each has an urgent and a background worker, so that a background
move that is slow, or held, delays no demand.

A worker takes a batch of one block size, starts it under the directory's lock, carries the bytes without it, and commits
under it; by then the next batch's bytes are moving. A move between pools that are no neighbours is two legs through a
lane's CPU slot.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hybridkv.migration.arrivals import Arrivals, Leg
from hybridkv.migration.disk_movers import DiskReader, DiskWriter
from hybridkv.migration.inflight import InFlight
from hybridkv.migration.lane_queue import LaneQueue
from hybridkv.migration.ledger import MoveLedger
from hybridkv.migration.movers import Cargo, Carried, Landing, Mover
from hybridkv.migration.speed import LaneSpeed
from hybridkv.migration.throttle import TokenBucket
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.moves import Stage, Transfer
from hybridkv.tiers.errors import HybridKVError, ResourceExhaustedError, UnavailableError
from hybridkv.tiers.loops import Loop, Pulse
from hybridkv.tiers.points import point

_log = logging.getLogger(__name__)

Ended = Callable[[Sequence[Transfer]], None]
_RUNNING = Stage.RUNNING

_WORTH_OVERLAPPING_BYTES = 1 << 20
"""A batch of at least so much stays in hand until the next one's bytes move. What waits behind a smaller one may as well
stay in the queue, where it can be withdrawn."""


@dataclass(slots=True)
class LaneRules:
    """What bounds a lane. Shared by all lanes and changed live; read afresh for every batch."""

    batch_bytes: int
    background_batch_bytes: int
    inflight: InFlight


@dataclass(slots=True)
class _Hand:
    """A batch that was begun: how its bytes are waited for, or why they do not move; and the lock that it holds."""

    cargo: Cargo
    began_at: float
    land: Landing | None = None
    failure: Exception | None = None
    gate: "threading.Lock | None" = None


class LaneWorker:
    """One thread of a lane. `put` and `wake` may be called under the directory's lock, and never block."""

    def __init__(
        self,
        name: str,
        leg: Leg,
        mover: Mover,
        directory: Directory,
        moves: MoveLedger,
        rules: LaneRules,
        *,
        urgent: bool,
        hand_over: Callable[[Transfer], None],
        ended: Ended,
        throttle: TokenBucket | None = None,
        gate: "threading.Lock | None" = None,
        speed: LaneSpeed | None = None,
        threaded: bool = True,
    ) -> None:
        """`hand_over` takes a transfer whose first leg is done; `ended` hears, without the lock, of those that ended.
        `throttle` and `gate` are shared by background workers: under a cap, their batches move one at a time. `speed`:
        that of the lane, where workers share one. `threaded` False: there is no thread, it works when it is told to `step`."""
        self.name = name
        self.speed = speed or LaneSpeed()
        self.leg = leg
        self.mover = mover
        self.urgent = urgent
        self.bytes_in_flight = 0
        self.pulse = Pulse(name)
        self._directory = directory
        self._way = directory.state.books[leg.source].id.tier, directory.state.books[leg.target].id.tier
        self._arrivals = Arrivals(name, leg, directory, moves, self.pulse.failed)
        self._rules = rules
        self._hand_over = hand_over
        self._ended = ended
        self._throttle = throttle
        self._gate = gate
        self._in_hand: deque[_Hand] = deque()
        self._landed_at = 0.0
        self._wake = threading.Condition()
        self._queue = LaneQueue(leg, directory, rules.inflight, self.wake)
        self._stirred = False
        self._resting = False
        self._pausing = False
        self._closing = False
        self._threaded = threaded
        self._loop = Loop(self.pulse, self._run, self._rest)
        self.pulse.alive = lambda: self.thread.is_alive() or not self._threaded
        if threaded:
            self._loop.start()

    def __repr__(self) -> str:
        return f"LaneWorker({self.name}, {self.queued} queued, {self.bytes_in_flight} bytes in flight)"

    @property
    def thread(self) -> threading.Thread:
        return self._loop.thread

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def demanded_bytes(self) -> int:
        """Bytes that go before the next demand: those in hand, and those that somebody waits for already."""
        with self._wake:
            return self.bytes_in_flight + self._queue.demanded_bytes

    @property
    def idle(self) -> bool:
        """Nothing in hand, and nothing new to look at: what is queued cannot begin now."""
        with self._wake:
            if not self._threaded:
                return not self._in_hand
            return (self._resting and not self._stirred) or (self._pausing and not self.queued)

    @property
    def pacing(self) -> TokenBucket | None:
        """What caps this worker's bytes a second; None for one that is not capped."""
        return self._throttle if self._throttle is not None and self._throttle.capped and not self.urgent else None

    # ------------------------------------------------------------------------------------------------ in

    def put(self, *transfers: Transfer) -> None:
        """Queue transfers for this leg."""
        with self._wake:
            self._queue.put(transfers)
            self._stirred = True
            self._wake.notify()

    def withdraw(self, transfer: Transfer) -> bool:
        """Take a queued transfer out again; False when it is not queued here (any more)."""
        with self._wake:
            return self._queue.withdraw(transfer)

    def wake(self) -> None:
        """Look again: a lane slot may be free, or copies wait to be deleted."""
        with self._wake:
            self._stirred = True
            self._wake.notify()

    def close(self) -> None:
        """Finish what is in hand, give up the rest."""
        self._end_thread()
        self.mover.close()

    def _end_thread(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self.thread.is_alive():
            self.thread.join(timeout=30)

    # ------------------------------------------------------------------------------------------------ in turn

    def end_thread(self) -> None:
        """From now on the worker has no thread: it works when it is told to `step`."""
        self._end_thread()
        self._threaded = self._closing = False

    def step(self) -> bool:
        """Without a thread: begin a batch and see it landed, here; False when none could begin and nothing ended."""
        with self._wake:
            stirred, self._stirred = self._stirred, False
        if not self.queued and not (stirred and isinstance(self.mover, DiskWriter)):
            return False
        try:
            did = self._work()
            while self._in_hand:
                self._land(self._in_hand.popleft())
        except Exception as error:
            self.pulse.failed(error)
            return False
        finally:
            self.pulse.end()
        return did

    # ------------------------------------------------------------------------------------------------ loop

    def _run(self) -> None:
        while not self._closing or self._in_hand:
            self.pulse.end()
            with self._wake:
                self._resting = not self._in_hand
                self._wake.wait_for(lambda: self._stirred or self._closing or self._in_hand)
                self._resting = self._stirred = False
            while not self._closing and self._work():
                pass
            while self._in_hand:
                self._land(self._in_hand.popleft())

    def _rest(self, seconds: float) -> None:
        """After an error: a lane never dies of one batch. That batch has been failed by then, the next is tried."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing, timeout=seconds)
            self._stirred = True

    def _work(self) -> bool:
        """Begin the next batch, and end the one before it; False when there was neither."""
        self.pulse.begin()
        failures = self.pulse.failures_in_a_row
        if isinstance(self.mover, DiskWriter):
            self._tend(self.mover)
        self._pace()
        begun, ended = self._start_batch()
        if ended:
            self._ended(ended)
        if begun is not None:
            self._in_hand.append(begun)
            self._begin(begun)
        elif not self._in_hand:
            return bool(ended)
        kept = begun is not None and begun.gate is None and begun.cargo.nbytes >= _WORTH_OVERLAPPING_BYTES
        while len(self._in_hand) > kept:
            self._land(self._in_hand.popleft())
            if self.pulse.failures_in_a_row == failures:
                self.pulse.well()
                failures = 0
        return True

    def _tend(self, writer: DiskWriter) -> None:
        try:
            writer.tend()
        except HybridKVError as error:
            self.pulse.errors += 1
            _log.warning("lane %s: deleting dropped blocks failed: %s", self.name, error)

    def _begin(self, hand: _Hand) -> None:
        """Let the batch's bytes move. What goes wrong is told when it lands."""
        try:
            point("move.before_copy", *self._way)
            if self._gate is not None and self.pacing is not None:
                self._gate.acquire()
                hand.gate = self._gate
            hand.began_at = self._directory.state.clock.now()
            hand.land = self.mover.start(hand.cargo)
        except Exception as error:
            hand.failure = error

    def _land(self, hand: _Hand) -> None:
        """Wait for the batch's bytes, and end its transfers whatever became of them."""
        try:
            self._wait_for(hand)
            point("move.copied", *self._way)
        finally:
            self._rules.inflight.remove(hand.cargo.nbytes)
            self.bytes_in_flight -= hand.cargo.nbytes
            self._finish(hand.cargo)

    def _wait_for(self, hand: _Hand) -> None:
        hand.cargo.blamed = isinstance(self.mover, DiskReader)
        try:
            if hand.failure is not None:
                raise hand.failure
            assert hand.land is not None
            hand.land()
        except HybridKVError as error:
            hand.cargo.blamed = not isinstance(error, UnavailableError | ResourceExhaustedError)
            self.pulse.errors += 1
            self._directory.state.counters["lane_errors"] += 1
            _log.warning("lane %s: a batch of %d failed: %s", self.name, len(hand.cargo), error)
        except BaseException:
            hand.cargo.blamed = True
            raise
        finally:
            if hand.gate is not None:
                hand.gate.release()
        # A batch that was begun behind another has moved since that one landed.
        began_at, self._landed_at = max(hand.began_at, self._landed_at), self._directory.state.clock.now()
        moved = hand.cargo.size * int(np.count_nonzero(hand.cargo.outcomes == Carried.MOVED))
        self.speed.note(moved, self._landed_at - began_at, self._landed_at)

    def _pace(self) -> None:
        """Background copies on host memory keep to the cap: wait for what was copied beyond it, before the next batch
        begins, so that what somebody asks for meanwhile is still queued and can go another way."""
        if not self.queued or not self._threaded:
            return
        with self._directory.lock:  # under which the cap changes
            pacing = self.pacing
            delay_s = 0.0 if pacing is None else pacing.take(0, self._directory.state.clock.now())
        if not delay_s:
            return
        with self._wake:
            self._pausing = True
            self._wake.wait_for(lambda: self._closing, timeout=delay_s)
            self._pausing = False

    # ------------------------------------------------------------------------------------------------ batches

    def _start_batch(self) -> tuple[_Hand | None, list[Transfer]]:
        """Take and start the next batch: (what is to be carried, what ended because nobody wants it any more)."""
        limit = self._rules.batch_bytes if self.urgent else self._rules.background_batch_bytes
        with self._directory.lock:
            with self._wake:
                taken = self._queue.take(limit)
            ended = self._directory.moves.start_all([t for t in taken if t.stage is not _RUNNING])
            self._arrivals.close(ended)
            if ended:
                taken = [transfer for transfer in taken if transfer.stage is _RUNNING]
            if not taken:
                return None, ended
            now = self._directory.state.clock.now()
            begun = _Hand(self._cargo(taken), now)
            self.bytes_in_flight += begun.cargo.nbytes
            self._rules.inflight.add(begun.cargo.nbytes)
            if self.pacing is not None:
                self.pacing.take(begun.cargo.nbytes, now)
        return begun, ended

    def _cargo(self, transfers: list[Transfer]) -> Cargo:
        source, target = self.leg.source, self.leg.target
        sources = [t.source_slot if t.source == source else _lane_slot(t) for t in transfers]
        targets = [t.target_slot if t.target == target else _lane_slot(t) for t in transfers]
        return Cargo(transfers, np.array(sources, np.int64), np.array(targets, np.int64))

    def _finish(self, cargo: Cargo) -> None:
        """Commit what arrived, fail what did not, hand over what has a second leg."""
        with self._directory.lock:
            ended, onward = self._arrivals.settle(cargo)
        for transfer in onward:
            self._hand_over(transfer)
        if ended:
            self._ended(ended)


def _lane_slot(transfer: Transfer) -> int:
    assert transfer.via is not None
    return transfer.via
