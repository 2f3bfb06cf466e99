"""What the pools of all devices share: extents that are committed and released, and who uses them."""

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import AllocationHandle, Device, Offsets
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.pools import extent_bytes_for

if TYPE_CHECKING:
    import torch

PAGE_BYTES = 4096


class PoolExport(ABC):
    """One importer's hold on a pool's allocations.

    While an importer may have an allocation mapped it is not given back to the device: CUDA leaves the behaviour of
    such a free undefined. `close` when the importer has unmapped, or is proved gone.
    """

    @abstractmethod
    def new_handles(self) -> list[AllocationHandle]:
        """Handles of every allocation not yet told, and a hold on each. Raises UnavailableError."""

    @abstractmethod
    def close(self) -> None:
        """End the holds. May be called again."""


class DevicePool(ABC):
    """Memory of a device, in extents. Thread-safe.

    An *allocation* covers one or several neighbouring extents; slots start at multiples of their block size from
    `base_of(extent)`, the allocation's start, so that a kernel's index is (offset - base) / block_bytes.
    """

    def __init__(
        self, device: Device, capacity_bytes: int, extent_bytes: int | None, extents_per_allocation: int | None
    ) -> None:
        """`extents_per_allocation` None: one allocation for the whole pool."""
        if capacity_bytes < PAGE_BYTES:
            raise InvalidArgumentError("capacity_bytes", f"{capacity_bytes} is under {PAGE_BYTES}")
        extent_bytes = extent_bytes_for(capacity_bytes) if extent_bytes is None else extent_bytes
        if not 0 < extent_bytes <= capacity_bytes or extent_bytes % PAGE_BYTES:
            raise InvalidArgumentError("extent_bytes", f"{extent_bytes}: a multiple of {PAGE_BYTES}, <= the capacity")
        self.device = device
        self.extent_bytes = extent_bytes
        self.extent_count = capacity_bytes // extent_bytes
        self.capacity_bytes = self.extent_count * extent_bytes
        self.allocation_bytes = min(extents_per_allocation or self.extent_count, self.extent_count) * extent_bytes
        self._lock = threading.Lock()
        self._committed: npt.NDArray[np.bool_] = np.zeros(self.extent_count, np.bool_)
        self._uses: npt.NDArray[np.int32] = np.zeros(self.extent_count, np.int32)
        self._closed = False

    @property
    def committed_bytes(self) -> int:
        return int(np.count_nonzero(self._committed)) * self.extent_bytes

    def is_committed(self, extent: int) -> bool:
        return bool(self._committed[self._checked(extent)])

    def base_of(self, extent: int) -> int:
        """Offset in the pool at which the allocation of `extent` starts."""
        return self._checked(extent) * self.extent_bytes // self.allocation_bytes * self.allocation_bytes

    def commit_extent(self, extent: int) -> None:
        """Back the extent with memory; its content is undefined. Already committed: nothing happens.

        Raises ResourceExhaustedError, UnavailableError; then it is not committed. May take milliseconds.
        """
        with self._lock:
            self._check_open()
            if not self._committed[self._checked(extent)]:
                self._back(extent)
                self._committed[extent] = True

    def release_extent(self, extent: int) -> int:
        """Give up the extent's memory; returns the bytes given back to the device by this call.

        That may be less than the extent (its allocation holds others, or is exported) or more (it was the
        allocation's last). Raises FailedPreconditionError while a copy uses it. Not committed: returns 0.
        """
        with self._lock:
            self._check_open()
            if not self._committed[self._checked(extent)]:
                return 0
            if self._uses[extent]:
                raise FailedPreconditionError(f"extent {extent}: {self._uses[extent]} copies are under way")
            self._committed[extent] = False
            try:
                return self._give_back(extent)
            except BaseException:
                self._committed[extent] = True
                raise

    def begin_use(self, offsets: Offsets, nbytes: int) -> Offsets:
        """For streams: keep the extents under these ranges until `end_use` of the answer.

        Raises InvalidArgumentError when a range leaves the pool or touches an extent that is not committed,
        FailedPreconditionError once closed.
        """
        first, last = offsets // self.extent_bytes, (offsets + nbytes - 1) // self.extent_bytes
        if len(offsets) and (offsets.min() < 0 or last.max() >= self.extent_count):
            raise InvalidArgumentError("device_offsets", f"a block leaves the pool's {self.capacity_bytes} bytes")
        reach = int((last - first).max(initial=0)) + 1  # extents one block may touch
        extents = np.unique(np.concatenate([np.minimum(first + step, last) for step in range(reach)]))
        with self._lock:
            self._check_open()
            if not self._committed[extents].all():
                missing = extents[~self._committed[extents]]
                raise InvalidArgumentError("device_offsets", f"extent {missing[0]} is not committed")
            self._uses[extents] += 1
        return extents

    def end_use(self, extents: Offsets) -> None:
        with self._lock:
            self._uses[extents] -= 1

    @abstractmethod
    def view(self, offset: int, nbytes: int) -> "torch.Tensor":
        """The bytes as torch.uint8 [nbytes], no copy. The caller drops it before the extent is released.

        Raises InvalidArgumentError when the range leaves the pool or is not committed.
        """

    @abstractmethod
    def export(self) -> PoolExport:
        """A hold for one importing process; it tells the handles."""

    def close(self) -> None:
        """Give everything back. No copy may be under way and nobody may have it mapped. May be called again."""
        with self._lock:
            if self._closed:
                return
            if self._uses.any():
                raise FailedPreconditionError("the pool's copies are under way: close its streams first")
            self._closed = True
            self._committed[:] = False
            self._close_memory()

    @abstractmethod
    def _back(self, extent: int) -> None:
        """Make memory for the extent; under the lock."""

    @abstractmethod
    def _give_back(self, extent: int) -> int:
        """Return the extent's memory; under the lock. Returns the bytes given back."""

    @abstractmethod
    def _close_memory(self) -> None:
        """Return all memory; under the lock."""

    def _check_range(self, offset: int, nbytes: int) -> None:
        if nbytes <= 0 or offset < 0 or offset + nbytes > self.capacity_bytes:
            raise InvalidArgumentError("offset", f"{offset}+{nbytes} leaves the pool's {self.capacity_bytes} bytes")
        first, last = offset // self.extent_bytes, (offset + nbytes - 1) // self.extent_bytes
        if not self._committed[first : last + 1].all():
            raise InvalidArgumentError("offset", f"{offset}+{nbytes} is not committed")

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPreconditionError("the pool is closed")

    def _checked(self, extent: int) -> int:
        if not 0 <= extent < self.extent_count:
            raise InvalidArgumentError("extent", f"{extent} is none of 0..{self.extent_count - 1}")
        return extent

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.device.uuid}, {self.committed_bytes} of {self.capacity_bytes} bytes)"
