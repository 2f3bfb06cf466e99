"""One session's way to the memory of CUDA pools: the handles it was told, and the holds that keep them valid."""

import threading
from collections.abc import Mapping

from hybridkv.tiers.device.base import AllocationHandle
from hybridkv.tiers.device.pool import DevicePool, PoolExport
from hybridkv.tiers.errors import NotFoundError


class SessionExports:
    """A `PoolExport` for each pool, from the first question to the session's end. Thread-safe; may wait for a device."""

    def __init__(self, pools: Mapping[int, DevicePool]) -> None:
        self._pools = pools
        self._lock = threading.Lock()
        self._exports: dict[int, PoolExport] = {}
        self._told: dict[int, list[AllocationHandle]] = {}
        self._closed = False

    def handles(self, pool: int) -> list[AllocationHandle]:
        """Every allocation of the pool. Told anew each time: the answer before may not have arrived.

        Raises NotFoundError once closed, UnavailableError.
        """
        with self._lock:
            if self._closed:
                raise NotFoundError("session: it has ended")
            if pool not in self._exports:
                self._exports[pool] = self._pools[pool].export()
            told = self._told.setdefault(pool, [])
            told += self._exports[pool].new_handles()
            return list(told)

    @property
    def used(self) -> bool:
        """Whether handles of any pool were told, so that the session's process may have memory mapped by them."""
        return bool(self._exports)

    def close(self) -> None:
        """Nobody has the memory mapped any more. May be called again."""
        with self._lock:
            self._closed = True
            for export in self._exports.values():
                export.close()
            self._exports.clear()
