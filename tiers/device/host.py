"""The host device: pools in shared memory, streams as worker threads. Real memory, real copies, no GPU.

It is what runs where there is no CUDA, and what tests run on: a stream can be held before it copies or before it
reports (`HostStream.hold`), and told to fail.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from hybridkv.tiers.device.base import AllocationHandle, Bytes, Device, Event, HostRegistration, Registration
from hybridkv.tiers.device.host_pool import KIND, HostPool, ImportedHostPool
from hybridkv.tiers.device.host_stream import HostEvent, HostStream
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError

_EVENT_MAGIC = b"hybridkv-host-event"


class HostDevice(Device):
    """Shared memory in the place of a GPU. Several may be open; their streams are independent."""

    kind = KIND

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.uuid = f"{KIND}-{index}"
        self._lock = threading.Lock()
        self._streams: list[HostStream] = []
        self._pools: list[HostPool] = []

    @property
    def streams(self) -> tuple[HostStream, ...]:
        """Every stream made so far, for tests that hold them."""
        return tuple(self._streams)

    def create_pool(
        self, capacity_bytes: int, *, extent_bytes: int | None = None, path: Path | None = None
    ) -> HostPool:
        pool = HostPool(self, capacity_bytes, extent_bytes, path)
        with self._lock:
            self._pools.append(pool)
        return pool

    def stream(self, name: str) -> HostStream:
        stream = HostStream(f"{self.uuid}/{name}")
        with self._lock:
            self._streams.append(stream)
        return stream

    def register_host(self, array: Bytes, offset: int, nbytes: int) -> HostRegistration:
        return HostRegistration(Registration.NOT_NEEDED, "the host device copies with the CPU")

    def unregister_host(self, array: Bytes, offset: int, nbytes: int) -> None:
        return None

    def free_bytes(self) -> int | None:
        return None

    def record_event(self, stream_handle: int | None = None, *, again: Event | None = None) -> Event:
        event = HostEvent()
        event.reached.finish()
        return event

    def export_event(self, event: Event) -> bytes:
        if not event.done:
            raise FailedPreconditionError("a host event travels only once it is done: no other process can wait for it")
        return _EVENT_MAGIC

    def import_event(self, payload: bytes) -> Event:
        if payload != _EVENT_MAGIC:
            raise InvalidArgumentError("event", f"{len(payload)} bytes that are no host event")
        return self.record_event()

    def import_pool(
        self, handles: Sequence[AllocationHandle], *, fd: int | None = None, writable: bool = False
    ) -> ImportedHostPool:
        if fd is None:
            raise InvalidArgumentError("fd", "a host pool travels as a descriptor; none was given")
        return ImportedHostPool(handles, fd, writable)

    def close(self) -> None:
        for stream in self._streams:
            stream.release_held()  # first all: one stream may wait for another's event
        for stream in self._streams:
            stream.close()
        for pool in self._pools:
            pool.close()

    def __repr__(self) -> str:
        return f"HostDevice({self.index}, {len(self._pools)} pools, {len(self._streams)} streams)"
