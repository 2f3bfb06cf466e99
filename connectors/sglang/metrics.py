"""What the backend did, for SGLang's own metrics and for the log."""

import importlib
import importlib.util
import threading
from dataclasses import dataclass, field
from typing import Any

GB = 1e9
_HOMES = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")
"""Where SGLang has its StorageMetrics, newest first. Its collector asserts the class."""


@dataclass
class StorageMetrics:
    """The fields of SGLang's class of that name: pages of each batch, and its rate in GB/s."""

    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


class Meter:
    """Batches since the last `take`. Thread-safe; bounded, for engines that never ask."""

    MOST = 1024

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = StorageMetrics()

    def loaded(self, pages: int, page_bytes: int, seconds: float) -> None:
        self._note(self._since.prefetch_pgs, self._since.prefetch_bandwidth, pages, page_bytes, seconds)

    def stored(self, pages: int, page_bytes: int, seconds: float) -> None:
        self._note(self._since.backup_pgs, self._since.backup_bandwidth, pages, page_bytes, seconds)

    def take(self) -> Any:
        """What SGLang's collector takes, and start anew; None where its class is not to be found. Makes no call."""
        with self._lock:
            since, self._since = self._since, StorageMetrics()
        kind = _kind()
        return None if kind is None else kind(**vars(since))

    def _note(self, pages: list[int], rates: list[float], count: int, page_bytes: int, seconds: float) -> None:
        with self._lock:
            if count and len(pages) < self.MOST:
                pages.append(count)
                rates.append(count * page_bytes / GB / max(seconds, 1e-9))


def _kind() -> Any:
    """SGLang's class where SGLang is, our own where it is not."""
    if importlib.util.find_spec("sglang") is None:
        return StorageMetrics
    for home in _HOMES:
        try:
            return importlib.import_module(home).StorageMetrics
        except (ImportError, AttributeError):
            continue
    return None
