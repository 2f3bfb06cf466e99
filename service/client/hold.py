"""What leases and reservations have in common: they belong to one session, live for a time, and end once."""

import threading
import time
from enum import Enum
from typing import Protocol

from hybridkv.service.replies import Attached
from hybridkv.tiers.errors import ExpiredError, FailedPreconditionError


class HoldState(Enum):
    """HELD until it is given back (ENDED) or the daemon took it away (LAPSED)."""

    HELD = "held"
    ENDED = "ended"
    LAPSED = "lapsed"


class Keeper(Protocol):
    """What renews the holds of a session."""

    def add(self, hold: "Hold") -> None: ...
    def discard(self, hold_id: int) -> None: ...


class Owner(Protocol):
    """The session that holds belong to."""

    @property
    def attached(self) -> Attached: ...
    @property
    def renewer(self) -> Keeper: ...
    @property
    def alive(self) -> bool: ...
    @property
    def forked(self) -> bool: ...


class Hold:
    """A hold of the daemon's, kept alive by the session's renewer. Thread-safe."""

    def __init__(self, attachment: Owner, hold_id: int | None, life_s: float, kind: str) -> None:
        """`hold_id` None: the daemon holds nothing for it, so it can only end with its session."""
        self._attachment = attachment
        self._kind = kind
        self._life_s = life_s
        self._expires_at = time.monotonic() + life_s
        self._state = HoldState.HELD
        self._state_lock = threading.Lock()
        self._at_daemon = hold_id is not None
        self.hold_id = hold_id or 0
        if self._at_daemon:
            attachment.renewer.add(self)

    @property
    def valid(self) -> bool:
        """Whether it is held now: its memory may be looked at. Turns False for good."""
        return self._why_not() is None

    def renewed(self, asked_at: float) -> None:
        """For the renewer."""
        self._expires_at = asked_at + self._life_s

    def lapse(self) -> None:
        """For the renewer."""
        with self._state_lock:
            if self._state is HoldState.HELD:
                self._state = HoldState.LAPSED

    def _end(self) -> bool:
        """Give it up; whether this call did, and the daemon must be told."""
        with self._state_lock:
            first, self._state = self._state is not HoldState.ENDED, HoldState.ENDED
        if not first:
            return False
        if self._attachment.forked:
            return False
        if self._at_daemon:
            self._attachment.renewer.discard(self.hold_id)
        return self._at_daemon and self._attachment.alive

    def _check_held(self) -> None:
        """Raises ExpiredError when it lapsed, FailedPreconditionError when it was given back."""
        why = self._why_not()
        if why is None:
            return
        if self._state is HoldState.ENDED:
            raise FailedPreconditionError(f"the {self._kind} {why}")
        raise ExpiredError(f"the {self._kind} {why}")

    def _why_not(self) -> str | None:
        if self._state is HoldState.ENDED:
            return "was given back"
        if self._attachment.forked:
            return "belongs to the parent of this process"
        if not self._attachment.alive:
            return "ended with its session: the daemon was lost or the client closed"
        if self._state is HoldState.LAPSED or (self._at_daemon and time.monotonic() >= self._expires_at):
            return "lapsed"
        return None
