"""A background storm: two threads that keep the lanes between host memory and the host device busy, under their caps."""

import threading
import time
from types import TracebackType
from typing import Self

from hybridkv.benchmarks.lane_rig import WAIT_S, LaneRig
from hybridkv.tiers.errors import InternalError
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Priority

LEAST_STORM_GB_PER_S = 0.5


class Storm:
    """Moves each half of `rows` down and up again in the background, for ever, while the `with` block runs.

    `rows` lie on the device only, and do again at the end. The halves take turns, so that no lane runs dry.
    """

    def __init__(self, rig: LaneRig, rows: Rows) -> None:
        self._rig = rig
        self._stop = threading.Event()
        self._moved = 0
        self._failure: BaseException | None = None
        self._began_at = self._took_s = 0.0
        half = len(rows) // 2
        self._threads = [
            threading.Thread(target=self._run, args=(part,), name="storm", daemon=True)
            for part in (rows[:half], rows[half:])
        ]

    def __enter__(self) -> Self:
        self._began_at = time.perf_counter()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._took_s = time.perf_counter() - self._began_at
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        if self._failure is not None and error is None:
            raise InternalError(f"the storm broke off: {self._failure}") from self._failure

    @property
    def gb_per_s(self) -> float:
        """What it achieved; known once the block has ended."""
        return self._moved / self._took_s / 1e9

    def _run(self, rows: Rows) -> None:
        rig, nbytes = self._rig, len(rows) * self._rig.block
        try:
            while not self._stop.is_set():
                rig.demote(rows, rig.gpu, Priority.BACKGROUND)
                self._count(nbytes)
                rig.promote(rows, rig.gpu)
                self._count(nbytes)
                rig.forget_copies(rows, rig.cpu)
        except BaseException as failure:  # handed to the thread that began the storm
            self._failure = failure

    def _count(self, nbytes: int) -> None:
        if not self._stop.is_set():
            self._moved += nbytes
