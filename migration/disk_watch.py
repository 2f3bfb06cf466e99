"""Is the disk store there? Tells the directory when it is not, what it lost, and when it is back."""

import logging

import numpy as np

from hybridkv.migration.memory import Memory
from hybridkv.tiers.disk import DiskState

_log = logging.getLogger(__name__)


class DiskWatch:
    """Keeps the directory's disk book in step with the store's state. Thread-safe; does nothing without a disk tier.

    A store that is not ON takes no blocks: the book is off, demotions end above it, and what lies there is served as
    long as it can be read.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._asked = False

    def ask(self) -> None:
        """The next `look_if_asked` looks. May be called under the directory's lock."""
        self._asked = True

    def look_if_asked(self) -> None:
        """For the disk writer's thread, between two batches."""
        if self._asked:
            self._asked = False
            self.look()

    def look(self) -> None:
        """Probe the store, bring it back if it can be, and drop the copies it lost. Does I/O; may take seconds."""
        store = self._memory.store
        if store is None:
            return
        lost = store.probe().lost
        if lost:
            self._drop_lost(lost)
        self.note()

    def note(self) -> None:
        """Something failed, or was looked at: the book follows the store's state. No I/O."""
        store, disk = self._memory.store, self._memory.directory.state.disk
        if store is None or disk is None:
            return
        on = store.state is DiskState.ON
        with self._memory.directory.lock:
            if disk.on is not on:
                disk.on = on
                self._memory.directory.state.setbacks.clear()
                _log.warning("disk tier is %s%s", store.state.value, "" if on else f": {store.reason}")

    def _drop_lost(self, segments: tuple[int, ...]) -> None:
        directory = self._memory.directory
        disk = directory.state.disk
        assert disk is not None
        with directory.lock:
            rows = np.flatnonzero(np.isin(directory.blocks.slot[disk.index], segments))
            # What is being read now is found out by its reader.
            rows = rows[directory.blocks.busy[rows] == 0]
            directory.copies.drop(rows, disk.index)
            directory.state.counters["copies_lost"] += len(rows)
        _log.error("disk tier: %d blocks were lost with segments %s", len(rows), ", ".join(map(str, segments)))
