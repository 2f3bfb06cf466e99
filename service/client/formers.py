"""Sessions of before: the daemon is told when this process maps their memory no more, so that it may use their slots again.

A daemon that took its predecessor's memory over keeps the slots that a session of before was told to write, or leased, until
the worker's process has gone or says that it has no mapping left. It has one for as long as any view of a block lives.
"""

import threading
import weakref
from collections.abc import Callable

from hybridkv.service.client.memory import Memory
from hybridkv.service.replies import Attached

Tell = Callable[[int, int], None]
"""Tells the daemon that this (epoch, session) is unmapped; never blocks."""

LIMIT = 64
"""Sessions remembered. Of older ones nothing is said: their slots come back when the process ends."""


class Formers:
    """Those of one link. Thread-safe; what the interpreter calls when the last view dies takes no lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unmapped: dict[tuple[int, int], bool] = {}
        self._tell: Tell | None = None

    def follow(self, attached: Attached, memory: Memory | None, tell: Tell) -> None:
        """A session was attached, and is told through `tell` of those before it, and of itself after its end."""
        with self._lock:
            self._tell = tell
            done = [former for former, unmapped in self._unmapped.items() if unmapped]
            for former in done:
                del self._unmapped[former]
            name = attached.epoch, attached.session
            if memory is not None and len(self._unmapped) < LIMIT:
                self._unmapped[name] = False
                memory.when_unmapped(_when_gone(weakref.ref(self), name))
        for epoch, session in done:
            tell(epoch, session)

    def _gone(self, name: tuple[int, int]) -> None:
        self._unmapped[name] = True
        if self._tell is not None:
            self._tell(*name)


def _when_gone(formers: "weakref.ref[Formers]", name: tuple[int, int]) -> Callable[[], None]:
    """Weakly: what waits for a mapping's end must not be what keeps it alive."""

    def gone() -> None:
        found = formers()
        if found is not None:
            found._gone(name)

    return gone
