"""A disk tier that was made smaller: whole segments go, the coldest first, until the files fit; then single blocks."""

import logging

import numpy as np

from hybridkv.migration.memory import Memory
from hybridkv.migration.reclaim import Reclaim
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.disk import DiskState
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Reason

_log = logging.getLogger(__name__)


class DiskSize:
    """Brings what is on disk under a lowered cap. Dropping blocks one by one would leave every file as large as it is."""

    def __init__(self, memory: Memory, reclaim: Reclaim) -> None:
        self._memory = memory
        self._reclaim = reclaim
        self._asked = False

    def resize(self, capacity_bytes: int) -> None:
        """Another cap, at most the one the store was made with; under the lock. Takes no more than fits from now on; the
        disk writer does the rest."""
        store, disk = self._memory.store, self._memory.directory.state.disk
        if store is None or disk is None:
            return
        store.resize(capacity_bytes)
        disk.resize(capacity_bytes)
        self._asked = True

    def fit_if_asked(self) -> None:
        """For the disk writer's thread, between two batches. Does I/O."""
        store = self._memory.store
        if not self._asked or store is None or store.state is not DiskState.ON:
            return
        self._asked = False
        try:
            self._fit()
        except HybridKVError:
            self._asked = True  # again when the store works again
            raise

    def evict(self, rows: Rows, reason: Reason) -> None:
        """These blocks on disk go, counted; under the lock."""
        disk = self._memory.directory.state.disk
        assert disk is not None
        self._reclaim.evict(disk.index, rows, reason)

    def _fit(self) -> None:
        directory, store = self._memory.directory, self._memory.store
        disk = directory.state.disk
        if store is None or disk is None:
            return
        tried: set[int] = set()
        while store.excess_bytes and (segment := self._coldest_segment(tried)) is not None:
            tried.add(segment)
            with directory.lock:
                rows = np.flatnonzero(directory.blocks.slot[disk.index] == segment)
                # What is being read now is found out by its reader.
                self.evict(rows[directory.blocks.busy[rows] == 0], Reason.RESIZE)
                directory.state.counters["disk_segments_emptied"] += 1
            store.drop_segment(segment)
        with directory.lock:
            self._reclaim.shrink_disk(disk)
        _log.info("disk tier: %d segments dropped, it fits %d bytes", len(tried), store.capacity_bytes)

    def _coldest_segment(self, tried: set[int]) -> int | None:
        """The one whose blocks' last accesses lie furthest back, on average."""
        directory, disk = self._memory.directory, self._memory.directory.state.disk
        assert disk is not None
        with directory.lock:
            column = directory.blocks.slot[disk.index]
            rows = np.flatnonzero(column != NO_SLOT)
            numbers, positions = np.unique(column[rows], return_inverse=True)
            ages = np.bincount(positions, directory.blocks.last_access[rows]) / np.bincount(positions)
        left = [(age, number) for age, number in zip(ages.tolist(), numbers.tolist(), strict=True)
                if number not in tried]  # fmt: skip
        return min(left)[1] if left else None
