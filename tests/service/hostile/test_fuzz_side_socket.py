"""The side socket of a whole daemon: requests that are nearly right, cut short, repeated, or come with descriptors."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.side.client import fetch_regions
from hybridkv.service.side.protocol import MAX_REQUEST_BYTES, PREFIX, Request
from tests.migration.gates import PATIENCE_S
from tests.service.conftest import make_space
from tests.service.hostile.world import Neighbour, hostile_config
from tests.service.wire import Stream, wired


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    with DaemonThread(hostile_config(tmp_path_factory.mktemp("hostile"))) as running:
        yield running
        assert running.host.check() == []


@pytest.fixture(scope="module")
def neighbour(daemon: DaemonThread) -> Iterator[Neighbour]:
    with wired(daemon.address) as wire:
        one = Neighbour(wire, make_space(salt="side"), patient=False)
        yield one
        one.round()
        one.stream.detach()


@pytest.fixture(scope="module")
def attached(daemon: DaemonThread) -> Iterator[Stream]:
    with wired(daemon.address) as wire:
        stream = wire.attach(make_space(salt="side attacker"))
        yield stream
        stream.detach()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def sent(path: str, chunks: list[bytes], passed: int) -> bytes:
    """What comes back for these bytes, sent one after another, the first with so many descriptors."""
    with socket.socket(socket.AF_UNIX) as peer, contextlib.suppress(OSError):
        peer.settimeout(PATIENCE_S)
        peer.connect(path)
        own = [peer.fileno()] * passed
        if chunks and passed:
            socket.send_fds(peer, [chunks[0]], own)
            chunks = chunks[1:]
        for chunk in chunks:
            peer.sendall(chunk)
        peer.shutdown(socket.SHUT_WR)
        answer, received, _, _ = socket.recv_fds(peer, 1 << 16, 253)
        for fd in received:
            os.close(fd)
        return answer
    return b""


def mangled(random: Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(random.choice((0, 1, 1, 3, 20))):
        how = random.randrange(4)
        at = random.randrange(len(data) + 1)
        if how == 0 and data:
            data[at % len(data)] = random.getrandbits(8)
        elif how == 1:
            data[at:at] = random.randbytes(random.choice((1, 7, MAX_REQUEST_BYTES)))
        elif how == 2:
            del data[at:]
        else:
            data[at:at] = random.choice((b"[" * 2000, b'{"a":' * 500, b"1e999", b"\x00", b'"\\ud800"', b"9" * 5000))
    body = bytes(data)
    length = random.choice((len(body), len(body), len(body), 0, 1, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1, 2**32 - 1))
    return PREFIX.pack(length) + body


@settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(random=st.randoms(use_true_random=False))
def test_any_bytes_cost_their_own_connection_only(
    daemon: DaemonThread, neighbour: Neighbour, attached: Stream, random: Random
) -> None:
    path = attached.reply.side_socket
    right = Request(
        random.choice((attached.session, neighbour.stream.session, 0, 2**64 - 1)),
        random.choice((attached.reply.token, b"", random.randbytes(16))),
    ).packed()
    raw = mangled(random, right[PREFIX.size :]) if random.random() < 0.8 else right
    cut = random.randrange(len(raw) + 1)
    chunks = [raw[:cut], raw[cut:]] * random.choice((1, 1, 1, 3))
    sent(path, [chunk for chunk in chunks if chunk], random.choice((0, 0, 1, 20)))


def test_it_serves_on_and_keeps_no_descriptor(daemon: DaemonThread, neighbour: Neighbour, attached: Stream) -> None:
    pause, token = threading.Event(), attached.reply.token
    for region in fetch_regions(attached.reply.side_socket, attached.session, token, PATIENCE_S):
        region.close()
    before = descriptors()
    for seed in range(60):
        raw = mangled(Random(seed), Request(attached.session, token).packed()[PREFIX.size :])
        sent(attached.reply.side_socket, [raw], seed % 30)
    neighbour.round()
    for _ in range(int(PATIENCE_S / 0.02)):
        if descriptors() <= before + 2:
            return
        pause.wait(0.02)
    raise AssertionError(f"{descriptors() - before} descriptors more than before")
