"""A thread that runs tasks in the order they were given."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from hybridkv.tiers.errors import UnavailableError

log = logging.getLogger(__name__)

Task = Callable[[], None]


class SerialWorker:
    """One daemon thread and its queue. Thread-safe.

    A task reports its own failure; one that raises all the same is logged and does not end the thread.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Queue `task`. Never blocks. Raises UnavailableError once closed."""
        with self._lock:
            if self._closed:
                raise UnavailableError(f"stream {self.name} is closed")
            self._tasks.put(task)

    def close(self) -> None:
        """Refuse new tasks, run those that are queued, and wait for the thread's end. May be called again."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._tasks.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException:  # whoever waits for the tasks behind it would wait for ever
                log.exception("a task of %s failed", self.name)
            del task  # an idle worker must not keep the last task's buffers alive

    def __repr__(self) -> str:
        return f"SerialWorker({self.name}, {'closed' if self._closed else 'open'})"
