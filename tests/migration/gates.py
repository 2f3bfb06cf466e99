"""Handlers for named points: hold one thread back at a point, or fail there."""

import threading
from collections.abc import Callable

PATIENCE_S = 10.0
"""How long a test waits for what must happen; passing only when something is broken."""


class Gate:
    """A point handler that holds one thread back at one point. Other threads pass."""

    def __init__(self, point: str, thread: str) -> None:
        self.point = point
        self.thread = thread
        self.passed = 0
        self._changed = threading.Condition()
        self._open = False
        self._permits = 0
        self._standing = False

    def __call__(self, passed: str) -> None:
        if passed != self.point or threading.current_thread().name != self.thread:
            return
        with self._changed:
            self._standing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or self._permits > 0)
            self._standing = False
            self._permits -= not self._open
            self.passed += 1

    def wait_held(self) -> None:
        """Returns once the thread stands at the point."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._standing, PATIENCE_S), f"{self.thread} did not come here"

    def release(self, count: int = 1) -> None:
        """Let the thread pass `count` times."""
        with self._changed:
            self._permits += count
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()


def failing_at(name: str, error: BaseException, times: int = 1, thread: str = "") -> Callable[[str], None]:
    """A point handler that raises at the point, `times` times (threads whose name contains `thread`)."""
    left = times

    def handler(passed: str) -> None:
        nonlocal left
        if passed == name and left > 0 and thread in threading.current_thread().name:
            left -= 1
            raise error

    return handler
