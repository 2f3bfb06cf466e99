"""Counts what happens. Thread-safe."""

import threading
from collections import Counter

from hybridkv.tiers.disk.types import DiskCounters


class Tally:
    """Counters that several threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, **amounts: int) -> None:
        """Add to counters by name (the fields of DiskCounters)."""
        with self._lock:
            self._counts.update(amounts)

    def read(self) -> DiskCounters:
        """All counters, as of one moment."""
        with self._lock:
            return DiskCounters(**self._counts)
