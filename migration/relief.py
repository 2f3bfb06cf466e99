"""Relief: under memory pressure whole extents go back to the host or the device, and come back when it is over.

Demoting blocks returns no memory by itself, so this empties extents (migration/reclaim.py) down to each tier's minimum.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hybridkv.migration.pressure import MemoryReading, PressureMarks, PressureSignal, judge
from hybridkv.migration.reclaim import Reclaim
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.states import Tier

_GAP = 0.05
"""Pressure ends this far below the mark at which it began."""

_CALM = PressureSignal(False, 0, None)


@dataclass(frozen=True, slots=True)
class ReliefRules:
    """Used fractions above which memory is given back (1.0 = never), and what each tier keeps at least."""

    host_high: float = 1.0
    device_high: float = 1.0
    min_bytes: Mapping[Tier, int] = field(default_factory=dict)


class Relief:
    """Judges the memory of the host for the CPU pool, and of each device for its pool."""

    def __init__(
        self,
        directory: Directory,
        reclaim: Reclaim,
        rules: ReliefRules,
        read_host: Callable[[], Sequence[MemoryReading]],
        read_device: Callable[[int], MemoryReading | None],
    ) -> None:
        """`read_device(pool)` is None where the host's figures say it (a host device)."""
        self.rules = rules
        self.signals: dict[int, PressureSignal] = {}
        self.read_host = read_host
        self.read_device = read_device
        self._directory = directory
        self._reclaim = reclaim

    def run_once(self) -> None:
        """Judge every pool. Reads files: not under the lock."""
        for book in self._directory.books:
            if isinstance(book, MappedBook):
                with self._directory.lock:
                    self._reclaim.shrink(book)
                self._judge(book)

    def resize(self, book: MappedBook, capacity_bytes: int) -> None:
        """The pool's size changes to at most what it was made with; under the lock. What is beyond it is emptied from now
        on, in passes; what it may have again comes at once, or when the memory pressure is over."""
        for extent in book.resize(capacity_bytes):
            self._reclaim.give_memory_back(book.index, extent)
        self._reclaim.shrink(book)
        if not self.signals.get(book.index, _CALM).under_pressure:
            self._reclaim.take_back(book)

    def _judge(self, book: MappedBook) -> None:
        on_device = book.id.tier is Tier.GPU
        high = self.rules.device_high if on_device else self.rules.host_high
        before = self.signals.get(book.index, _CALM)
        signal = _CALM
        with self._directory.lock:
            leaving = self._reclaim.leaving(book.index)
        if high < 1.0:
            device = self.read_device(book.index) if on_device else None
            readings = [device] if device is not None else self.read_host() if not on_device else []
            signal = judge(readings, PressureMarks(high, high - _GAP), before.under_pressure)
        self.signals[book.index] = signal
        with self._directory.lock:
            if signal.under_pressure:
                minimum = self.rules.min_bytes.get(book.id.tier, 0)
                self._reclaim.give_back(book, signal.return_bytes, minimum, leaving)
            else:
                # Also what could not be committed when the host had no more: it is tried again from now on.
                self._reclaim.take_back(book)
