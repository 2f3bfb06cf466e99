"""Loops that live as long as their owner, whatever goes wrong in a round; and what is to be known of each."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

STUCK_AFTER_S = 30.0
"""A round that takes longer is stuck."""

FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 5.0
"""Before a loop goes on after an error; twice as long each time it fails again, to the last."""


class Pulse:
    """What a loop tells of itself: written by the loop, read by anybody, without a lock. Times by the monotonic clock, for
    this is about threads and not about blocks.

    `within_s`: a loop that does something of its own accord ends a round at least this often; None: it waits for work.
    """

    def __init__(self, name: str, *, within_s: float | None = None) -> None:
        self.name = name
        self.within_s = within_s
        self.stuck_after_s = STUCK_AFTER_S
        self.rounds = 0
        self.errors = 0
        self.failures_in_a_row = 0
        self.last_failure = ""
        self.alive: Callable[[], bool] = lambda: True
        self._begun_at: float | None = None
        self._ended_at = time.monotonic()

    def __repr__(self) -> str:
        return f"Pulse({self.name}, {self.rounds} rounds, {self.errors} errors{', busy' if self.busy_s else ''})"

    def begin(self) -> None:
        """A round of work begins."""
        self._begun_at = time.monotonic()

    def end(self) -> None:
        """It is over, well or not."""
        self._begun_at = None
        self._ended_at = time.monotonic()
        self.rounds += 1

    def beat(self) -> None:
        """A round that takes no time."""
        self._ended_at = time.monotonic()
        self.rounds += 1

    def failed(self, error: BaseException) -> None:
        """A round ended by an error: count it, and log the first of a row in full, lest they fill the disk."""
        self.errors += 1
        self.failures_in_a_row += 1
        self.last_failure = f"{type(error).__name__}: {error}"
        if self.failures_in_a_row == 1:
            _log.error("%s failed, it goes on", self.name, exc_info=error)

    def well(self) -> None:
        """A round did what it was for."""
        self.failures_in_a_row = 0

    @property
    def pause_s(self) -> float:
        """How long to rest after the last failure."""
        doublings = min(self.failures_in_a_row - 1, 16)
        return min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)

    @property
    def busy_s(self) -> float:
        """For how long the present round has been under way; 0.0: it waits."""
        begun_at = self._begun_at
        return 0.0 if begun_at is None else max(0.0, time.monotonic() - begun_at)

    @property
    def trouble(self) -> str:
        """Why it does not do its work: dead, stuck or late; '' when it does."""
        if not self.alive():
            return f"{self.name} is dead"
        if (busy_s := self.busy_s) > self.stuck_after_s:
            return f"{self.name} has been in one round for {busy_s:.0f} s"
        late_s = time.monotonic() - self._ended_at
        if self.within_s is not None and late_s > self.within_s + self.stuck_after_s:
            return f"{self.name} was last heard of {late_s:.0f} s ago"
        return ""

    @property
    def figures(self) -> dict[str, Any]:
        """For stats."""
        return {
            "alive": self.alive(),
            "busy_s": self.busy_s,
            "rounds": self.rounds,
            "errors": self.errors,
            "failures_in_a_row": self.failures_in_a_row,
            "last_failure": self.last_failure,
        }


class Loop:
    """A thread that runs `body`, which returns when its owner closes, and begins again when an error leaves it.

    No error ends the thread, not even one that ends an interpreter's thread elsewhere: whoever depends on it would wait for
    ever.
    """

    def __init__(self, pulse: Pulse, body: Callable[[], None], rest: Callable[[float], object]) -> None:
        """`rest` waits so many seconds, or less when the owner closes. `start` begins."""
        self.pulse = pulse
        self._body = body
        self._rest = rest
        self.thread = threading.Thread(target=self._run, name=f"hybridkv-{pulse.name}", daemon=True)
        self.started = False
        pulse.alive = lambda: self.thread.is_alive() or not self.started

    def start(self) -> None:
        self.started = True
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                self._body()
            except BaseException as error:
                self.pulse.end()
                self.pulse.failed(error)
                self._rest(self.pulse.pause_s)
            else:
                return
