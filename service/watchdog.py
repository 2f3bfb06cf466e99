"""The watchdog: looks at the host's health on a thread of its own, so that what is stuck is seen although it is stuck."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from hybridkv.service.probes import Health, dead_or_stuck, trouble_of
from hybridkv.tiers.loops import Loop, Pulse

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
STALE_AFTER_S = 15.0
"""A look that old tells nothing: the probe itself hangs."""

ALIVE = frozenset({"loops", "event_loop", "directory", "probe"})
"""Components whose failure no waiting mends: a supervisor that restarts the daemon for them does right."""

ESSENTIAL = ALIVE | {"loop", "lanes"}
"""Components without which no service does its work. A tier that is off costs hits; a restart for it would cost all."""


class Watchdog:
    """The last look at the host, and how old it is. `health` may be asked from any thread, and never waits."""

    def __init__(self, look: Callable[[], Health], told: Callable[[], None]) -> None:
        """`look` may take as long as it will; `told` hears, on the watchdog's thread, that there was one more."""
        self.event_loop = Pulse("event loop")
        self.watch = Pulse("watch")
        self.pulse = Pulse("watchdog", within_s=INTERVAL_S)
        self._look = look
        self._told = told
        self._found: Health = {}
        self._looked_at = time.monotonic()
        self._closing = threading.Event()
        self._loop = Loop(self.pulse, self._run, self._closing.wait)

    def start(self) -> None:
        """Look once, here, and go on looking."""
        self._once()
        self._loop.start()

    def close(self) -> None:
        """Look no more. A look that hangs is left behind."""
        self._closing.set()
        if self._loop.thread.is_alive():
            self._loop.thread.join(timeout=STALE_AFTER_S)

    @property
    def pulses(self) -> Iterable[Pulse]:
        """Of the daemon's own loops."""
        return (self.event_loop, self.watch, self.pulse)

    @property
    def health(self) -> Health:
        """What the last look found, and what can be told without looking: the daemon's own loops."""
        found = {"probe": (True, ""), **self._found}
        old_s = time.monotonic() - self._looked_at
        if old_s > STALE_AFTER_S:
            found["probe"] = (False, f"the last look at the host ended {old_s:.0f} s ago")
        found["event_loop"] = dead_or_stuck([self.event_loop])
        found["watch"] = trouble_of([self.watch])
        return found

    def alive(self) -> bool:
        """Liveness: nothing hangs or is dead."""
        return _all_well(self.health, ALIVE)

    def works(self) -> bool:
        """Readiness, as far as the host is concerned: every service does its work."""
        return _all_well(self.health, ESSENTIAL)

    def _run(self) -> None:
        while not self._closing.wait(INTERVAL_S):
            self.pulse.begin()
            self._once()
            self.pulse.end()
            self.pulse.well()

    def _once(self) -> None:
        try:
            found = dict(self._look())
        except Exception:
            # A bug in a probe must not freeze the answer.
            _log.exception("health probe failed")
            found = {"probe": (False, "failed; see the daemon's log")}
        self._log_changes(found)
        self._found, self._looked_at = found, time.monotonic()
        self._told()

    def _log_changes(self, found: Health) -> None:
        for name, (ok, reason) in found.items():
            if ok is not self._found.get(name, (True, ""))[0]:
                _log.log(logging.INFO if ok else logging.WARNING, "health: %s %s", name, "is well" if ok else reason)


def _all_well(found: Health, components: Iterable[str]) -> bool:
    return all(found.get(name, (True, ""))[0] for name in components)
