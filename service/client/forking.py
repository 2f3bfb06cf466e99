"""gRPC across a fork. The package imports this module before anything that imports gRPC.

A forked child opens a channel of its own. That works only with gRPC's fork support on, which it reads from the
environment when it is imported, and with no thread inside a blocking call at the moment of the fork (measured with
grpcio 1.85: otherwise children hang, or abort in `ev_epoll1_linux.cc`). So calls pass a gate that a fork closes; calls
that wait for long are made as futures, which gRPC parks by itself. A fork then takes up to a second.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"

supported = "grpc" not in sys.modules or os.environ.get(_VARIABLE, "") in ("1", "true", "True")
"""Whether a forked child of this process can use gRPC. False when gRPC was imported before hybridkv without it."""
os.environ.setdefault(_VARIABLE, "1")

FORK_WAITS_S = 6.0
"""A fork waits this long for calls under way; they have deadlines of 5 s. Afterwards the child may not be able to."""


class Gate:
    """Calls pass, many at a time; a fork waits until none is under way and holds up new ones. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passing = 0
        self._closed = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._passing += 1
        try:
            yield
        finally:
            with self._changed:
                self._passing -= 1
                if self._closed:
                    self._changed.notify_all()

    def close(self) -> None:
        """Before a fork: let nobody in, wait for those inside."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._passing == 0, FORK_WAITS_S)

    def open(self) -> None:
        """After the fork, in the parent."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def reset(self) -> None:
        """After the fork, in the child: the threads that were inside are not here."""
        self._changed = threading.Condition()
        self._passing = 0
        self._closed = False


gate = Gate()
os.register_at_fork(before=gate.close, after_in_parent=gate.open, after_in_child=gate.reset)
