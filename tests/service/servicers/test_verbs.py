"""Every verb of KVCache over a real socket: what it answers, and how it refuses bad input."""

import struct
from typing import Any

import grpc
import numpy as np
import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.status import error_from
from hybridkv.tiers.errors import (
    ForeignHoldError,
    HybridKVError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome
from tests.service.wire import ROOM_S, TIMEOUT_S, Stream, Wire, key, payload, read, some_keys, write

UNKNOWN_SESSION = 999_999


@pytest.fixture
def stream(wire: Wire, space: Namespace) -> Stream:
    return wire.attach(space)


def reserve(wire: Wire, stream: Stream, *numbers: int) -> pb.ReserveReply:
    request = pb.ReserveRequest(session=stream.session, wait_s=ROOM_S, **some_keys(*numbers))
    reply: pb.ReserveReply = wire.kv.Reserve(request, timeout=2 * ROOM_S)
    return reply


def test_a_block_is_reserved_sealed_acquired_and_released(wire: Wire, stream: Stream, daemon: DaemonThread) -> None:
    host = daemon.host
    reserved = reserve(wire, stream, 1, 2)
    assert list(reserved.outcomes) == [ReserveOutcome.NEW] * 2
    slots = np.frombuffer(reserved.slots, dtype=SLOT_DTYPE)
    assert len(slots) == 2
    for number, slot in zip((1, 2), slots, strict=True):
        memory = host.pool_array(int(slot["pool"]), writable=True)
        memory[int(slot["offset"]) :][:4096] = np.frombuffer(payload(number), dtype=np.uint8)
    sealed = wire.kv.Seal(
        pb.SealRequest(session=stream.session, reservation=reserved.reservation, indices=struct.pack("<2I", 0, 1)),
        timeout=TIMEOUT_S,
    )
    assert list(sealed.outcomes) == [SealOutcome.SEALED] * 2

    acquired = wire.kv.Acquire(pb.AcquireRequest(session=stream.session, **some_keys(1, 2, 3)), timeout=TIMEOUT_S)
    assert list(acquired.states) == [Outcome.HIT, Outcome.HIT, Outcome.MISS]
    assert np.frombuffer(acquired.slots, dtype=SLOT_DTYPE)["offset"][:2].tolist() == slots["offset"].tolist()
    assert acquired.epoch == host.epoch
    renewed = wire.kv.Renew(pb.RenewRequest(session=stream.session, holds=[acquired.lease, 12345]), timeout=TIMEOUT_S)
    assert list(renewed.alive) == [True, False]
    assert renewed.expires_in_s == 30.0
    wire.kv.Release(pb.ReleaseRequest(session=stream.session, lease=acquired.lease), timeout=TIMEOUT_S)
    assert host.stats()["leases"] == 0
    assert read(wire, stream.session, 1, 2) == ([Outcome.HIT] * 2, payload(1) + payload(2))


def test_an_empty_daemon_has_nothing(wire: Wire, stream: Stream) -> None:
    asked: dict[str, Any] = {"session": stream.session, **some_keys(1, 2)}
    assert list(wire.kv.Lookup(pb.LookupRequest(**asked), timeout=TIMEOUT_S).states) == [Outcome.MISS] * 2
    assert list(wire.kv.Acquire(pb.AcquireRequest(**asked), timeout=TIMEOUT_S).states) == [Outcome.MISS] * 2
    assert wire.kv.Touch(pb.TouchRequest(**asked), timeout=TIMEOUT_S).touched == 0
    assert wire.kv.Remove(pb.RemoveRequest(**asked), timeout=TIMEOUT_S).removed == 0


def test_lookup_touch_prefetch_remove_count_blocks(wire: Wire, stream: Stream) -> None:
    assert write(wire, stream.session, 1, 2) == [ReserveOutcome.NEW] * 2
    asked: dict[str, Any] = {"session": stream.session, **some_keys(1, 2, 3)}
    found = wire.kv.Lookup(pb.LookupRequest(**asked), timeout=TIMEOUT_S)
    assert list(found.states) == [Outcome.HIT, Outcome.HIT, Outcome.MISS]
    assert len(found.tiers) == 3
    assert wire.kv.Touch(pb.TouchRequest(**asked), timeout=TIMEOUT_S).touched == 2
    assert wire.kv.Prefetch(pb.PrefetchRequest(**asked, tier=pb.TIER_CPU), timeout=TIMEOUT_S).started == 0
    assert wire.kv.Remove(pb.RemoveRequest(**asked), timeout=TIMEOUT_S).removed == 2
    assert wire.kv.Remove(pb.RemoveRequest(**asked), timeout=TIMEOUT_S).removed == 0


def test_an_abort_publishes_nothing(wire: Wire, stream: Stream, daemon: DaemonThread) -> None:
    reserved = reserve(wire, stream, 1)
    request = pb.AbortRequest(session=stream.session, reservation=reserved.reservation)
    wire.kv.Abort(request, timeout=TIMEOUT_S)
    assert read(wire, stream.session, 1) == ([Outcome.MISS], b"")
    assert isinstance(wire.error(wire.kv.Abort, request), NotFoundError)


def test_an_acquire_asks_again_with_its_lease_alone(wire: Wire, stream: Stream) -> None:
    write(wire, stream.session, 1)
    first = wire.kv.Acquire(pb.AcquireRequest(session=stream.session, **some_keys(1)), timeout=TIMEOUT_S)
    again = wire.kv.Acquire(pb.AcquireRequest(session=stream.session, lease=first.lease), timeout=TIMEOUT_S)
    assert again.lease == first.lease
    assert again.states == first.states


def test_end_request_is_answered(wire: Wire, stream: Stream, daemon: DaemonThread) -> None:
    request = pb.EndRequestRequest(session=stream.session, request_id=7)
    assert wire.kv.EndRequest(request, timeout=TIMEOUT_S).epoch == daemon.host.epoch


KEYED = {
    "Lookup": pb.LookupRequest,
    "Acquire": pb.AcquireRequest,
    "Reserve": pb.ReserveRequest,
    "Prefetch": pb.PrefetchRequest,
    "Touch": pb.TouchRequest,
    "Remove": pb.RemoveRequest,
    "Read": pb.ReadRequest,
}
BAD_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"keys": b"x" * 17, "key_bytes": 16}, "keys"),
    ({"keys": b"x" * 14, "key_bytes": 7}, "key_bytes"),
    ({"keys": b"x" * 65, "key_bytes": 65}, "key_bytes"),
    ({"keys": b"x" * 16, "key_bytes": 0}, "key_bytes"),
    ({"keys": b"x" * 32, "key_bytes": 32}, "keys"),
    ({"keys": b"", "key_bytes": 16}, "keys"),
    ({"keys": b"x" * 16 * 129, "key_bytes": 16}, "keys"),
]


@pytest.mark.parametrize("method", KEYED)
@pytest.mark.parametrize(("fields", "named"), BAD_KEYS)
def test_bad_keys_are_refused_by_name(
    wire: Wire, stream: Stream, method: str, fields: dict[str, Any], named: str
) -> None:
    error = wire.error(getattr(wire.kv, method), KEYED[method](session=stream.session, **fields))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == named


@pytest.mark.parametrize("method", KEYED)
def test_an_unknown_session_is_not_found(wire: Wire, stream: Stream, method: str) -> None:
    error = wire.error(getattr(wire.kv, method), KEYED[method](session=UNKNOWN_SESSION, **some_keys(1)))
    assert isinstance(error, NotFoundError)
    assert str(UNKNOWN_SESSION) in str(error)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Renew", pb.RenewRequest(session=UNKNOWN_SESSION, holds=[1])),
        ("Release", pb.ReleaseRequest(session=UNKNOWN_SESSION, lease=1)),
        ("Seal", pb.SealRequest(session=UNKNOWN_SESSION, reservation=1)),
        ("Abort", pb.AbortRequest(session=UNKNOWN_SESSION, reservation=1)),
        ("EndRequest", pb.EndRequestRequest(session=UNKNOWN_SESSION, request_id=1)),
    ],
)
def test_an_unknown_session_is_not_found_without_keys(wire: Wire, method: str, request_: Any) -> None:
    assert isinstance(wire.error(getattr(wire.kv, method), request_), NotFoundError)


@pytest.mark.parametrize("wait_s", [-1.0, float("nan"), float("inf"), 1e9])
@pytest.mark.parametrize("method", ["Acquire", "Reserve", "Read"])
def test_a_bad_wait_is_refused_by_name(wire: Wire, stream: Stream, method: str, wait_s: float) -> None:
    request = KEYED[method](session=stream.session, wait_s=wait_s, **some_keys(1))
    error = wire.error(getattr(wire.kv, method), request)
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "wait_s"


@pytest.mark.parametrize("method", ["Acquire", "Reserve", "Prefetch"])
def test_a_number_that_is_no_tier_is_refused(wire: Wire, stream: Stream, method: str) -> None:
    error = wire.error(getattr(wire.kv, method), KEYED[method](session=stream.session, tier=9, **some_keys(1)))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "tier"


def test_foreign_holds_are_refused_and_stay(wire: Wire, stream: Stream, space: Namespace, daemon: DaemonThread) -> None:
    write(wire, stream.session, 1)
    other = wire.attach(space)
    thief = other.session
    lease = wire.kv.Acquire(pb.AcquireRequest(session=stream.session, **some_keys(1)), timeout=TIMEOUT_S).lease
    reservation = reserve(wire, stream, 2).reservation
    refused = [
        wire.error(wire.kv.Release, pb.ReleaseRequest(session=thief, lease=lease)),
        wire.error(wire.kv.Acquire, pb.AcquireRequest(session=thief, lease=lease)),
        wire.error(wire.kv.Seal, pb.SealRequest(session=thief, reservation=reservation)),
        wire.error(wire.kv.Abort, pb.AbortRequest(session=thief, reservation=reservation)),
    ]
    assert [type(error) for error in refused] == [ForeignHoldError] * 4
    stats = daemon.host.stats()
    assert (stats["leases"], stats["reservations"]) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"indices": b"abc"}, "indices"),
        ({"indices": struct.pack("<I", 5)}, "indices"),
        ({"checksums": b"1234567"}, "checksums"),
        ({"checksums": bytes(16)}, "checksums"),
        ({"events": [pb.DeviceEvent(pool=0, event=b"x")] * 65}, "events"),
    ],
)
def test_a_seal_of_wrong_form_seals_nothing(wire: Wire, stream: Stream, fields: dict[str, Any], named: str) -> None:
    reserved = reserve(wire, stream, 1)
    request = pb.SealRequest(session=stream.session, reservation=reserved.reservation, **fields)
    error = wire.error(wire.kv.Seal, request)
    assert isinstance(error, InvalidArgumentError)
    assert error.field == named
    assert read(wire, stream.session, 1) == ([Outcome.MISS], b"")


def test_no_room_at_all_names_the_resource_with_its_figures(wire: Wire, stream: Stream) -> None:
    held = []
    for start in range(0, 2000, 100):
        request = pb.ReserveRequest(session=stream.session, wait_s=ROOM_S, **some_keys(*range(start, start + 100)))
        try:
            held.append(wire.kv.Reserve(request, timeout=2 * ROOM_S))
        except grpc.RpcError as failed:
            error = error_from(failed)
            break
    assert isinstance(error, ResourceExhaustedError)
    assert error.resource == "cpu"
    assert "4194304" in str(error)
    granted = sum(list(reply.outcomes).count(ReserveOutcome.NEW) for reply in held)
    assert 900 < granted <= 1024


def test_a_message_above_the_limit_is_refused_and_the_daemon_stays(wire: Wire, stream: Stream) -> None:
    request = pb.LookupRequest(session=stream.session, keys=bytes(5 << 20), key_bytes=16)
    assert isinstance(wire.error(wire.kv.Lookup, request), ResourceExhaustedError)
    assert read(wire, stream.session, 1) == ([Outcome.MISS], b"")


def test_a_bug_is_internal_logged_and_counted(
    wire: Wire,
    stream: Stream,
    daemon: DaemonThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("secret inner detail")

    monkeypatch.setattr(daemon.host, "lookup", broken)
    error = wire.error(wire.kv.Lookup, pb.LookupRequest(session=stream.session, **some_keys(1)))
    assert type(error).__name__ == "InternalError"
    assert "secret" not in str(error)
    assert "secret inner detail" in caplog.text
    counted = {"method": "KVCache.Lookup", "status": "INTERNAL", "count": 1}
    assert counted in daemon.daemon.stats()["calls"]


def test_errors_keep_their_class_and_message(wire: Wire, stream: Stream) -> None:
    error: HybridKVError = wire.error(wire.kv.Lookup, pb.LookupRequest(session=stream.session, keys=key(1)))
    assert str(error).startswith("key_bytes: 0")
