"""Tickets: an answer that may still change, and how to wait for it without holding a thread."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from hybridkv.tiers.replacement import Rows

T = TypeVar("T")

FAILURES = 3
"""Failed batches of demotions after which a call stops waiting for the room they were to make."""


class Hooks:
    """What the migrator does for the calls under way. Called under the directory's lock."""

    def __init__(self) -> None:
        self.hasten: Callable[[Rows], None] = lambda _rows: None
        """Called with blocks that are on their way already and are now waited for."""
        self.displace: Callable[[int, int, int], int] = lambda _pool, _size, _count: 0
        """Called for (pool, size, count) slots that are missing: what is only prefetched gives its own up."""
        self.acquired: Callable[[Rows, int], None] = lambda _rows, _target: None
        """Called with a chain that was asked for (NO_ROW: not known), and its target, after what it needs was begun."""


class Ticket(Generic[T]):
    """Belongs to one call. `done` once nothing is on its way any more; `reply` may be asked for at any time.

    Thread-safe. Callbacks run once, on whatever thread finished the ticket (or on the caller's, when it is done
    already), never under the directory's lock.
    """

    def __init__(self, reply: Callable[[], T], abandon: Callable[[], None]) -> None:
        self._reply = reply
        self._abandon = abandon
        self._lock = threading.Lock()
        self._finished = False
        self._done: threading.Event | None = None
        """Made by the first that waits; most tickets are finished before anybody asks."""
        self._callbacks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"Ticket({'done' if self.done else 'waiting'})"

    @property
    def done(self) -> bool:
        return self._finished

    def wait(self, timeout_s: float | None) -> bool:
        """Block until done; False when `timeout_s` passed first."""
        with self._lock:
            if self._finished:
                return True
            done = self._done = self._done or threading.Event()
        return done.wait(timeout_s)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._finished:
                self._callbacks.append(callback)
                return
        callback()

    def reply(self) -> T:
        """The answer as it stands now. For a reservation this is final: keys that wait for room are given up."""
        return self._reply()

    def abandon(self) -> None:
        """The caller is gone: what it would have got ends."""
        self._abandon()

    def finish(self) -> None:
        """For the migrator: nothing is on its way any more. Not under the directory's lock."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            if self._done is not None:
                self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class AskedAgain(Ticket[T]):
    """A further question about what an earlier ticket will answer. Whoever asks it may give up without giving up what the
    first answer granted."""

    def __init__(self, first: Ticket[T]) -> None:
        super().__init__(first.reply, lambda: None)
        self._first = first

    @property
    def done(self) -> bool:
        return self._first.done

    def wait(self, timeout_s: float | None) -> bool:
        return self._first.wait(timeout_s)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self._first.add_done_callback(callback)
