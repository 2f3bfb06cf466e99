"""The contract of a device: pools of memory, streams of ordered copies, events between streams and processes.

Two implementations pass one conformance suite: `host` and `cuda`. Offsets and sizes are bytes; a pool's offsets count
from the start of its address space. Everything here may be called from any thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.completion import Completion

if TYPE_CHECKING:
    import torch

    from hybridkv.tiers.device.pool import DevicePool

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


class Direction(Enum):
    """Where a copy goes, seen from the host."""

    TO_DEVICE = "to_device"
    TO_HOST = "to_host"
    ON_DEVICE = "on_device"


class Registration(StrEnum):
    """What became of a request to page-lock host memory. FAILED means copies work, through a slower path."""

    REGISTERED = "registered"
    NOT_NEEDED = "not_needed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class HostRegistration:
    """Answer of `Device.register_host`. `reason` says why it failed, or why it was not needed."""

    outcome: Registration
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome is not Registration.FAILED


@dataclass(frozen=True, slots=True)
class AllocationHandle:
    """One allocation of a pool, as another process needs it: it covers [offset, offset + nbytes) of the pool.

    kind "cuda": `payload` is the 64-byte CUDA IPC handle. kind "host": `payload` is empty, the memory travels as a
    file descriptor beside it. `device_uuid` names the device, whatever index it has in the other process.
    """

    kind: str
    device_uuid: str
    offset: int
    nbytes: int
    payload: bytes = b""


class Event(ABC):
    """A point in a stream's order. `done` once everything before that point has happened."""

    @property
    @abstractmethod
    def done(self) -> bool: ...

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> bool:
        """Block the calling thread until done; False when `timeout_s` passed first."""


class Stream(ABC):
    """Copies that happen in the order they were given. Two streams have no order but that of events.

    No call but `synchronize` and `close` blocks.
    """

    name: str

    @abstractmethod
    def copy(
        self,
        direction: Direction,
        pool: "DevicePool",
        device_offsets: Offsets,
        other: "Bytes | DevicePool",
        other_offsets: Offsets,
        nbytes: int,
    ) -> Completion:
        """Copy `len(device_offsets)` blocks of `nbytes` each between `pool` and `other`.

        TO_DEVICE and TO_HOST: `other` is a flat uint8 array of host memory. ON_DEVICE: `other` is a pool of the same
        device, and blocks go from its `other_offsets` to `device_offsets` of `pool`.
        Within one batch the blocks' order is undefined, so destinations must not overlap one another nor, on one
        pool, the sources. The offset arrays are copied. Source and destination must stay untouched until the
        completion is done; the stream keeps `other` alive until then, and the extents cannot be released.
        Raises InvalidArgumentError (before anything is queued), UnavailableError once closed. What goes wrong later
        is the completion's `error`; later batches are carried out all the same.
        """

    @abstractmethod
    def wait_event(self, event: Event) -> None:
        """Everything given to this stream from now on happens after `event`."""

    @abstractmethod
    def record_event(self) -> Event:
        """An event that is done when everything given to this stream so far has happened."""

    @abstractmethod
    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until everything given so far has happened; False when `timeout_s` passed first."""

    @abstractmethod
    def close(self) -> None:
        """Refuse new work, carry out what was given, end the stream's threads. May be called again."""


class ImportedPool(ABC):
    """Another process's pool, mapped here. Views must be dropped before `close`."""

    @abstractmethod
    def add(self, handles: Sequence[AllocationHandle]) -> None:
        """Map allocations made since. Raises InvalidArgumentError, UnavailableError (device not visible here)."""

    @abstractmethod
    def view(self, offset: int, nbytes: int) -> "torch.Tensor":
        """The bytes as torch.uint8 [nbytes], without a copy. Raises InvalidArgumentError when not mapped."""

    @abstractmethod
    def close(self) -> None:
        """Unmap. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Device(ABC):
    """A device of this host."""

    kind: str
    index: int
    uuid: str

    @abstractmethod
    def create_pool(
        self, capacity_bytes: int, *, extent_bytes: int | None = None, path: Path | None = None
    ) -> "DevicePool":
        """A pool with no extent committed: it costs address space only.

        `capacity_bytes` is rounded down to whole extents. `path` names the host device's region file (it must not
        exist); without one the region has no name. CUDA has no use for it.
        Raises InvalidArgumentError, UnavailableError, ResourceExhaustedError.
        """

    @abstractmethod
    def stream(self, name: str) -> Stream:
        """A new stream; `name` is for threads, logs and metrics."""

    @abstractmethod
    def register_host(self, array: Bytes, offset: int, nbytes: int) -> HostRegistration:
        """Page-lock a part of host memory, so that copies run at link speed. Never raises for a refusal.

        The part must not overlap one that is registered. The caller unregisters it before unmapping.
        """

    @abstractmethod
    def unregister_host(self, array: Bytes, offset: int, nbytes: int) -> None:
        """Undo `register_host` of exactly this part; unknown parts are ignored. No copy may be under way on it."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Memory nobody holds on the device, for pressure; None where the host's own figure says it."""

    @abstractmethod
    def record_event(self, stream_handle: int | None = None, *, again: Event | None = None) -> Event:
        """For workers: an event behind everything enqueued so far on an engine's own CUDA stream.

        `stream_handle` is the raw stream (`torch.cuda.Stream.cuda_stream`); None is the calling thread's current one.
        On a host device it is done at once: the caller's writes have happened. `again`: an earlier event of this call
        that is done; it is recorded anew, and its exports stand for the new record from then on.
        """

    @abstractmethod
    def export_event(self, event: Event) -> bytes:
        """The event as bytes for another process. It must be kept as long as that process may ask or wait for it.

        Raises FailedPreconditionError when the event cannot travel (host device: not done yet).
        """

    @abstractmethod
    def import_event(self, payload: bytes) -> Event:
        """Another process's event. Raises InvalidArgumentError when `payload` is none of this device's kind."""

    @abstractmethod
    def import_pool(
        self, handles: Sequence[AllocationHandle], *, fd: int | None = None, writable: bool = False
    ) -> ImportedPool:
        """Map a pool of another process. `fd` is the host device's region, which the import owns from now on.

        CUDA has no read-only mappings: `writable` binds the host device only.
        """

    @abstractmethod
    def close(self) -> None:
        """Close streams, then pools. May be called again."""
