"""The words on the side socket: what fits comes through unchanged, everything else is refused."""

import json
import struct
from typing import Any

import pytest

from hybridkv.service.side.protocol import (
    MAX_REGIONS,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    PREFIX,
    MalformedError,
    RegionInfo,
    RegionKind,
    Request,
    body_length,
    packed_error,
    packed_regions,
    parse_reply,
)
from hybridkv.tiers.errors import (
    ForeignHoldError,
    HybridKVError,
    InternalError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)

REGION: dict[str, Any] = {"name": "cpu.data", "pool": 1, "kind": "data_ro", "nbytes": 4096, "extra": {}}


def test_a_request_comes_through() -> None:
    request = Request(2**63 + 5, bytes(range(16)))
    packed = request.packed()
    assert body_length(packed[:4], MAX_REQUEST_BYTES) == len(packed) - 4
    assert Request.parse(packed[4:]) == request


def test_regions_come_through() -> None:
    regions = [
        RegionInfo("cpu.data", 1, RegionKind.DATA_RW, 1 << 40),
        RegionInfo("gpu0.headers", 0, RegionKind.HEADERS, 4096, {"device_uuid": "GPU-1", "base": 512}),
    ]
    assert parse_reply(packed_regions(regions)[PREFIX.size :]) == regions


@pytest.mark.parametrize(
    ("error", "comes_as"),
    [
        (NotFoundError("session 7"), NotFoundError),
        (ForeignHoldError("token"), ForeignHoldError),
        (InternalError("bug"), UnavailableError),
    ],
)
def test_an_error_comes_through_as_its_kind(error: HybridKVError, comes_as: type[HybridKVError]) -> None:
    with pytest.raises(comes_as, match=str(error)) as caught:
        parse_reply(packed_error(error)[PREFIX.size :])
    assert type(caught.value) is comes_as


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 4000,
        b'{"version":2,"session":1,"token":""}',
        b'{"version":1,"token":""}',
        b'{"version":1,"session":true,"token":""}',
        b'{"version":1,"session":-1,"token":""}',
        b'{"version":1,"session":18446744073709551616,"token":""}',
        b'{"version":1,"session":1.5,"token":""}',
        b'{"version":1,"session":1}',
        b'{"version":1,"session":1,"token":"xyz"}',
        b'{"version":1,"session":1,"token":"' + b"00" * 65 + b'"}',
    ],
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        Request.parse(body)


@pytest.mark.parametrize(
    "regions",
    [
        None,
        {},
        [1],
        [REGION | {"kind": "data_rwx"}],
        [REGION | {"nbytes": -1}],
        [REGION | {"nbytes": "4096"}],
        [REGION | {"pool": None}],
        [REGION | {"extra": []}],
        [REGION] * (MAX_REGIONS + 1),
    ],
)
def test_what_is_no_reply_is_refused(regions: object) -> None:
    with pytest.raises(MalformedError):
        parse_reply(json.dumps({"version": 1, "regions": regions}).encode())


@pytest.mark.parametrize("length", [0, MAX_REQUEST_BYTES + 1, 2**32 - 1])
def test_a_length_beyond_the_limit_is_refused_before_it_is_read(length: int) -> None:
    with pytest.raises(MalformedError, match=f"the limit is {MAX_REQUEST_BYTES}"):
        body_length(struct.pack("!I", length), MAX_REQUEST_BYTES)


def test_a_reply_beyond_the_limits_is_not_sent() -> None:
    with pytest.raises(ResourceExhaustedError, match="128"):
        packed_regions([RegionInfo("r", 0, RegionKind.HEADERS, 1)] * (MAX_REGIONS + 1))
    with pytest.raises(ResourceExhaustedError, match=str(MAX_REPLY_BYTES)):
        packed_regions([RegionInfo("r", 0, RegionKind.HEADERS, 1, {"x": "y" * MAX_REPLY_BYTES})])
