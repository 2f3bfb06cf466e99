"""Fences: what a worker's device stream still does with slots after the worker's call has come.

Work on a device is enqueued: when a worker seals a block or gives a lease back, its kernels may not have run yet. Such a
call brings an event of the stream, and counts once that is done: only then is a sealed block published and a slot that
was given up free. Until then the slots are haunted, as those of a lapsed holder are, so that no lane, reservation or
re-carving gets them; what copies a published block, or writes into a free slot, has nothing left to wait for.

No thread waits: `settle` asks the events, on every tick, when something ended, and before somebody asks for blocks.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.device.base import Event
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.holds import Lease, Part, Reservation
from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError, ResourceExhaustedError
from hybridkv.tiers.states import SealOutcome

_log = logging.getLogger(__name__)

DeviceEvents = Sequence[tuple[int, bytes | Event]]
"""(pool, event): an event of this process, or what another process exported."""

MAX_EVENTS = 256
"""Events of one session that are open here at a time. A client records again into those that are done."""

MAX_FENCES = 4096
"""Calls of one session that wait for their events."""


@dataclass(frozen=True, slots=True, eq=False)
class _Fence:
    session: int
    pool: int
    slots: list[int]
    event: Event
    then: Callable[[], None] | None


class Fences:
    """Calls that do not count yet. `open` and `settle` talk to devices and are called without the directory's lock, the
    others under it."""

    def __init__(self, directory: Directory, pools: Mapping[int, DevicePool]) -> None:
        self._directory = directory
        self._pools = pools
        self._fences: dict[int, _Fence] = {}
        self._of_session: Counter[int] = Counter()
        self._imported: dict[int, dict[tuple[int, bytes], Event]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._fences)

    def __repr__(self) -> str:
        return f"Fences({len(self)} calls wait for {len({id(fence.event) for fence in self._fences.values()})} events)"

    # ------------------------------------------------------------------------------------------------ in

    def open(self, session: int, events: DeviceEvents) -> dict[int, Event]:
        """The events that are not done yet, by pool. Refuses before anything is changed.

        Raises NotFoundError for a session that has ended, InvalidArgumentError for a pool that is no device's and for
        bytes that are no event, ResourceExhaustedError beyond the session's limits, UnavailableError.
        """
        pending: dict[int, Event] = {}
        for pool, given in events:
            if pool not in self._pools or pool in pending:
                raise InvalidArgumentError("events", f"pool {pool} is no device's, or occurs twice")
            event = given if isinstance(given, Event) else self._import(session, pool, given)
            if not _is_done(event):
                pending[pool] = event
        if pending and self._of_session[session] >= MAX_FENCES:
            raise ResourceExhaustedError("events", f"{MAX_FENCES} calls of this session wait for theirs, the limit")
        return pending

    def _import(self, session: int, pool: int, payload: bytes) -> Event:
        """An event that is known stays open: its owner records into it again, and whoever waits for it waits longer."""
        with self._directory.lock:
            self._directory.state.ledger.session(session)
            known = self._imported.setdefault(session, {})
            found = known.get((pool, payload))
            if found is not None:
                return found
            if len(known) >= MAX_EVENTS:
                raise ResourceExhaustedError("events", f"{len(known)} of this session are open, the limit")
        event = self._pools[pool].device.import_event(payload)
        with self._directory.lock:
            self._directory.state.ledger.session(session)
            return self._imported.setdefault(session, {}).setdefault((pool, payload), event)

    def seal(
        self,
        reservation: Reservation,
        positions: NDArray[np.int64],
        checksums: NDArray[np.uint64] | None,
        pending: Mapping[int, Event],
        life_s: float,
    ) -> NDArray[np.uint8]:
        """`Writes.seal`, now or once the event is done: until then the blocks are being written, for everybody.

        SEALED is promised then. The promise is broken when the event is not done within `life_s`, or the process ends
        first: what its kernels did not write must not be found.
        """
        directory, event = self._directory, pending.get(reservation.pool)
        if event is None:
            return directory.writes.seal(reservation, positions, checksums)
        parts = reservation.parts[positions]
        slots = reservation.slots[positions[np.isin(parts, (Part.OPEN, Part.LAPSED))]].tolist()
        if reservation.lapsed:
            self._add(reservation.session, reservation.pool, slots, event)
            return directory.writes.seal(reservation, positions, checksums)
        opened = positions[parts == Part.OPEN]
        sums = None if checksums is None else checksums[parts == Part.OPEN]
        reservation.expires_at = max(reservation.expires_at, directory.state.clock.now() + life_s)
        publish = lambda: self._publish(reservation, opened, sums)  # noqa: E731
        self._add(reservation.session, reservation.pool, slots, event, publish)
        outcomes = np.full(len(positions), SealOutcome.EXPIRED, np.uint8)
        outcomes[parts == Part.SEALED] = SealOutcome.ALREADY_SEALED
        outcomes[parts == Part.OPEN] = SealOutcome.SEALED
        return outcomes

    def before_release(self, lease: Lease, pending: Mapping[int, Event]) -> None:
        """The lease is about to end: its slots of these pools may be read until the events are done."""
        for pool, event in pending.items():
            rows = lease.rows[lease.held & (lease.pools == pool)]
            slots = self._directory.blocks.slot[pool][rows].tolist()
            slots += [slot for at, slot in lease.haunts if at == pool]
            self._add(lease.session, pool, slots, event)

    def before_abort(
        self, reservation: Reservation, positions: NDArray[np.int64], pending: Mapping[int, Event]
    ) -> None:
        """These slots are about to be given up unsealed: they may be written until the event is done."""
        event = pending.get(reservation.pool)
        if event is not None:
            ours = np.isin(reservation.parts[positions], (Part.OPEN, Part.LAPSED))
            self._add(reservation.session, reservation.pool, reservation.slots[positions[ours]].tolist(), event)

    def _add(
        self, session: int, pool: int, slots: list[int], event: Event, then: Callable[[], None] | None = None
    ) -> None:
        if not slots:
            return
        self._directory.state.mapped(pool).haunt(slots)
        self._fences[next(self._numbers)] = _Fence(session, pool, slots, event, then)
        self._of_session[session] += 1

    # ------------------------------------------------------------------------------------------------ out

    def settle(self) -> bool:
        """Let the calls count whose events are done; True when there were any: room may be free, blocks may be there."""
        if not self._fences:
            return False
        with self._directory.lock:
            waiting = list(self._fences.items())
        # Fences, not events, are told apart: an event may be recorded again for a later call in the meantime.
        events = {fence.event: False for _, fence in waiting}
        for event in events:
            events[event] = _is_done(event)
        done = [number for number, fence in waiting if events[fence.event]]
        with self._directory.lock:
            ended = [self._pop(number) for number in done if number in self._fences]
            for fence in ended:
                if fence.then is not None:
                    fence.then()
                self._directory.state.mapped(fence.pool).release(fence.slots)
        return bool(ended)

    def forget(self, session: int) -> None:
        """The session ends, and nothing of it touches a slot any more. What its events did not confirm is not published.

        Its events are not asked again: they belong to a process that is gone, or is about to destroy them.
        """
        for number in [number for number, fence in self._fences.items() if fence.session == session]:
            fence = self._pop(number)
            if fence.then is not None:
                self._directory.state.counters["seals_unconfirmed"] += 1
            self._directory.state.mapped(fence.pool).release(fence.slots)
        self._imported.pop(session, None)

    def _pop(self, number: int) -> _Fence:
        fence = self._fences.pop(number)
        self._of_session[fence.session] -= 1
        if not self._of_session[fence.session]:
            del self._of_session[fence.session]
        return fence

    def _publish(
        self, reservation: Reservation, positions: NDArray[np.int64], checksums: NDArray[np.uint64] | None
    ) -> None:
        if reservation.id not in self._directory.state.ledger.reservations:
            return
        outcomes = self._directory.writes.seal(reservation, positions, checksums)
        self._directory.state.counters["seals_unconfirmed"] += int(np.count_nonzero(outcomes == SealOutcome.EXPIRED))


def _is_done(event: Event) -> bool:
    """An event that cannot be asked is not done: its slots wait until the process is proved gone."""
    try:
        return event.done
    except HybridKVError as error:
        _log.warning("a worker's device event cannot be asked: %s", error)
        return False
