"""Where tests hold a host stream back."""

import threading
from collections import deque
from enum import Enum


class HoldAt(Enum):
    """Where a held batch stands: before its bytes move, or after, with its completion withheld."""

    BEFORE_COPY = "before_copy"
    BEFORE_COMPLETION = "before_completion"


class Gate:
    """Lets batches pass, unless told to hold them. Thread-safe. One stream's batches come one at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hold_at: HoldAt | None = None
        self._permits = 0
        self._standing: HoldAt | None = None
        self._failures: deque[BaseException] = deque()

    def hold(self, at: HoldAt) -> None:
        """From now on every batch waits at `at` for a permit."""
        with self._changed:
            self._hold_at, self._permits = at, 0
            self._changed.notify_all()

    def release(self, count: int | None = None) -> None:
        """Let `count` batches pass, or, with None, all of them from now on."""
        with self._changed:
            if count is None:
                self._hold_at = None
            else:
                self._permits += count
            self._changed.notify_all()

    def fail_next(self, error: BaseException) -> None:
        """The next batch that has no failure yet fails with `error`, before its bytes move."""
        with self._changed:
            self._failures.append(error)

    def wait_held(self, timeout_s: float) -> bool:
        """True once a batch stands at the gate."""
        with self._changed:
            return self._changed.wait_for(lambda: self._standing is not None, timeout_s)

    def take_failure(self) -> BaseException | None:
        with self._changed:
            return self._failures.popleft() if self._failures else None

    def pass_through(self, at: HoldAt) -> None:
        """Called by the stream: returns when the batch may go on."""
        with self._changed:
            if self._hold_at is not at:
                return
            self._standing = at
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._hold_at is not at or self._permits > 0)
            self._standing = None
            if self._hold_at is at:
                self._permits -= 1
