"""Staging buffers: page-locked host memory and device memory beside it, lent to one part of a batch at a time."""

import ctypes
import threading
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import Bytes, Offsets
from hybridkv.tiers.device.cuda_runtime import CudaRuntime

STAGING_BYTES = 4 << 20
STAGING_COUNT = 2  # one is filled while the other one's copy runs
MIN_ROW_BYTES = 512


@dataclass(frozen=True, slots=True)
class StagingBuffer:
    """`host` and `rows` lie in one page-locked allocation; their device twins follow the same layout."""

    host: Bytes
    rows: Offsets
    host_address: int
    device_address: int

    @property
    def host_rows_address(self) -> int:
        return self.host_address + self.host.nbytes

    @property
    def device_rows_address(self) -> int:
        return self.device_address + self.host.nbytes


class StagingRing:
    """A fixed number of buffers, made when first needed. `take` blocks until one is free. Thread-safe."""

    def __init__(
        self, runtime: CudaRuntime, device: int, nbytes: int = STAGING_BYTES, count: int = STAGING_COUNT
    ) -> None:
        self.nbytes = nbytes
        self._runtime = runtime
        self._device = device
        self._count = count
        self._lock = threading.Lock()
        self._made: list[StagingBuffer] = []
        self._free: SimpleQueue[StagingBuffer] = SimpleQueue()

    def take(self) -> StagingBuffer:
        """A buffer that no copy uses. Raises ResourceExhaustedError, UnavailableError when none can be made."""
        with self._lock:
            if len(self._made) < self._count and self._free.empty():
                buffer = self._make()
                self._made.append(buffer)
                return buffer
        return self._free.get()

    def give_back(self, buffer: StagingBuffer) -> None:
        """Only once every copy from and to it has ended."""
        self._free.put(buffer)

    def close(self) -> None:
        """Free all; none may be lent."""
        with self._lock:
            while self._made:
                buffer = self._made.pop()
                self._runtime.free_host(self._device, buffer.host_address)
                self._runtime.free(self._device, buffer.device_address)

    def _make(self) -> StagingBuffer:
        rows_bytes = 2 * 8 * (self.nbytes // MIN_ROW_BYTES)  # int64 indices of two tables
        host_address = self._runtime.malloc_host(self._device, self.nbytes + rows_bytes)
        try:
            device_address = self._runtime.malloc(self._device, self.nbytes + rows_bytes)
        except BaseException:
            self._runtime.free_host(self._device, host_address)
            raise
        memory: npt.NDArray[np.uint8] = np.ctypeslib.as_array(
            (ctypes.c_uint8 * (self.nbytes + rows_bytes)).from_address(host_address)
        )
        return StagingBuffer(memory[: self.nbytes], memory[self.nbytes :].view(np.int64), host_address, device_address)
