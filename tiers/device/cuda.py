"""The CUDA device."""

import threading
from collections.abc import Sequence
from pathlib import Path

from hybridkv.tiers.device.base import AllocationHandle, Bytes, Device, Event, HostRegistration
from hybridkv.tiers.device.cuda_host import registrations_of
from hybridkv.tiers.device.cuda_pool import EXTENTS_PER_ALLOCATION, KIND, CudaPool, ImportedCudaPool
from hybridkv.tiers.device.cuda_runtime import CudaRuntime
from hybridkv.tiers.device.cuda_staging import STAGING_BYTES, STAGING_COUNT, StagingRing
from hybridkv.tiers.device.cuda_stream import CudaEvent, CudaStream
from hybridkv.tiers.device.cuda_torch import torch_runtime
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError


class CudaDevice(Device):
    """A GPU as CUDA numbers it in this process (`index`); `uuid` is the same in every process."""

    kind = KIND

    def __init__(
        self,
        index: int = 0,
        runtime: CudaRuntime | None = None,
        *,
        staging_bytes: int = STAGING_BYTES,
        staging_count: int = STAGING_COUNT,
    ) -> None:
        """Raises UnavailableError when there is no such GPU. `runtime` None: the real one, which imports torch."""
        self._runtime = runtime or torch_runtime()
        if not 0 <= index < self._runtime.device_count():
            raise UnavailableError(f"cuda:{index}: this process sees {self._runtime.device_count()} devices")
        self.index = index
        self.uuid = self._runtime.device_uuid(index)
        self._staging = (staging_bytes, staging_count)
        self._registrations = registrations_of(self._runtime)
        self._lock = threading.Lock()
        self._streams: list[CudaStream] = []
        self._pools: list[CudaPool] = []
        self._registered: dict[tuple[int, int], tuple[Bytes, int, int]] = {}  # (address, bytes) -> as registered

    def create_pool(
        self,
        capacity_bytes: int,
        *,
        extent_bytes: int | None = None,
        path: Path | None = None,
        extents_per_allocation: int = EXTENTS_PER_ALLOCATION,
    ) -> CudaPool:
        pool = CudaPool(self, self._runtime, capacity_bytes, extent_bytes, extents_per_allocation)
        with self._lock:
            self._pools.append(pool)
        return pool

    def stream(self, name: str) -> CudaStream:
        ring = StagingRing(self._runtime, self.index, *self._staging)
        stream = CudaStream(self._runtime, self.index, f"cuda-{self.index}/{name}", self._registrations, ring)
        with self._lock:
            self._streams.append(stream)
        return stream

    def register_host(self, array: Bytes, offset: int, nbytes: int) -> HostRegistration:
        answer = self._registrations.register(self.index, array, offset, nbytes)
        if answer.ok:
            with self._lock:
                self._registered[array.ctypes.data + offset, nbytes] = (array, offset, nbytes)
        return answer

    def unregister_host(self, array: Bytes, offset: int, nbytes: int) -> None:
        with self._lock:
            known = self._registered.pop((array.ctypes.data + offset, nbytes), None)
        if known is not None:
            self._registrations.unregister(*known)

    def free_bytes(self) -> int | None:
        return self._runtime.memory_info(self.index)[0]

    def record_event(self, stream_handle: int | None = None, *, again: Event | None = None) -> CudaEvent:
        if stream_handle is None:
            stream_handle = self._runtime.current_stream(self.index)
        event = again
        if not isinstance(event, CudaEvent):
            event = CudaEvent(self._runtime, self.index, self._runtime.create_event(self.index))
        self._runtime.record_event(self.index, event.handle, stream_handle)
        event.recorded.finish()
        return event

    def export_event(self, event: Event) -> bytes:
        if not isinstance(event, CudaEvent):
            raise InvalidArgumentError("event", f"{type(event).__name__} is no CUDA event")
        event.recorded.wait()  # the importer's wait for an event never recorded would let it pass
        event.recorded.check()
        return self._runtime.export_event(self.index, event.handle)

    def import_event(self, payload: bytes) -> CudaEvent:
        event = CudaEvent(self._runtime, self.index, self._runtime.open_event(self.index, payload))
        event.recorded.finish()
        return event

    def import_pool(
        self, handles: Sequence[AllocationHandle], *, fd: int | None = None, writable: bool = False
    ) -> ImportedCudaPool:
        return ImportedCudaPool(self, self._runtime, handles)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        for pool in self._pools:
            pool.close()
        while self._registered:
            self._registrations.unregister(*self._registered.popitem()[1])

    def __repr__(self) -> str:
        return f"CudaDevice({self.index}, {self.uuid}, {len(self._pools)} pools, {len(self._streams)} streams)"
