"""How a CUDA pool travels on the side socket: a region without a descriptor, its allocations as JSON in `extra`.

{"device_uuid": "GPU-…", "handles": [[offset, nbytes, "<hex of the 64-byte CUDA IPC handle>"], ...]}
"""

from collections.abc import Sequence
from typing import Any

from hybridkv.service.side.protocol import MalformedError
from hybridkv.tiers.device.base import AllocationHandle
from hybridkv.tiers.errors import ResourceExhaustedError

KIND = "cuda"
MAX_HANDLES = 4096
"""Allocations of one pool: 1 TiB at 256 MiB each."""

MAX_UUID_CHARACTERS = 128
HANDLE_BYTES = 64
_MAX_OFFSET = (1 << 63) - 1


def handles_to_extra(device_uuid: str, handles: Sequence[AllocationHandle]) -> dict[str, Any]:
    """Raises ResourceExhaustedError beyond the limit."""
    if len(handles) > MAX_HANDLES:
        raise ResourceExhaustedError(
            "side socket handles", f"{len(handles)} allocations of {device_uuid}; the limit is {MAX_HANDLES}"
        )
    listed = [[handle.offset, handle.nbytes, handle.payload.hex()] for handle in handles]
    return {"device_uuid": device_uuid, "handles": listed}


def handles_from_extra(extra: dict[str, Any]) -> list[AllocationHandle]:
    """Raises MalformedError."""
    uuid, listed = extra.get("device_uuid"), extra.get("handles")
    if not isinstance(uuid, str) or len(uuid) > MAX_UUID_CHARACTERS:
        raise MalformedError("device_uuid: is no name of a device")
    if not isinstance(listed, list) or len(listed) > MAX_HANDLES:
        raise MalformedError(f"handles: is no list of at most {MAX_HANDLES}")
    return [_handle(uuid, entry) for entry in listed]


def _handle(uuid: str, entry: object) -> AllocationHandle:
    if not isinstance(entry, list) or len(entry) != 3:
        raise MalformedError("handles: an entry is no [offset, nbytes, handle]")
    offset, nbytes, payload = entry
    if not _is_size(offset) or not _is_size(nbytes) or not nbytes:
        raise MalformedError("handles: an offset or size is none")
    if not isinstance(payload, str) or len(payload) != 2 * HANDLE_BYTES:
        raise MalformedError(f"handles: a handle has no {2 * HANDLE_BYTES} digits")
    try:
        return AllocationHandle(KIND, uuid, offset, nbytes, bytes.fromhex(payload))
    except ValueError as error:
        raise MalformedError("handles: a handle is not hexadecimal") from error


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_OFFSET
