"""The Attach stream: what it grants and refuses, and how a session ends."""

import os
import threading
from typing import Any

import grpc
import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.codec import namespace_to_wire
from hybridkv.service.config import Config
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.replies import Attached
from hybridkv.service.servicers import session as session_module
from hybridkv.service.status import error_from
from hybridkv.tiers.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NamespaceMismatchError,
    NotFoundError,
    ResourceExhaustedError,
)
from hybridkv.tiers.namespace import Namespace
from hybridkv.version import __version__
from tests.service.fake_host import fake, fake_of
from tests.service.wire import TIMEOUT_S, Wire, wired


@pytest.fixture
def daemon(fake_daemon: DaemonThread) -> DaemonThread:
    return fake_daemon


def refused(wire: Wire, *messages: pb.AttachRequest) -> Exception:
    try:
        return AssertionError(f"answered {list(wire.session.Attach(iter(messages), timeout=TIMEOUT_S))}")
    except grpc.RpcError as error:
        return error_from(error)


def ended(daemon: DaemonThread, wire: Wire, session: int) -> str:
    """How the session ended, once it has: calls of a session without a stream are NOT_FOUND."""
    host = fake_of(daemon)
    for _ in range(1000):
        if found := [how for how, number in host.ended if number == session]:
            return found[0]
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)  # a round trip through the same loop
    raise AssertionError(f"session {session} did not end")


def test_attach_tells_what_was_granted(wire: Wire, space: Namespace, daemon: DaemonThread) -> None:
    stream = wire.attach(space, fingerprint=space.fingerprint, block_bytes=4096, pid=4711)
    reply = stream.reply
    assert reply.epoch == fake_of(daemon).epoch
    assert reply.fingerprint == space.fingerprint
    assert (reply.block_bytes, reply.key_bytes, len(reply.token)) == (4096, 16, 16)
    assert [(pool.tier, pool.kind) for pool in reply.pools] == [(pb.TIER_CPU, "host")]
    assert (reply.limits.keys_per_call_count, reply.limits.part_bytes) == (128, 16384)
    assert reply.server_version == __version__
    assert reply.side_socket == daemon.address.removeprefix("unix://") + ".side"


def test_a_worker_with_our_own_pid_is_in_another_pid_namespace(
    wire: Wire, space: Namespace, daemon: DaemonThread
) -> None:
    streams = [wire.attach(space, pid=pid) for pid in (4711, os.getpid(), 0)]
    assert len({stream.session for stream in streams}) == 3
    assert fake_of(daemon).pids == [4711, None, None]


def test_a_client_that_leaves_while_it_attaches_leaves_no_session(
    wire: Wire, space: Namespace, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, entered, go = fake_of(daemon), threading.Event(), threading.Event()
    attach = host.attach

    def held(*given: Any, **named: Any) -> Attached:
        entered.set()
        go.wait(TIMEOUT_S)
        return attach(*given, **named)

    monkeypatch.setattr(host, "attach", held)
    call = wire.session.Attach(iter([pb.AttachRequest(space=namespace_to_wire(space))]), timeout=TIMEOUT_S)
    assert entered.wait(TIMEOUT_S)
    call.cancel()
    for _ in range(10_000):  # until the cancellation has reached the daemon
        calls = daemon.daemon.counters.snapshot()
        if {"method": "Session.Attach", "status": "CANCELLED", "count": 1} in calls:
            break
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    go.set()
    assert ended(daemon, wire, 1) == "detach"
    assert not host.sessions


def test_a_client_that_computes_otherwise_is_refused_with_both_values(wire: Wire, space: Namespace) -> None:
    error = refused(wire, pb.AttachRequest(space=namespace_to_wire(space), fingerprint=bytes(32)))
    assert isinstance(error, NamespaceMismatchError)
    assert "00" * 32 in str(error)
    assert space.fingerprint.hex() in str(error)
    error = refused(wire, pb.AttachRequest(space=namespace_to_wire(space), block_bytes=8192))
    assert isinstance(error, NamespaceMismatchError)
    assert "8192" in str(error)
    assert "4096" in str(error)


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (pb.AttachRequest(), "space"),
        (pb.AttachRequest(space=pb.Namespace(model="m")), "namespace.layout"),
        (pb.AttachRequest(space=pb.Namespace(layout=pb.Layout(opaque_bytes=4096, block_tokens=1, tag="t"))), "model"),
        (pb.AttachRequest(space=pb.Namespace(model="m", layout=pb.Layout(layers=1))), "layout.block_tokens"),
        (
            pb.AttachRequest(space=pb.Namespace(model="m", layout=pb.Layout(opaque_bytes=100, block_tokens=1))),
            "layout.block_bytes",
        ),
    ],
)
def test_a_wrong_first_message_is_refused_by_name(wire: Wire, first: pb.AttachRequest, named: str) -> None:
    error = refused(wire, first)
    assert isinstance(error, InvalidArgumentError)
    assert named in error.field


def test_a_fingerprint_of_wrong_length_is_refused(wire: Wire, space: Namespace) -> None:
    error = refused(wire, pb.AttachRequest(space=namespace_to_wire(space), fingerprint=b"short"))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "fingerprint"


def test_a_stream_that_ends_before_its_first_message_is_refused(wire: Wire) -> None:
    assert isinstance(refused(wire), InvalidArgumentError)


def test_a_stream_that_says_nothing_is_ended(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FIRST_MESSAGE_S", 0.05)
    silence = threading.Event()

    def nothing() -> Any:
        silence.wait(TIMEOUT_S)
        yield from ()

    with pytest.raises(grpc.RpcError) as caught:
        list(wire.session.Attach(nothing(), timeout=TIMEOUT_S))
    silence.set()
    assert isinstance(error_from(caught.value), DeadlineExceededError)
    assert "first message" in str(caught.value)


def test_detach_ends_the_session_at_once(wire: Wire, space: Namespace, daemon: DaemonThread) -> None:
    stream = wire.attach(space)
    stream.detach()
    assert fake_of(daemon).ended == [("detach", stream.session)]
    assert isinstance(wire.error(wire.kv.Renew, pb.RenewRequest(session=stream.session)), NotFoundError)


def test_a_half_closed_stream_is_a_broken_one(wire: Wire, space: Namespace, daemon: DaemonThread) -> None:
    stream = wire.attach(space)
    stream.half_close()
    assert fake_of(daemon).ended == [("broken", stream.session)]


def test_a_cancelled_stream_is_a_broken_one(wire: Wire, space: Namespace, daemon: DaemonThread) -> None:
    stream = wire.attach(space)
    stream.cancel()
    assert ended(daemon, wire, stream.session) == "broken"


def test_a_client_that_vanishes_leaves_a_broken_stream(daemon: DaemonThread, wire: Wire, space: Namespace) -> None:
    with wired(daemon.address) as other:
        session = other.attach(space).session
    assert ended(daemon, wire, session) == "broken"


def test_sessions_are_bounded_and_places_come_back(config: Config, space: Namespace) -> None:
    limits = config.limits.model_copy(update={"sessions_count": 2})
    with DaemonThread(config.model_copy(update={"limits": limits}), make_host=fake) as daemon:
        with wired(daemon.address) as wire:
            streams = [wire.attach(space), wire.attach(space)]
            error = refused(wire, pb.AttachRequest(space=namespace_to_wire(space)))
            assert isinstance(error, ResourceExhaustedError)
            assert error.resource == "sessions"
            streams[0].detach()
            assert wire.attach(space).session != streams[1].session


def test_attached_streams_hear_of_a_drain(config: Config, space: Namespace) -> None:
    with DaemonThread(config, make_host=fake, drain=True) as daemon, wired(daemon.address) as wire:
        stream, host = wire.attach(space), fake_of(daemon)
        stopper = threading.Thread(target=daemon.stop)
        stopper.start()
        news = next(stream.call)
        stopper.join()
        assert news.draining
        assert news.epoch == host.epoch
        assert host.drains == [config.daemon.drain_s]
        assert host.closed
