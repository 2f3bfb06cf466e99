"""Which parts of host memory are page-locked for CUDA."""

import threading
from collections import Counter
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import Bytes, HostRegistration, Offsets, Registration
from hybridkv.tiers.device.cuda_runtime import CudaRuntime
from hybridkv.tiers.errors import HybridKVError

NOT_REGISTERED = -1  # in the column that `labels` returns


class Registrations:
    """A process's page-locked ranges, whatever device asked: one registration serves them all, and CUDA refuses a
    second. Thread-safe. A refused registration is an answer, not an error.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._holders: Counter[tuple[int, int]] = Counter()  # (start address, end address)
        self._devices: dict[tuple[int, int], int] = {}  # through which device
        self._sorted: npt.NDArray[np.int64] = np.empty((0, 2), np.int64)

    def register(self, device: int, array: Bytes, offset: int, nbytes: int) -> HostRegistration:
        part = _part(array, offset, nbytes)
        with self._lock:
            if part not in self._holders:
                try:
                    self._runtime.register_host(device, part[0], nbytes, not array.flags.writeable)
                except HybridKVError as error:
                    return HostRegistration(Registration.FAILED, str(error))
                self._devices[part] = device
            self._holders[part] += 1
            self._sort()
        return HostRegistration(Registration.REGISTERED)

    def unregister(self, array: Bytes, offset: int, nbytes: int) -> None:
        """The part is unregistered with its last holder; an unknown part is ignored."""
        part = _part(array, offset, nbytes)
        with self._lock:
            if part not in self._holders:
                return
            self._holders[part] -= 1
            if not self._holders[part]:
                del self._holders[part]
                self._sort()
                self._runtime.unregister_host(self._devices.pop(part), part[0])

    def all_through(self, device: int) -> bool:
        """Whether every part was registered through `device`: what its kernels reach, see `kernels_reach_host`."""
        with self._lock:
            return all(through == device for through in self._devices.values())

    def labels(self, array: Bytes, offsets: Offsets, nbytes: int) -> npt.NDArray[np.int64]:
        """Per block the registration it lies in (numbers that tell them apart), or NOT_REGISTERED.

        CUDA refuses a copy that spans two registrations, even adjacent ones.
        """
        ranges = self._sorted
        if not len(ranges):
            return np.full(len(offsets), NOT_REGISTERED, np.int64)
        addresses = offsets + array.ctypes.data
        found = np.searchsorted(ranges[:, 0], addresses, side="right") - 1
        inside = (found >= 0) & (addresses + nbytes <= ranges[np.maximum(found, 0), 1])
        return np.where(inside, found, NOT_REGISTERED)

    def _sort(self) -> None:
        self._sorted = np.array(sorted(self._holders), np.int64).reshape(-1, 2)


def _part(array: Bytes, offset: int, nbytes: int) -> tuple[int, int]:
    address = array.ctypes.data + offset
    return address, address + nbytes


_of_runtime: "WeakKeyDictionary[CudaRuntime, Registrations]" = WeakKeyDictionary()


def registrations_of(runtime: CudaRuntime) -> Registrations:
    """The registrations all devices of one runtime share."""
    return _of_runtime.setdefault(runtime, Registrations(runtime))
