"""Read and Write that end before their time: cancelled, lapsed, overtaken. Nothing half-written is ever found."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import xxhash

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.servicers import payload as payload_module
from hybridkv.service.status import error_from
from hybridkv.tiers.errors import (
    DeadlineExceededError,
    ExpiredError,
    HybridKVError,
    UnavailableError,
)
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome
from tests.service.fake_host import fake_of
from tests.service.wire import TIMEOUT_S, Stream, Wire, key, parts, payload, read, some_keys, write


@pytest.fixture
def daemon(fake_daemon: DaemonThread) -> DaemonThread:
    return fake_daemon


@pytest.fixture
def stream(wire: Wire, space: Namespace) -> Stream:
    return wire.attach(space)


def write_error(wire: Wire, messages: Iterator[pb.WritePart]) -> HybridKVError:
    with pytest.raises(grpc.RpcError) as caught:
        wire.kv.Write(messages, timeout=TIMEOUT_S)
    return error_from(caught.value)


def nothing_left(wire: Wire, stream: Stream, daemon: DaemonThread, *numbers: int) -> bool:
    host = fake_of(daemon)
    states, data = read(wire, stream.session, *numbers, independent=True)
    return set(states) == {Outcome.MISS} and not data and not host.reservations and len(host.free) == host.slots_count


def test_write_seals_with_the_checksums_of_the_bytes(
    wire: Wire, stream: Stream, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, seen = fake_of(daemon), []
    seal = host.seal

    def noted(session: int, reservation: int, indices: Any, checksums: Any) -> Any:
        seen.append((indices, checksums))
        return seal(session, reservation, indices, checksums)

    monkeypatch.setattr(host, "seal", noted)
    write(wire, stream.session, 1, 2)
    ((indices, checksums),) = seen
    assert indices.tolist() == [0, 1]
    assert checksums.tolist() == [xxhash.xxh3_64_intdigest(payload(n)) for n in (1, 2)]


class Stalled:
    """A Write stream that stops in the middle of a block until `go`."""

    def __init__(self, stream: Stream, *numbers: int) -> None:
        self.go = threading.Event()
        self._messages = parts(stream.session, list(numbers), b"".join(map(payload, numbers))[:6000], 3000)

    def __iter__(self) -> Iterator[pb.WritePart]:
        yield from self._messages
        self.go.wait(TIMEOUT_S)


def arrived(wire: Wire, daemon: DaemonThread) -> None:
    """Return once a reservation was made."""
    for _ in range(10_000):
        if fake_of(daemon).reservations:
            return
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    raise AssertionError("no reservation was made")


def gone(wire: Wire, daemon: DaemonThread) -> bool:
    for _ in range(10_000):
        if not fake_of(daemon).reservations:
            return True
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    return False


def test_a_cancelled_write_publishes_nothing(wire: Wire, stream: Stream, daemon: DaemonThread) -> None:
    stalled = Stalled(stream, 1, 2)
    call = wire.kv.Write.future(iter(stalled), timeout=TIMEOUT_S)
    arrived(wire, daemon)
    call.cancel()
    stalled.go.set()
    assert gone(wire, daemon)
    assert nothing_left(wire, stream, daemon, 1, 2)


def test_a_session_that_ends_stops_its_write_first(
    wire: Wire, stream: Stream, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, stalled = fake_of(daemon), Stalled(stream, 1, 2)
    call = wire.kv.Write.future(iter(stalled), timeout=TIMEOUT_S)
    arrived(wire, daemon)
    aborted_before_the_end: list[bool] = []
    detach = host.detach

    def noted(session: int) -> None:
        aborted_before_the_end.append(not host.reservations)
        detach(session)

    monkeypatch.setattr(host, "detach", noted)
    stream.detach()
    with pytest.raises(grpc.RpcError) as caught:
        call.result(TIMEOUT_S)
    stalled.go.set()
    assert isinstance(error_from(caught.value), UnavailableError)
    assert aborted_before_the_end == [True]


def test_a_write_that_sends_nothing_is_given_up(
    wire: Wire, stream: Stream, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_module, "FIRST_PART_S", 0.05)
    silence = threading.Event()

    def nothing() -> Iterator[pb.WritePart]:
        silence.wait(TIMEOUT_S)
        yield from ()

    error = write_error(wire, nothing())
    silence.set()
    assert isinstance(error, DeadlineExceededError)
    assert "first part" in str(error)


def test_a_reservation_that_lapses_ends_its_write(wire: Wire, stream: Stream, daemon: DaemonThread) -> None:
    stalled = Stalled(stream, 1, 2)

    def late() -> Iterator[pb.WritePart]:
        yield from stalled
        yield pb.WritePart(data=payload(2)[6000 - 4096 :])

    call = wire.kv.Write.future(late(), timeout=TIMEOUT_S)
    arrived(wire, daemon)
    host = fake_of(daemon)
    for number in list(host.reservations):
        host._drop_reservation(number)
    stalled.go.set()
    with pytest.raises(grpc.RpcError) as caught:
        call.result(TIMEOUT_S)
    assert isinstance(error_from(caught.value), ExpiredError)
    assert nothing_left(wire, stream, daemon, 1, 2)


def test_a_slot_that_changes_while_it_is_read_ends_the_read(
    wire: Wire, stream: Stream, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(wire, stream.session, 1)
    host = fake_of(daemon)
    monkeypatch.setattr(host, "many", lambda indices: host.generations[indices] + np.uint64(2))
    error = wire.error(wire.kv.Read, pb.ReadRequest(session=stream.session, **some_keys(1)))
    assert isinstance(error, UnavailableError)
    assert not host.leases


def test_a_read_that_is_left_releases_its_lease(wire: Wire, stream: Stream, daemon: DaemonThread) -> None:
    write(wire, stream.session, *range(60))
    call = wire.kv.Read(pb.ReadRequest(session=stream.session, **some_keys(*range(60))), timeout=TIMEOUT_S)
    next(call)
    call.cancel()
    for _ in range(10_000):
        if not fake_of(daemon).leases:
            break
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    assert not fake_of(daemon).leases


def test_a_cancelled_wait_of_a_read_lets_go(wire: Wire, stream: Stream, daemon: DaemonThread, space: Namespace) -> None:
    host = fake_of(daemon)
    host.hold(space, [key(1)])
    call = wire.kv.Read(pb.ReadRequest(session=stream.session, wait_s=60.0, **some_keys(1)), timeout=TIMEOUT_S)
    for _ in range(10_000):
        if host.tickets:
            break
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    call.cancel()
    for _ in range(10_000):
        if host.tickets[0].abandoned:
            break
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    assert host.tickets[0].abandoned
    assert not host.leases
