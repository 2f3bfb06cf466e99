"""Peers that speak no gRPC, half of it, or too much of it; and many of them."""

import contextlib
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from random import Random

import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, Reason
from tests.migration.gates import PATIENCE_S
from tests.service.conftest import make_space
from tests.service.hostile.world import Neighbour, hostile_config
from tests.service.wire import TIMEOUT_S, Wire, read, some_keys, wired, write

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CONNECTIONS = 1000
WAITERS = 64
RELEASE_S = 0.05


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    with DaemonThread(hostile_config(tmp_path_factory.mktemp("hostile"))) as running:
        yield running
        assert running.host.check() == []


@pytest.fixture
def neighbour(daemon: DaemonThread, request: pytest.FixtureRequest) -> Iterator[Neighbour]:
    with wired(daemon.address) as wire:
        one = Neighbour(wire, make_space(salt=request.node.name), patient=False)
        yield one
        one.round()
        one.stream.detach()


def connected(daemon: DaemonThread) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(daemon.address.removeprefix("unix://"))
    peer.settimeout(PATIENCE_S)
    return peer


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """One frame of HTTP/2 (RFC 9113, 4.1), whose length may be a lie."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


SETTINGS = frame(4, 0, 0, b"")
HEADERS = frame(1, 4, 1, b"\x83\x86\x44\x0a/hybridkv.")
GARBAGE = {
    "noise": Random(1).randbytes(4096),
    "http/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half a preface": PREFACE[:10],
    "a preface and noise": PREFACE + Random(2).randbytes(4096),
    "a frame of 16 MB": PREFACE + SETTINGS + frame(0, 0, 1, b"x" * 100, 0xFFFFFF),
    "half a frame": PREFACE + SETTINGS + frame(1, 4, 1, b"", 100),
    "headers that are none": PREFACE + SETTINGS + frame(1, 4, 1, b"\xff" * 200),
    "headers without an end": PREFACE + SETTINGS + frame(1, 0, 1, b"\x83") + frame(9, 0, 1, b"\x83" * 500) * 20,
    "data on no stream": PREFACE + SETTINGS + frame(0, 0, 77, b"x" * 1000),
    "a window of nothing": PREFACE + SETTINGS + frame(8, 0, 0, b"\0\0\0\0"),
    "a window beyond the last": PREFACE + SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3,
    "settings over and over": PREFACE + SETTINGS * 2000,
    "pings over and over": PREFACE + SETTINGS + frame(6, 0, 0, b"12345678") * 2000,
    "streams begun and reset": PREFACE + SETTINGS + b"".join(
        frame(1, 4, number, HEADERS[9:]) + frame(3, 0, number, b"\0\0\0\x08") for number in range(1, 2001, 2)
    ),
    "going away": PREFACE + SETTINGS + frame(7, 0, 0, b"\0" * 8),
    "an unknown kind": PREFACE + SETTINGS + frame(0xEE, 0xFF, 0x7FFFFFFF, b"x" * 300),
}  # fmt: skip


@pytest.mark.parametrize("deed", GARBAGE)
def test_garbage_costs_its_own_connection_only(daemon: DaemonThread, neighbour: Neighbour, deed: str) -> None:
    with connected(daemon) as peer, contextlib.suppress(OSError):
        peer.sendall(GARBAGE[deed])
        neighbour.round()
        peer.shutdown(socket.SHUT_WR)
        peer.settimeout(0.2)
        while peer.recv(65536):
            pass


def test_half_a_message_is_no_message(daemon: DaemonThread, neighbour: Neighbour) -> None:
    """A unary call whose message says it is longer than what comes, and then stands still."""
    with connected(daemon) as peer:
        half = b"\0" + struct.pack(">I", 1000) + b"\x08\x01"
        peer.sendall(PREFACE + SETTINGS + HEADERS + frame(0, 0, 1, half))
        neighbour.round()


def test_a_read_that_is_never_read(daemon: DaemonThread, neighbour: Neighbour) -> None:
    """Its bytes stand still in the connection; what it leased lapses, and others are served."""
    with wired(daemon.address) as wire:
        stream = wire.attach(make_space(salt="deaf"))
        numbers = list(range(40))
        write(wire, stream.session, *numbers)
        request = pb.ReadRequest(session=stream.session, **some_keys(*numbers * 12))
        calls = [wire.kv.Read(request) for _ in range(8)]  # 15 MB that nobody takes
        for _ in range(3):
            neighbour.round()
        for call in calls:
            call.cancel()
        assert read(wire, stream.session, 3)[0] == [Outcome.HIT]
        stream.detach()


def test_a_thousand_connections(daemon: DaemonThread, neighbour: Neighbour) -> None:
    """Half of them say nothing at all, half greet and then say nothing."""
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as stack:
        for number in range(CONNECTIONS):
            peer = stack.enter_context(connected(daemon))
            if number % 2:
                peer.sendall(PREFACE + SETTINGS)
        neighbour.round()
        with AdminClient(daemon.address) as client:
            assert client.check() == []
    neighbour.round()
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if len(os.listdir("/proc/self/fd")) < before + 20:
            return
        pause.wait(0.02)
    raise AssertionError("connections are left open")


def test_a_release_answers_while_64_acquires_wait(daemon: DaemonThread) -> None:
    """64 sessions attached, each waiting for a copy that the device holds back."""
    devices = daemon.host.memory.devices
    held = next(s for s in devices[0].streams if s.name.endswith("cpu-gpu0.demand"))  # type: ignore[attr-defined]
    assert isinstance(held, HostStream)
    with wired(daemon.address) as wire, wired(daemon.address) as other:
        space = make_space(salt="crowd")
        streams = [wire.attach(space) for _ in range(WAITERS)]
        session = streams[0].session
        write(wire, session, 1, 2)
        down = pb.AcquireRequest(session=session, tier=pb.TIER_CPU, wait_s=PATIENCE_S, **some_keys(1, 2))
        wire.kv.Release(pb.ReleaseRequest(session=session, lease=wire.kv.Acquire(down).lease))
        leave_the_device(daemon, space)
        held.hold()
        try:
            wish = dict(tier=pb.TIER_GPU, wait_s=60.0, **some_keys(1))
            waiting = [wire.kv.Acquire.future(pb.AcquireRequest(session=s.session, **wish)) for s in streams]
            until_waiting(daemon, WAITERS)
            took = release_times(other, session)
            assert not any(call.done() for call in waiting)
        finally:
            held.release_held()
        assert {tuple(call.result(TIMEOUT_S).states) for call in waiting} == {(Outcome.HIT,)}
        for stream in streams:
            stream.detach()
    assert min(took) < RELEASE_S, f"medians of 9: {took}"


def leave_the_device(daemon: DaemonThread, space: Namespace) -> None:
    """The space's blocks lie in host memory only."""
    directory = daemon.host.directory
    known = directory.space(space.fingerprint)
    assert known is not None
    with directory.lock:
        rows = directory.of_space(known.index)
        daemon.host.migrator.reclaim.evict(0, rows[directory.blocks.slot[0][rows] >= 0], Reason.RECLAIM)


def until_waiting(daemon: DaemonThread, count: int) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if daemon.host.migrator.demand.waiting >= count:
            return
        pause.wait(0.01)
    raise AssertionError("the acquires do not wait")


def release_times(wire: Wire, session: int) -> list[float]:
    """Medians of nine releases each, in seconds: a machine that is busy for a moment is not a slow daemon."""
    medians = []
    for _ in range(4):
        times = []
        for _ in range(9):
            lease = wire.kv.Acquire(pb.AcquireRequest(session=session, tier=pb.TIER_CPU, **some_keys(2))).lease
            began = time.monotonic()
            wire.kv.Release(pb.ReleaseRequest(session=session, lease=lease), timeout=TIMEOUT_S)
            times.append(time.monotonic() - began)
        medians.append(statistics.median(times))
    return medians
