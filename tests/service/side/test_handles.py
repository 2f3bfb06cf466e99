"""Handles of device memory on the side socket: what fits comes through, everything else is refused."""

from typing import Any

import pytest

from hybridkv.service.side.handles import MAX_HANDLES, handles_from_extra, handles_to_extra
from hybridkv.service.side.protocol import PREFIX, MalformedError, RegionInfo, RegionKind, packed_regions, parse_reply
from hybridkv.tiers.device.base import AllocationHandle
from hybridkv.tiers.errors import ResourceExhaustedError

HANDLE = AllocationHandle("cuda", "GPU-1", 256 << 20, 128 << 20, bytes(range(64)))
ENTRY = [0, 4096, "00" * 64]


def test_the_handles_of_a_terabyte_come_through() -> None:
    handles = [AllocationHandle("cuda", "GPU-1", n << 28, 1 << 28, bytes([n % 256]) * 64) for n in range(MAX_HANDLES)]
    info = RegionInfo("gpu0", 0, RegionKind.CUDA, 1 << 40, handles_to_extra("GPU-1", handles))
    (received,) = parse_reply(packed_regions([info])[PREFIX.size :])
    assert handles_from_extra(received.extra) == handles


def test_more_than_that_are_refused_by_the_daemon() -> None:
    with pytest.raises(ResourceExhaustedError, match=f"{MAX_HANDLES + 1} allocations of GPU-1"):
        handles_to_extra("GPU-1", [HANDLE] * (MAX_HANDLES + 1))


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"device_uuid": "GPU-1"},
        {"device_uuid": 7, "handles": []},
        {"device_uuid": "x" * 129, "handles": []},
        {"device_uuid": "GPU-1", "handles": [ENTRY] * (MAX_HANDLES + 1)},
        {"device_uuid": "GPU-1", "handles": [7]},
        {"device_uuid": "GPU-1", "handles": [[0, 4096]]},
        {"device_uuid": "GPU-1", "handles": [[-1, 4096, "00" * 64]]},
        {"device_uuid": "GPU-1", "handles": [[True, 4096, "00" * 64]]},
        {"device_uuid": "GPU-1", "handles": [[0, 0, "00" * 64]]},
        {"device_uuid": "GPU-1", "handles": [[0, 1 << 63, "00" * 64]]},
        {"device_uuid": "GPU-1", "handles": [[0, 4096, "00" * 63]]},
        {"device_uuid": "GPU-1", "handles": [[0, 4096, "xy" * 64]]},
        {"device_uuid": "GPU-1", "handles": [[0, 4096, None]]},
    ],
    ids=lambda extra: str(extra)[:60],
)
def test_what_are_no_handles_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        handles_from_extra(extra)
