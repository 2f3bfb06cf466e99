"""Who holds what: leases, reservations and requests, each with an owner and an end.

Plain records and the ledger that finds them; the directory changes blocks and slots accordingly. No lock here.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.errors import ForeignHoldError, NotFoundError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.replacement import Rows


class Part(IntEnum):
    """State of one key of a reservation. WAITING: ours to write, its slot is still being made room for. LAPSED: its time
    was over before its owner came back."""

    NOT_OURS = 0
    WAITING = 1
    OPEN = 2
    SEALED = 3
    ENDED = 4
    LAPSED = 5


@dataclass(slots=True, eq=False)
class Lease:
    """A session's timed hold on copies: `rows[i]` in pool `pools[i]` where `held[i]`."""

    id: int
    session: int
    request: int | None
    rows: Rows
    pools: NDArray[np.int16]
    held: NDArray[np.bool_]
    views: bool
    expires_at: float
    lapsed: bool = False
    haunts: list[tuple[int, int]] = field(default_factory=list)
    """After it lapsed: the (pool, slot) places its owner may still look at."""
    hints: Hints = NO_HINTS
    begun_at: float = 0.0
    lapsed_at: float = 0.0


@dataclass(slots=True, eq=False)
class Reservation:
    """A session's slots to write: `parts[i]` says where key i stands."""

    id: int
    session: int
    request: int | None
    namespace: int
    pool: int
    keys: Sequence[bytes]
    rows: Rows
    slots: NDArray[np.int64]
    parts: NDArray[np.uint8]
    expires_at: float
    told: bool = False
    """Its owner knows the slots, and may write to them."""
    run_blocks: int = 1
    """Its keys come in runs of so many; each run is given adjacent slots where there are any."""
    lapsed: bool = False
    haunts: list[tuple[int, int]] = field(default_factory=list)
    hints: Hints = NO_HINTS
    begun_at: float = 0.0
    lapsed_at: float = 0.0


@dataclass(slots=True, eq=False)
class Request:
    """One use of a chain: its blocks, in the order of first use, are protected until its end."""

    session: int
    id: int
    rows: dict[int, None] = field(default_factory=dict)
    expires_at: float = 0.0
    hints: Hints = NO_HINTS


@dataclass(slots=True, eq=False)
class Session:
    """An attached worker process. `maps`: it has, or may have, the regions mapped, so that its lapsed holds haunt."""

    id: int
    namespace: int
    maps: bool = False
    owner: int = 0
    """What headers name it by, as the owner of slots (see `header_format.HEADER_DTYPE`); 0 while it maps nothing."""
    ended: bool = False
    holds: set[int] = field(default_factory=set)
    requests: dict[int, Request] = field(default_factory=dict)


class HoldLedger:
    """All sessions and holds, by number. Numbers are never used twice in one daemon's life."""

    def __init__(self, first: int = 1) -> None:
        self.sessions: dict[int, Session] = {}
        self.leases: dict[int, Lease] = {}
        self.reservations: dict[int, Reservation] = {}
        self._numbers = itertools.count(first)

    def next_number(self) -> int:
        return next(self._numbers)

    def session(self, number: int) -> Session:
        """Raises NotFoundError for a session that is unknown or has ended."""
        session = self.sessions.get(number)
        if session is None or session.ended:
            raise NotFoundError(f"session: {number} is not attached")
        return session

    def lease(self, session: int, number: int) -> Lease:
        """The session's own lease. Raises NotFoundError or ForeignHoldError."""
        lease = self.leases.get(number)
        if lease is None:
            raise NotFoundError(f"lease: {number} is not known")
        if lease.session != session:
            raise ForeignHoldError(f"lease: {number} belongs to another session")
        return lease

    def reservation(self, session: int, number: int) -> Reservation:
        """The session's own reservation. Raises NotFoundError or ForeignHoldError."""
        reservation = self.reservations.get(number)
        if reservation is None:
            raise NotFoundError(f"reservation: {number} is not known")
        if reservation.session != session:
            raise ForeignHoldError(f"reservation: {number} belongs to another session")
        return reservation

    def add(self, hold: Lease | Reservation) -> None:
        self.sessions[hold.session].holds.add(hold.id)
        if isinstance(hold, Lease):
            self.leases[hold.id] = hold
        else:
            self.reservations[hold.id] = hold

    def drop(self, hold: Lease | Reservation) -> None:
        self.sessions[hold.session].holds.discard(hold.id)
        self.leases.pop(hold.id, None)
        self.reservations.pop(hold.id, None)

    def of_session(self, session: Session) -> Iterator[Lease | Reservation]:
        for number in sorted(session.holds):
            hold = self.leases.get(number) or self.reservations.get(number)
            if hold is not None:
                yield hold
