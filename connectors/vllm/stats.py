"""Figures of the connector: counted on both sides, handed to vLLM after each step."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

COUNTERS: Final = {
    "hit_requests": "Requests of which a prefix was loaded",
    "hit_tokens": "Tokens whose KV was loaded instead of computed",
    "disk_hit_tokens": "Of these, tokens whose blocks had to come from disk first",
    "short_requests": "Requests shorter than one block: nothing of them is ever stored",
    "tail_tokens": "Tokens behind the last full block of a request, which are computed each time it comes",
    "loaded_blocks": "Blocks copied into the engine's cache",
    "loaded_bytes": "Their bytes",
    "load_failed_blocks": "Blocks that were to be loaded and had to be computed",
    "stored_blocks": "Blocks copied out of the engine's cache and sealed",
    "stored_bytes": "Their bytes",
    "present_blocks": "Blocks that were to be stored and were there already",
    "dropped_blocks": "Blocks that were to be stored and were not: no room, no daemon, or the request was preempted",
    "lookup_count": "Lookups",
    "lookup_s": "Seconds they took",
    "load_count": "Loads",
    "load_s": "Seconds from a load's start to its last byte",
    "store_count": "Stores",
    "store_s": "Seconds from a store's start to its seal",
}
"""Every figure and what it counts; a sum over a run, never reset by us."""


class Counters:
    """Sums since they were last taken. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = {}

    def add(self, **amounts: float) -> None:
        """Add to counters by name. KeyError for one that is not in COUNTERS."""
        with self._lock:
            for name, amount in amounts.items():
                COUNTERS[name]
                self._sums[name] = self._sums.get(name, 0) + amount

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count what runs inside as one `what` ("lookup", "load" or "store") and its seconds."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(**{f"{what}_count": 1, f"{what}_s": time.perf_counter() - began})

    def take(self) -> dict[str, float]:
        """The sums, which start anew; empty when nothing was counted."""
        with self._lock:
            taken, self._sums = self._sums, {}
        return taken


def merged(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Both sums."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
