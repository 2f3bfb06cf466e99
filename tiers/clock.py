"""Time as an argument: leases and access history ask a clock, tests set it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds since 1970. Never goes backwards within one clock. Thread-safe."""

    def now(self) -> float: ...


class SystemClock:
    """Wall time at construction, advanced by the monotonic clock.

    A jump of the wall clock (NTP, an operator) therefore lapses no lease, and the times it stamps still compare with
    those of a daemon started later. While the host is suspended it stands still, like the workers.
    """

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        return self._offset_s + time.monotonic()


class ManualClock:
    """A clock that a test moves."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`; raises ValueError when negative."""
        if seconds < 0:
            raise ValueError(f"a clock does not go backwards: {seconds}")
        self._now += seconds

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"
