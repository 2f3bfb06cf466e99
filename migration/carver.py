"""The carver: commits and returns memory, which takes milliseconds and must hold neither the lock nor a caller."""

import logging
import queue
import threading
from collections.abc import Callable

from hybridkv.migration.memory import Memory
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.points import point

_log = logging.getLogger(__name__)

_IDLE_WITHIN_S = 10.0


class Carver:
    """One thread, one job at a time. `carve` and `give_back` may be called under the directory's lock."""

    def __init__(self, memory: Memory, stir: Callable[[], None]) -> None:
        """`stir` is called, without the lock, when an extent was carved or could not be."""
        self.errors = 0
        self.released: Callable[[int], None] = lambda _pool: None
        """Called under the lock with a pool of which an extent's memory went back."""
        self._memory = memory
        self._directory = memory.directory
        self._stir = stir
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hybridkv-carver", daemon=True)
        self._start()

    def _start(self) -> None:
        self._thread.start()

    def carve(self, pool: int, extent: int) -> None:
        """Commit a CARVING extent's memory, then make its slots."""
        self._jobs.put(lambda: self._carve(pool, extent))

    def give_back(self, pool: int, extent: int) -> None:
        """Return an empty extent's memory."""
        self._jobs.put(lambda: self._give_memory_back(pool, extent))

    def idle(self) -> None:
        """Wait until the jobs queued so far are done."""
        if not self._thread.is_alive():
            self.work()
            return
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait(_IDLE_WITHIN_S)

    def close(self) -> bool:
        """Finish what is queued; False when the thread did not end."""
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
        return did

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._jobs.get_nowait()
        except queue.Empty:
            return None

    def _run(self) -> None:
        """Commits and returns memory, which takes milliseconds and must not hold the lock or a caller."""
        while True:
            job = self._jobs.get()
            if job is None:
                return
            self._do(job)

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:
            self.errors += 1
            _log.exception("committing or returning memory failed")

    def _carve(self, pool: int, extent: int) -> None:
        book = self._directory.state.mapped(pool)
        size = book.table.slot_bytes_of(extent)
        try:
            point("extent.before_carve")
            self._memory.commit_extent(pool, extent, size)
        except Exception as error:
            if not isinstance(error, HybridKVError):
                self.errors += 1
                _log.exception("%s: committing extent %d failed in an unexpected way", book.id, extent)
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

    def _give_memory_back(self, pool: int, extent: int) -> None:
        try:
            self._memory.release_extent(pool, extent)
        finally:
            with self._directory.lock:
                self.released(pool)
