"""The GPU tier's door to devices: which device a name means, and a worker's way into another process's pool.

Nothing here imports torch until a CUDA device is asked for.
"""

from collections.abc import Sequence

from hybridkv.tiers.device.base import AllocationHandle, Device, ImportedPool
from hybridkv.tiers.device.host import HostDevice
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError

KINDS = ("host", "cuda")


def open_device(name: str) -> Device:
    """The device called "host:N" or "cuda:N" ("host" and "cuda" mean index 0).

    Raises InvalidArgumentError for another name, UnavailableError when the GPU or torch is not there.
    """
    kind, _, number = name.partition(":")
    number = number or "0"
    if kind not in KINDS or not number.isascii() or not number.isdecimal() or name.endswith(":"):
        raise InvalidArgumentError("device", f"{name!r}: must be host:N or cuda:N")
    if kind == "host":
        return HostDevice(int(number))
    from hybridkv.tiers.device.cuda import CudaDevice  # brings torch

    return CudaDevice(int(number))


def allocation_extents(name: str) -> int | None:
    """Extents per allocation of a pool on the device of this name; None: the whole pool is one. Opens nothing."""
    if name.partition(":")[0] == "host":
        return None
    from hybridkv.tiers.device.cuda_pool import EXTENTS_PER_ALLOCATION

    return EXTENTS_PER_ALLOCATION


def import_pool(
    handles: Sequence[AllocationHandle], *, fd: int | None = None, writable: bool = False
) -> tuple[Device, ImportedPool]:
    """For workers: map another process's pool; the device that holds it is opened for this process.

    `fd` is the region of a host device, owned by the import from now on. Raises InvalidArgumentError for handles that
    are none or mixed, UnavailableError when this process does not see the device.
    """
    devices = {(handle.kind, handle.device_uuid) for handle in handles}
    if len(devices) != 1:
        raise InvalidArgumentError("handles", f"{len(handles)} handles of {len(devices)} devices: must be of one")
    kind, uuid = devices.pop()
    device = _device_with(kind, uuid)
    return device, device.import_pool(handles, fd=fd, writable=writable)


def _device_with(kind: str, uuid: str) -> Device:
    if kind == "host":
        return HostDevice(0)
    if kind != "cuda":
        raise InvalidArgumentError("handles", f"kind {kind!r}: must be one of {', '.join(KINDS)}")
    from hybridkv.tiers.device.cuda import CudaDevice
    from hybridkv.tiers.device.cuda_torch import torch_runtime

    runtime = torch_runtime()
    for index in range(runtime.device_count()):
        if runtime.device_uuid(index) == uuid:
            return CudaDevice(index, runtime)
    raise UnavailableError(f"device {uuid} is not visible to this process (CUDA_VISIBLE_DEVICES?)")
