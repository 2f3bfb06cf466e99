"""A facade on dictionaries, for tests that hold its answers back or spoil them. It has the verbs these tests use.

`hold` makes keys PENDING until `land`. Not thread-safe beyond what the tests do with it.
"""

import itertools
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from hybridkv.service.config import Config
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.replies import (
    AcquireReply,
    Attached,
    DrainReport,
    LimitsInfo,
    PoolInfo,
    ReserveReply,
)
from hybridkv.tiers.errors import (
    ForeignHoldError,
    InvalidArgumentError,
    NamespaceMismatchError,
    NotFoundError,
    ResourceExhaustedError,
)
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome, Tier

T = TypeVar("T")
Block = tuple[bytes, bytes]


class FakeTicket(Generic[T]):
    """Done when `pending()` says no more; `abandoned` tells whether the caller lost interest."""

    def __init__(self, reply: Callable[[], T], pending: Callable[[], bool], drop: Callable[[], None]) -> None:
        self._reply, self._pending, self._drop = reply, pending, drop
        self._callbacks: list[Callable[[], None]] = []
        self.abandoned = False

    @property
    def done(self) -> bool:
        return not self._pending()

    def add_done_callback(self, fn: Callable[[], None]) -> None:
        if self.done:
            fn()
        else:
            self._callbacks.append(fn)

    def reply(self) -> T:
        return self._reply()

    def abandon(self) -> None:
        self.abandoned = True
        self._drop()

    def poke(self) -> None:
        if self.done:
            callbacks, self._callbacks = self._callbacks, []
            for fn in callbacks:
                fn()


@dataclass
class Hold:
    session: int
    keys: list[Block]
    slots: list[int] = field(default_factory=list)


class FakeHost:
    """See the module."""

    def __init__(self, config: Config, *, slots_count: int = 64, block_bytes: int = 4096) -> None:
        self.config = config
        self.config_version = 1
        self.epoch = secrets.randbits(63)
        self.block_bytes = block_bytes
        self.slots_count = slots_count
        self.memory: npt.NDArray[np.uint8] = np.zeros(slots_count * block_bytes, dtype=np.uint8)
        self.generations: npt.NDArray[np.uint64] = np.ones(slots_count, dtype=np.uint64)
        self.free = list(range(slots_count))
        self.sessions: dict[int, Attached] = {}
        self.blocks: dict[Block, int] = {}
        self.leases: dict[int, Hold] = {}
        self.reservations: dict[int, Hold] = {}
        self.held: set[Block] = set()
        self.tickets: list[FakeTicket[Any]] = []
        self.ended: list[tuple[str, int]] = []
        self.components: dict[str, tuple[bool, str]] = {"loop": (True, ""), "disk": (True, "")}
        self.violations: list[str] = []
        self.drains: list[float] = []
        self.pids: list[int | None] = []
        self.closed = False
        self._ids = itertools.count(1)

    # -- sessions

    def attach(
        self,
        space: Namespace,
        *,
        fingerprint: bytes | None = None,
        block_bytes: int | None = None,
        pid: int | None = None,
        owner: str | None = None,
    ) -> Attached:
        del owner
        self.pids.append(pid)
        if fingerprint is not None and fingerprint != space.fingerprint:
            raise NamespaceMismatchError(f"fingerprint: {fingerprint.hex()} here {space.fingerprint.hex()}")
        if block_bytes is not None and block_bytes != space.layout.block_bytes:
            raise NamespaceMismatchError(f"block_bytes: {block_bytes} here {space.layout.block_bytes}")
        pool = PoolInfo(0, Tier.CPU, 0, "host", len(self.memory), self.block_bytes * 4)
        limits = LimitsInfo(
            self.config.limits.keys_per_call_count,
            self.config.limits.message_bytes,
            self.config.limits.part_bytes,
            self.config.daemon.lease_s,
            self.config.daemon.reservation_s,
            self.config.daemon.grace_s,
        )
        session, token = next(self._ids), secrets.token_bytes(16)
        attached = Attached(
            session, token, self.epoch, space.fingerprint, self.block_bytes, space.key_bytes, (pool,), limits
        )
        self.sessions[session] = attached
        return attached

    def detach(self, session: int) -> None:
        self._end("detach", session)

    def stream_broken(self, session: int) -> None:
        self._end("broken", session)

    def _end(self, how: str, session: int) -> None:
        self.ended.append((how, session))
        del self.sessions[session]
        for lease in [n for n, hold in self.leases.items() if hold.session == session]:
            del self.leases[lease]
        for number in [n for n, hold in self.reservations.items() if hold.session == session]:
            self._drop_reservation(number)

    def regions(self, session: int, token: bytes) -> list[Any]:
        return []

    def on_mapped(self, session: int, pid: int) -> None: ...

    def on_gone(self, session: int) -> None: ...

    # -- reading

    def acquire(
        self,
        session: int,
        keys: Keys,
        *,
        tier: Tier | None = None,
        device: int | None = None,
        views: bool = False,
        independent: bool = False,
        request: int | None = None,
        lease: int | None = None,
        recompute_s: float | None = None,
        hints: Hints = NO_HINTS,
    ) -> FakeTicket[AcquireReply]:
        if lease is None:
            lease, hold = next(self._ids), Hold(session, self._known(session, keys))
            self.leases[lease] = hold
        else:
            hold = self._owned(self.leases, session, lease, "lease")

        def reply() -> AcquireReply:
            states = np.array([self._state(block) for block in hold.keys], dtype=np.uint8)
            slots = self._slots([self.blocks.get(b) if self._state(b) is Outcome.HIT else None for b in hold.keys])
            return AcquireReply(lease, states, slots, self.config.daemon.lease_s)

        ticket = FakeTicket(reply, lambda: any(b in self.held for b in hold.keys), lambda: self._drop_lease(lease))
        self.tickets.append(ticket)
        return ticket

    def _drop_lease(self, lease: int) -> None:
        self.leases.pop(lease, None)

    def release(self, session: int, lease: int, events: Any = ()) -> None:
        self._owned(self.leases, session, lease, "lease")
        del self.leases[lease]

    def renew(self, session: int, holds: list[int], requests: list[int] | None = None) -> list[bool]:
        self._session(session)
        alive = {**self.leases, **self.reservations}
        return [n in alive and alive[n].session == session for n in holds]

    def removals(self) -> FakeTicket[None]:
        return FakeTicket(lambda: None, lambda: False, lambda: None)

    # -- writing

    def reserve(
        self,
        session: int,
        keys: Keys,
        *,
        parent: bytes | None = None,
        tier: Tier | None = None,
        device: int | None = None,
        request: int | None = None,
        hints: Hints = NO_HINTS,
    ) -> FakeTicket[ReserveReply]:
        blocks = self._known(session, keys)
        hold = Hold(session, blocks, [-1] * len(blocks))
        outcomes = np.array([self._reserved(hold, i) for i in range(len(blocks))], dtype=np.uint8)
        if len(outcomes) and (outcomes == ReserveOutcome.NO_ROOM).all():
            raise ResourceExhaustedError("cpu", f"0 of {self.slots_count} slots are free")
        number = 0
        if (outcomes == ReserveOutcome.NEW).any():
            number = next(self._ids)
            self.reservations[number] = hold
        slots = self._slots([i if i >= 0 else None for i in hold.slots])
        reply = ReserveReply(number, outcomes, slots, self.config.daemon.reservation_s)
        return FakeTicket(lambda: reply, lambda: False, lambda: self._drop_reservation(number))

    def _reserved(self, hold: Hold, at: int) -> ReserveOutcome:
        block = hold.keys[at]
        if block in self.blocks:
            return ReserveOutcome.PRESENT
        if any(block in r.keys for r in self.reservations.values()):
            return ReserveOutcome.BEING_WRITTEN
        if not self.free:
            return ReserveOutcome.NO_ROOM
        hold.slots[at] = self.free.pop()
        return ReserveOutcome.NEW

    def seal(
        self, session: int, reservation: int, indices: npt.NDArray[np.int64] | None, checksums: Any, events: Any = ()
    ) -> npt.NDArray[np.uint8]:
        hold = self._owned(self.reservations, session, reservation, "reservation")
        chosen = list(range(len(hold.keys))) if indices is None else [int(i) for i in indices]
        if any(not 0 <= i < len(hold.keys) for i in chosen):
            raise InvalidArgumentError("indices", f"not in 0..{len(hold.keys) - 1}")
        if checksums is not None and len(checksums) != len(chosen):
            raise InvalidArgumentError("checksums", f"{len(checksums)} for {len(chosen)} slots")
        for i in chosen:
            self.blocks[hold.keys[i]] = hold.slots[i]
            self.generations[hold.slots[i]] += 1
            hold.slots[i] = -1
        if all(slot < 0 for slot in hold.slots):
            del self.reservations[reservation]
        return np.full(len(chosen), SealOutcome.SEALED, dtype=np.uint8)

    def abort(self, session: int, reservation: int, indices: npt.NDArray[np.int64] | None, events: Any = ()) -> None:
        self._owned(self.reservations, session, reservation, "reservation")
        self._drop_reservation(reservation)

    def _drop_reservation(self, number: int) -> None:
        hold = self.reservations.pop(number, None)
        self.free.extend(slot for slot in (hold.slots if hold else []) if slot >= 0)

    # -- the rest

    def clear(self, fingerprint: bytes | None) -> int:
        chosen = [block for block in self.blocks if fingerprint in (None, block[0])]
        self.free.extend(self.blocks.pop(block) for block in chosen)
        return len(chosen)

    def stats(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "tiers": {"cpu": {"blocks": len(self.blocks)}},
            "health": {name: {"ok": ok, "reason": reason} for name, (ok, reason) in self.components.items()},
        }

    def check(self) -> list[str]:
        return self.violations

    def health(self) -> dict[str, tuple[bool, str]]:
        return self.components

    def drain(self, timeout_s: float) -> DrainReport:
        self.drains.append(timeout_s)
        return DrainReport(len(self.blocks), 0)

    def close(self) -> None:
        self.closed = True

    def pool_array(self, pool: int, writable: bool) -> npt.NDArray[np.uint8]:
        return self.memory

    def header_reader(self, pool: int) -> "FakeHost":
        return self

    def many(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return self.generations[indices]

    def hold(self, space: Namespace, keys: Iterable[bytes]) -> None:
        self.held |= {(space.fingerprint, key) for key in keys}

    def land(self) -> None:
        self.held.clear()
        for ticket in self.tickets:
            ticket.poke()

    # -- inside

    def _session(self, session: int) -> Attached:
        if session not in self.sessions:
            raise NotFoundError(f"session {session} is not known")
        return self.sessions[session]

    def _known(self, session: int, keys: Keys) -> list[Block]:
        attached = self._session(session)
        if not len(keys):
            raise InvalidArgumentError("keys", "must not be empty")
        if keys.width != attached.key_bytes:
            raise InvalidArgumentError("key_bytes", f"{keys.width}, the namespace has {attached.key_bytes}")
        if len(keys) > attached.limits.keys_per_call_count:
            raise InvalidArgumentError("keys", f"{len(keys)}, at most {attached.limits.keys_per_call_count}")
        return [(attached.fingerprint, key) for key in keys]

    def _owned(self, holds: dict[int, Hold], session: int, number: int, kind: str) -> Hold:
        self._session(session)
        if number not in holds:
            raise NotFoundError(f"{kind} {number} is not known")
        if holds[number].session != session:
            raise ForeignHoldError(f"{kind} {number} belongs to another session")
        return holds[number]

    def _state(self, block: Block) -> Outcome:
        if block in self.held:
            return Outcome.PENDING
        return Outcome.HIT if block in self.blocks else Outcome.MISS

    def _slots(self, places: list[int | None]) -> npt.NDArray[Any]:
        slots = np.zeros(len(places), dtype=SLOT_DTYPE)
        for i, place in enumerate(places):
            if place is not None:
                slots[i] = (place * self.block_bytes, self.generations[place], 2, place, 0, 0)
        return slots


def fake(config: Config) -> Host:
    """Builds a FakeHost where a Host is asked for."""
    return cast(Host, FakeHost(config))


def fake_of(daemon: DaemonThread) -> FakeHost:
    """The fake behind a daemon."""
    return cast(FakeHost, daemon.host)
