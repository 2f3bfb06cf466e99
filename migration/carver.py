"""The carver: commits and returns memory, which takes milliseconds and must hold neither the lock nor a caller.

Workers read without a call, and a read that is under way when its extent is closed goes on to its end: only then does it
see that the epoch has changed. If the memory is a hole by then, and the host has none to fill it with, the worker gets
SIGBUS. So memory goes back `RETURN_AFTER_S` after it was asked for, which is after its extent was closed; a worker that
takes longer for one piece of a copy (`service/client/memory.py`) is stopped, or starved of its processor.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

from hybridkv.migration.memory import Memory
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.loops import Loop, Pulse
from hybridkv.tiers.points import point

_log = logging.getLogger(__name__)

_IDLE_WITHIN_S = 10.0

RETURN_AFTER_S = 1.0
"""How long an extent's memory stays after the extent was closed, for reads without a call that are under way."""


class Carver:
    """One thread, one job at a time. `carve` and `give_back` may be called under the directory's lock."""

    def __init__(self, memory: Memory, stir: Callable[[], None]) -> None:
        """`stir` is called, without the lock, when an extent was carved or could not be."""
        self.pulse = Pulse("carver")
        self.return_after_s = RETURN_AFTER_S
        self.released: Callable[[int], None] = lambda _pool: None
        """Called under the lock with a pool of which an extent's memory went back."""
        self._memory = memory
        self._directory = memory.directory
        self._stir = stir
        self._closed: dict[tuple[int, int], float] = {}
        """(pool, extent) whose memory goes back, and when by `time.monotonic`; the carver's own, the first due first."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loop = Loop(self.pulse, self._run, time.sleep)
        self._thread = self._loop.thread
        self._start()

    def _start(self) -> None:
        self._loop.start()

    def carve(self, pool: int, extent: int) -> None:
        """Commit a CARVING extent's memory, then make its slots."""
        self._jobs.put(lambda: self._carve(pool, extent))

    def give_back(self, pool: int, extent: int) -> None:
        """Return a closed extent's memory after `return_after_s`, unless it is carved again before."""
        due = time.monotonic() + self.return_after_s
        self._jobs.put(lambda: self._close(pool, extent, due))

    def idle(self) -> None:
        """Wait until the jobs queued so far are done; memory that is not due yet stays."""
        if not self._thread.is_alive():
            self.work()
            return
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait(_IDLE_WITHIN_S)

    def close(self) -> bool:
        """Finish what is queued, but for memory that is not due yet: it goes with its pool. False when the thread did not
        end."""
        self.end_thread()
        return not self._thread.is_alive()

    def end_thread(self) -> None:
        """Finish what is queued; from now on jobs are done by `idle`, on its caller's thread."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(timeout=30)

    def work(self) -> bool:
        """Without a thread: do what is queued; False when there was nothing."""
        did = False
        while (job := self._next()) is not None:
            self._do(job)
            did = True
        self._do(self._return_due)
        return did

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._jobs.get_nowait()
        except queue.Empty:
            return None

    def _run(self) -> None:
        """Commits and returns memory, which takes milliseconds and must not hold the lock or a caller."""
        while True:
            try:
                job = self._jobs.get(timeout=self._next_due_s())
            except queue.Empty:
                self._do(self._return_due)
                continue
            if job is None:
                return
            self._do(job)
            self._do(self._return_due)

    def _next_due_s(self) -> float | None:
        """Seconds until memory is to go back; None when none is."""
        due = next(iter(self._closed.values()), None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _do(self, job: Callable[[], None]) -> None:
        self.pulse.begin()
        try:
            job()
        except Exception as error:
            self.pulse.failed(error)
        else:
            self.pulse.well()
        finally:
            self.pulse.end()

    def _carve(self, pool: int, extent: int) -> None:
        book = self._directory.state.mapped(pool)
        size = book.table.slot_bytes_of(extent)
        if self._closed.pop((pool, extent), None) is not None:
            self._note_released(pool)  # its memory is wanted again, and is still there
        try:
            point("extent.before_carve")
            self._memory.commit_extent(pool, extent, size)
        except BaseException as error:  # whatever it is, the extent must not stay half carved
            if not isinstance(error, HybridKVError):
                self.pulse.failed(error)
            _log.warning("%s: extent %d could not be committed: %s", book.id, extent, error)
            with self._directory.lock:
                self._directory.state.counters["extents_not_committed"] += 1
                # The host has no more to give: this extent is out of use until the background pass takes it back.
                book.table.spare(extent, returned=True)
        else:
            with self._directory.lock:
                book.table.carve(extent)
                if book.headers is not None:
                    book.headers.set_extent(extent, slot_bytes=size, carved=True)
        point("extent.carved")
        self._stir()

    def _close(self, pool: int, extent: int, due: float) -> None:
        self._closed[pool, extent] = due
        self._return_due()

    def _return_due(self) -> None:
        now = time.monotonic()
        for place in [place for place, due in self._closed.items() if due <= now]:
            del self._closed[place]
            try:
                self._memory.release_extent(*place)
                point("extent.returned")
            finally:
                self._note_released(place[0])

    def _note_released(self, pool: int) -> None:
        with self._directory.lock:
            self.released(pool)
