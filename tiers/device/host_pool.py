"""Pools of the host device: shared-memory regions, and another process's mapping of one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridkv.tiers.device.base import AllocationHandle, Device, ImportedPool
from hybridkv.tiers.device.pool import DevicePool, PoolExport
from hybridkv.tiers.device.views import tensor_of
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.shm import SharedRegion

if TYPE_CHECKING:
    import torch

KIND = "host"


class HostPool(DevicePool):
    """A pool in a shared region: one allocation, extents committed by `posix_fallocate` and released by a hole."""

    def __init__(self, device: Device, capacity_bytes: int, extent_bytes: int | None, path: Path | None) -> None:
        super().__init__(device, capacity_bytes, extent_bytes, None)
        self.region = _create_region(path, self.capacity_bytes)

    def view(self, offset: int, nbytes: int) -> "torch.Tensor":
        self._check_range(offset, nbytes)
        return tensor_of(self.region.array[offset : offset + nbytes])

    def export(self) -> "HostPoolExport":
        return HostPoolExport(self)

    def _back(self, extent: int) -> None:
        self.region.commit(extent * self.extent_bytes, self.extent_bytes)

    def _give_back(self, extent: int) -> int:
        self.region.release(extent * self.extent_bytes, self.extent_bytes)
        return self.extent_bytes

    def _close_memory(self) -> None:
        self.region.unlink()
        self.region.close()


class HostPoolExport(PoolExport):
    """The whole region at once, as a descriptor. A hole under a mapping is harmless, so this holds nothing."""

    def __init__(self, pool: HostPool) -> None:
        self._pool = pool
        self._told = False

    def new_handles(self) -> list[AllocationHandle]:
        if self._told:
            return []
        self._told = True
        return [AllocationHandle(KIND, self._pool.device.uuid, 0, self._pool.capacity_bytes)]

    def descriptor(self, *, writable: bool) -> int:
        """A new descriptor of the region, owned by the caller."""
        return os.dup(self._pool.region.fd) if writable else self._pool.region.read_only_fd()

    def close(self) -> None:
        self._told = True


def _create_region(path: Path | None, nbytes: int) -> SharedRegion:
    if path is not None:
        return SharedRegion.create(path, nbytes)
    fd = os.memfd_create("hybridkv-pool", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    return SharedRegion.attach(fd, nbytes, True)


class ImportedHostPool(ImportedPool):
    """Another process's region, mapped from a received descriptor."""

    def __init__(self, handles: Sequence[AllocationHandle], fd: int, writable: bool) -> None:
        _check_handles(handles)
        self.region = SharedRegion.attach(fd, max(h.offset + h.nbytes for h in handles), writable)

    def add(self, handles: Sequence[AllocationHandle]) -> None:
        if handles:
            raise InvalidArgumentError("handles", "a host pool has one allocation, and it is mapped")

    def view(self, offset: int, nbytes: int) -> "torch.Tensor":
        if nbytes <= 0 or offset < 0 or offset + nbytes > self.region.nbytes:
            raise InvalidArgumentError("offset", f"{offset}+{nbytes} leaves the pool's {self.region.nbytes} bytes")
        return tensor_of(self.region.array[offset : offset + nbytes])

    def close(self) -> None:
        self.region.close()


def _check_handles(handles: Sequence[AllocationHandle]) -> None:
    if not handles:
        raise InvalidArgumentError("handles", "none given")
    for handle in handles:
        if handle.kind != KIND:
            raise InvalidArgumentError("handles", f"kind {handle.kind!r}, not {KIND!r}")
