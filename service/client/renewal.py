"""Keeps what is held alive: one thread a session, one batched Renew at a third of the shortest life."""

import threading
import time
from typing import Protocol

from hybridkv.service.client.transport import LostError, Transport
from hybridkv.tiers.errors import HybridKVError

RENEW_TIMEOUT_S = 5.0


class Held(Protocol):
    """A lease or a reservation, as the renewer sees it."""

    hold_id: int

    def renewed(self, asked_at: float) -> None:
        """Alive; its life counts from `asked_at` (monotonic)."""

    def lapse(self) -> None:
        """Gone: the daemon does not know it any more, or the session ended."""


class Renewer:
    """The holds and requests of one session. Thread-safe.

    The thread starts with the first of them and parks while there is none.
    """

    def __init__(self, transport: Transport) -> None:
        limits = transport.attached.limits
        self._transport = transport
        self._limit = limits.keys_per_call_count
        self._period_s = min(limits.lease_s, limits.reservation_s) / 3
        self._changed = threading.Condition()
        self._holds: dict[int, Held] = {}
        self._requests: set[int] = set()
        self._thread: threading.Thread | None = None
        self._parked = False
        self._closed = False

    def add(self, hold: Held) -> None:
        """Renew `hold` from now on. On a session that ended it lapses at once."""
        with self._changed:
            if not self._closed:
                self._holds[hold.hold_id] = hold
                self._wake()
                return
        hold.lapse()

    def discard(self, hold_id: int) -> None:
        """Renew it no more."""
        with self._changed:
            self._holds.pop(hold_id, None)

    def add_request(self, request: int) -> None:
        """Keep the request `request` open from now on."""
        with self._changed:
            if not self._closed:
                self._requests.add(request)
                self._wake()

    def discard_request(self, request: int) -> None:
        """It ends."""
        with self._changed:
            self._requests.discard(request)

    def close(self) -> None:
        """The session ends: everything still held lapses. May be called again, and from any thread."""
        with self._changed:
            self._closed = True
            holds = list(self._holds.values())
            self._holds.clear()
            self._changed.notify_all()
        for hold in holds:
            hold.lapse()

    def renew_now(self) -> None:
        """One round. Raises LostError; when the daemon does not answer otherwise, the holds stay as they are."""
        with self._changed:
            kept: list[Held | int] = [*self._holds.values(), *sorted(self._requests)]
        for start in range(0, len(kept), self._limit):
            self._renew(kept[start : start + self._limit])

    def _renew(self, kept: list[Held | int]) -> None:
        holds = [hold for hold in kept if not isinstance(hold, int)]
        requests = [request for request in kept if isinstance(request, int)]
        asked_at = time.monotonic()
        alive = self._transport.renew([hold.hold_id for hold in holds], requests, timeout_s=RENEW_TIMEOUT_S)
        for hold, lives in zip(holds, alive[: len(holds)], strict=True):
            if lives:
                hold.renewed(asked_at)
            else:
                self.discard(hold.hold_id)
                hold.lapse()

    def _wake(self) -> None:
        """Under the lock: there is something to renew."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hybridkv-renew", daemon=True)
            self._thread.start()
        elif self._parked:
            self._changed.notify_all()

    def _run(self) -> None:
        while self._wait_for_turn():
            try:
                self.renew_now()
            except LostError:
                self.close()
            except HybridKVError:
                continue  # not lost, but slow or refused: each hold's own clock runs on, and the next turn tries again

    def _wait_for_turn(self) -> bool:
        """Sleep a period with something held; False when closed."""
        with self._changed:
            self._parked = True
            self._changed.wait_for(lambda: self._closed or self._holds or self._requests)
            self._parked = False
            return not self._changed.wait_for(lambda: self._closed, self._period_s)
