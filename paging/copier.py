"""Copies from slot to slot of one pool, for pages that are written after they were shared.

Slots that a copy reads or writes are haunted while it is under way: whatever becomes of their blocks and owners, nobody
else is given them before the copy has ended.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.memory import Memory
from hybridkv.tiers.device.base import Direction, Stream
from hybridkv.tiers.device.completion import Completion
from hybridkv.tiers.device.worker import SerialWorker
from hybridkv.tiers.points import point

Slots = NDArray[np.int64]
Done = Callable[[BaseException | None], None]


class Copier:
    """A stream for each device pool, and a thread for the CPU pool and for what follows a copy. `begin` never blocks."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._worker = SerialWorker("hybridkv-paging")
        self.streams: Mapping[int, Stream] = {
            index: pool.device.stream(f"paging{index}") for index, pool in memory.device_pools.items()
        }
        """By pool."""
        self.under_way = 0
        """Batches that have not ended. Under the directory's lock."""

    def begin(self, pool: int, size: int, sources: Slots, targets: Slots, done: Done) -> None:
        """Copy blocks of `size` bytes within `pool`; then call `done`, without the lock. Under the lock."""
        self._memory.directory.state.mapped(pool).haunt([*sources.tolist(), *targets.tolist()])
        self.under_way += 1
        if pool == self._memory.cpu_index:
            self._worker.submit(lambda: self._copy_on_host(pool, size, sources, targets, done))
            return
        device_pool = self._memory.device_pools[pool]
        completion = self.streams[pool].copy(Direction.ON_DEVICE, device_pool, targets, device_pool, sources, size)
        completion.add_done_callback(lambda ended: self._hand_over(ended, pool, sources, targets, done))

    def _copy_on_host(self, pool: int, size: int, sources: Slots, targets: Slots, done: Done) -> None:
        array, error = self._memory.cpu_array, None
        try:
            point("page.before_copy")
            for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
                np.copyto(array[target : target + size], array[source : source + size])
            point("page.copied")
        except Exception as failure:
            error = failure
        self._end(error, pool, sources, targets, done)

    def _hand_over(self, completion: Completion, pool: int, sources: Slots, targets: Slots, done: Done) -> None:
        """On the device's thread, which is not to wait for locks."""
        self._worker.submit(lambda: self._copied_on_device(completion.error, pool, sources, targets, done))

    def _copied_on_device(
        self, error: BaseException | None, pool: int, sources: Slots, targets: Slots, done: Done
    ) -> None:
        point("page.copied_on_device")
        self._end(error, pool, sources, targets, done)

    def _end(self, error: BaseException | None, pool: int, sources: Slots, targets: Slots, done: Done) -> None:
        with self._memory.directory.lock:
            self._memory.directory.state.mapped(pool).release([*sources.tolist(), *targets.tolist()])
            self.under_way -= 1
        done(error)

    def close(self) -> None:
        """Carry out what was begun, then end."""
        for stream in self.streams.values():
            stream.close()
        self._worker.close()
