"""How many bytes the lanes carry at this moment, and the bound that background work keeps to."""

import threading
from collections.abc import Callable


class InFlight:
    """Bytes in flight over all lanes. Thread-safe.

    Demand counts but never waits. Background batches ask for `room` and take no more than that; whoever finds too little
    leaves a `wake` and is called when bytes have landed. Asking and adding are one step when both happen under one lock
    (the directory's).
    """

    def __init__(self, limit_bytes: int | None) -> None:
        """`limit_bytes` None: no bound."""
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._bytes = 0
        self._starved: dict[Callable[[], None], None] = {}

    def __repr__(self) -> str:
        return f"InFlight({self._bytes}/{self.limit_bytes} bytes)"

    @property
    def nbytes(self) -> int:
        return self._bytes

    def fits(self, nbytes: int, wake: Callable[[], None]) -> bool:
        """May background work of `nbytes` begin? When not, `wake` is called once some bytes have landed.

        With nothing in flight anything fits, so that a block larger than the bound moves too.
        """
        with self._lock:
            if self.limit_bytes is None or not self._bytes or self._bytes + nbytes <= self.limit_bytes:
                return True
            self._starved[wake] = None
            return False

    def set_limit(self, limit_bytes: int | None) -> None:
        """Another bound from now on; whoever waits for room looks again."""
        with self._lock:
            self.limit_bytes = limit_bytes
            starved, self._starved = self._starved, {}
        for wake in starved:
            wake()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._bytes += nbytes

    def remove(self, nbytes: int) -> None:
        """Bytes have landed, or were given up."""
        with self._lock:
            self._bytes -= nbytes
            starved, self._starved = self._starved, {}
        for wake in starved:
            wake()
