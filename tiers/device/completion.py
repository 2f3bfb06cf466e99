"""What a caller holds while a copy is under way."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Completion:
    """Ends once: with success, or with an error. Thread-safe.

    `done` turns true only after every byte of the batch lies at its destination (or the batch failed, and then what
    the destinations hold is undefined). Until then source and destination belong to the copy.
    """

    __slots__ = ("_callbacks", "_error", "_event", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Completion], None]] = []

    @property
    def done(self) -> bool:
        return self._event.is_set()

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None while it runs and after success."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once done, False when `timeout_s` passed first. Never raises the batch's error: see `check`."""
        return self._event.wait(timeout_s)

    def check(self) -> None:
        """Raise the error of a failed batch."""
        if self._error is not None:
            raise self._error

    def add_done_callback(self, callback: Callable[["Completion"], None]) -> None:
        """Call `callback(self)` once when done, from the device's thread; at once, from here, when already done.

        The callback must not block and must not close the stream. What it raises is logged and dropped.
        """
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        self._call(callback)

    def finish(self, error: BaseException | None = None) -> None:
        """End it; for devices only. A second call changes nothing."""
        with self._lock:
            if self._event.is_set():
                return
            self._error = error
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[["Completion"], None]) -> None:
        try:
            callback(self)
        except Exception:
            log.exception("a completion's callback failed")

    def __repr__(self) -> str:
        state = "running" if not self.done else "done" if self._error is None else f"failed: {self._error!r}"
        return f"Completion({state})"
