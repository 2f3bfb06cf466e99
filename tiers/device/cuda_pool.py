"""Pools in device memory: plain allocations of several extents, shared by CUDA IPC."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import AllocationHandle, Device, ImportedPool, Offsets
from hybridkv.tiers.device.cuda_runtime import IPC_ALIGN_BYTES, CudaRuntime
from hybridkv.tiers.device.pool import DevicePool, PoolExport
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    import torch

KIND = "cuda"
EXTENTS_PER_ALLOCATION = 4
"""256 MiB at full-size extents: few enough for kernels and handles, small enough to be emptied and given back."""


class CudaPool(DevicePool):
    """An allocation is made with its first extent and freed with its last, unless an importer still has it mapped."""

    def __init__(
        self,
        device: Device,
        runtime: CudaRuntime,
        capacity_bytes: int,
        extent_bytes: int | None,
        extents_per_allocation: int = EXTENTS_PER_ALLOCATION,
    ) -> None:
        super().__init__(device, capacity_bytes, extent_bytes, extents_per_allocation)
        self._runtime = runtime
        count = -(-self.capacity_bytes // self.allocation_bytes)
        self._addresses: npt.NDArray[np.int64] = np.zeros(count, np.int64)  # 0: no memory
        self._importers: Counter[int] = Counter()

    def allocations_of(self, offsets: Offsets) -> npt.NDArray[np.int64]:
        """Per offset the number of its allocation."""
        return offsets // self.allocation_bytes

    def addresses_of(self, offsets: Offsets) -> npt.NDArray[np.int64]:
        """Device addresses, valid while the extents are in use."""
        numbers = self.allocations_of(offsets)
        return self._addresses[numbers] + (offsets - numbers * self.allocation_bytes)

    def allocation_address(self, number: int) -> int:
        return int(self._addresses[number])

    def view(self, offset: int, nbytes: int) -> "torch.Tensor":
        self._check_range(offset, nbytes)
        number = offset // self.allocation_bytes
        if (offset + nbytes - 1) // self.allocation_bytes != number:
            raise InvalidArgumentError("offset", f"{offset}+{nbytes} spans two allocations of {self.allocation_bytes}")
        address = self.allocation_address(number) + offset - number * self.allocation_bytes
        return self._runtime.tensor(self.device.index, address, nbytes)

    def export(self) -> "CudaPoolExport":
        return CudaPoolExport(self)

    def export_new(self, told: set[int]) -> list[AllocationHandle]:
        """For exports: handles of allocations that are not in `told`, which gains them; each is held once more."""
        handles = []
        with self._lock:
            self._check_open()
            for number in np.flatnonzero(self._addresses).tolist():
                if number not in told:
                    payload = self._runtime.export_memory(self.device.index, self.allocation_address(number))
                    start = number * self.allocation_bytes
                    nbytes = min(self.allocation_bytes, self.capacity_bytes - start)
                    handles.append(AllocationHandle(KIND, self.device.uuid, start, nbytes, payload))
                    told.add(number)
                    self._importers[number] += 1
        return handles

    def end_export(self, told: set[int]) -> None:
        """For exports: drop the holds of one importer; frees what nobody needs."""
        with self._lock:
            while told:
                number = told.pop()
                self._importers[number] -= 1
                if not self._closed:
                    self._free_if_unused(number)

    def _back(self, extent: int) -> None:
        number = extent * self.extent_bytes // self.allocation_bytes
        if not self._addresses[number]:
            padded = -(-self.allocation_bytes // IPC_ALIGN_BYTES) * IPC_ALIGN_BYTES
            self._addresses[number] = self._runtime.malloc(self.device.index, padded)

    def _give_back(self, extent: int) -> int:
        return self._free_if_unused(extent * self.extent_bytes // self.allocation_bytes)

    def _free_if_unused(self, number: int) -> int:
        per_allocation = self.allocation_bytes // self.extent_bytes
        extents = self._committed[number * per_allocation : (number + 1) * per_allocation]
        if extents.any() or self._importers[number] > 0 or not self._addresses[number]:
            return 0
        address, self._addresses[number] = self.allocation_address(number), 0
        self._runtime.free(self.device.index, address)
        return self.allocation_bytes

    def _close_memory(self) -> None:
        for number in np.flatnonzero(self._addresses).tolist():
            if self._importers[number] == 0:  # else it is left to the end of this process
                self._runtime.free(self.device.index, self.allocation_address(number))
        self._addresses[:] = 0


class CudaPoolExport(PoolExport):
    """Handles of allocations, told once each."""

    def __init__(self, pool: CudaPool) -> None:
        self._pool = pool
        self._told: set[int] = set()

    def new_handles(self) -> list[AllocationHandle]:
        return self._pool.export_new(self._told)

    def close(self) -> None:
        self._pool.end_export(self._told)


class ImportedCudaPool(ImportedPool):
    """Allocations of another process, opened on this process's index of the same device."""

    def __init__(self, device: Device, runtime: CudaRuntime, handles: Sequence[AllocationHandle]) -> None:
        self._device = device
        self._runtime = runtime
        self._opened: dict[int, tuple[int, int]] = {}  # offset in the pool -> (address, bytes)
        try:
            self.add(handles)
        except BaseException:
            self.close()
            raise

    def add(self, handles: Sequence[AllocationHandle]) -> None:
        for handle in handles:
            if handle.kind != KIND:
                raise InvalidArgumentError("handles", f"kind {handle.kind!r}, not {KIND!r}")
            if handle.device_uuid != self._device.uuid:
                raise UnavailableError(f"handle of device {handle.device_uuid}, this is {self._device.uuid}")
            if handle.offset not in self._opened:
                address = self._runtime.open_memory(self._device.index, handle.payload)
                self._opened[handle.offset] = (address, handle.nbytes)

    def view(self, offset: int, nbytes: int) -> "torch.Tensor":
        for start, (address, size) in self._opened.items():
            if nbytes > 0 and start <= offset and offset + nbytes <= start + size:
                return self._runtime.tensor(self._device.index, address + offset - start, nbytes)
        raise InvalidArgumentError("offset", f"{offset}+{nbytes} is in no mapped allocation")

    def close(self) -> None:
        while self._opened:
            _, (address, _) = self._opened.popitem()
            self._runtime.close_memory(self._device.index, address)
