"""Calls that wait hold no thread, end with their deadline, and let go when they are cancelled."""

import asyncio
import threading
import time

import grpc
import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.servicers.waiting import ANSWER_MARGIN_S, budget_s, settled
from hybridkv.tiers.errors import DeadlineExceededError
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome
from tests.service.fake_host import FakeHost, FakeTicket, fake_of
from tests.service.wire import TIMEOUT_S, Wire, key, some_keys, write

WAITERS = 64


@pytest.fixture
def daemon(fake_daemon: DaemonThread) -> DaemonThread:
    return fake_daemon


def until(count: int, host: FakeHost, wire: Wire) -> None:
    """Return once `count` acquires have reached the host."""
    for _ in range(10_000):
        if len(host.tickets) >= count:
            return
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    raise AssertionError(f"{len(host.tickets)} of {count} acquires arrived")


def test_64_waiting_acquires_hold_no_thread(wire: Wire, space: Namespace, daemon: DaemonThread) -> None:
    host = fake_of(daemon)
    others = set(threading.enumerate())  # of clients that earlier tests left behind, and of the daemon itself
    streams = [wire.attach(space) for _ in range(WAITERS)]
    write(wire, streams[0].session, 1)
    lease = wire.kv.Acquire(pb.AcquireRequest(session=streams[0].session, **some_keys(1)), timeout=TIMEOUT_S).lease
    host.hold(space, [key(2)])
    threads_before = threading.active_count()
    calls = [
        wire.kv.Acquire.future(
            pb.AcquireRequest(session=stream.session, wait_s=60.0, **some_keys(2)), timeout=2 * TIMEOUT_S
        )
        for stream in streams
    ]
    until(WAITERS + 1, host, wire)
    threads_daemon = [t.name for t in set(threading.enumerate()) - others if t.name.startswith("hybridkv")]
    started = time.monotonic()
    wire.kv.Release(pb.ReleaseRequest(session=streams[0].session, lease=lease), timeout=TIMEOUT_S)
    release_s = time.monotonic() - started
    assert not any(call.done() for call in calls)
    assert len(threads_daemon) <= 4
    assert threading.active_count() <= threads_before + 4
    assert release_s < 0.5  # 0.05 s is the aim; a busy machine may take longer
    host.land()
    assert [list(call.result(TIMEOUT_S).states) for call in calls] == [[Outcome.MISS]] * WAITERS


def test_a_wait_ends_with_wait_s(wire: Wire, space: Namespace, daemon: DaemonThread) -> None:
    stream = wire.attach(space)
    fake_of(daemon).hold(space, [key(1)])
    request = pb.AcquireRequest(session=stream.session, wait_s=0.02, **some_keys(1))
    assert list(wire.kv.Acquire(request, timeout=TIMEOUT_S).states) == [Outcome.PENDING]


def test_a_wait_ends_before_the_deadline(wire: Wire, space: Namespace, daemon: DaemonThread) -> None:
    stream = wire.attach(space)
    fake_of(daemon).hold(space, [key(1)])
    request = pb.AcquireRequest(session=stream.session, wait_s=60.0, **some_keys(1))
    reply = wire.kv.Acquire(request, timeout=1.0)
    assert list(reply.states) == [Outcome.PENDING]
    assert reply.lease


def test_a_cancelled_acquire_lets_go(wire: Wire, space: Namespace, daemon: DaemonThread) -> None:
    host = fake_of(daemon)
    stream = wire.attach(space)
    host.hold(space, [key(1)])
    request = pb.AcquireRequest(session=stream.session, wait_s=60.0, **some_keys(1))
    call = wire.kv.Acquire.future(request, timeout=TIMEOUT_S)
    until(1, host, wire)
    call.cancel()
    for _ in range(10_000):
        if host.tickets[0].abandoned:
            break
        wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    assert host.tickets[0].abandoned
    assert not host.leases
    with pytest.raises(grpc.FutureCancelledError):
        call.result()


class Context:
    """A call with so much of its deadline left."""

    def __init__(self, remaining_s: float | None) -> None:
        self._remaining_s = remaining_s

    def time_remaining(self) -> float | None:
        return self._remaining_s


def test_the_budget_is_the_smaller_of_wait_and_deadline() -> None:
    assert budget_s(3.0, Context(None)) == 3.0
    assert budget_s(3.0, Context(10.0)) == 3.0
    assert budget_s(3.0, Context(1.0)) == 1.0 - ANSWER_MARGIN_S
    assert budget_s(3.0, Context(0.001)) == 0.0


def test_a_call_whose_deadline_had_passed_lets_go() -> None:
    ticket = FakeTicket(lambda: None, lambda: False, lambda: None)
    with pytest.raises(DeadlineExceededError):
        asyncio.run(settled(ticket, 1.0, Context(-0.1)))
    assert ticket.abandoned


def test_a_call_whose_deadline_passed_while_it_waited_lets_go() -> None:
    """The event loop was late: what would be granted now is heard by nobody."""
    left = iter([1.0, 1.0, -0.1])

    class Late(Context):
        def time_remaining(self) -> float | None:
            return next(left)

    ticket = FakeTicket(lambda: None, lambda: True, lambda: None)
    with pytest.raises(DeadlineExceededError):
        asyncio.run(settled(ticket, 0.01, Late(None)))
    assert ticket.abandoned


def test_a_ticket_that_is_done_after_the_loop_ended_harms_nobody() -> None:
    pending = [True]
    ticket = FakeTicket(lambda: None, lambda: bool(pending), lambda: None)
    asyncio.run(settled(ticket, 0.01, Context(None)))
    pending.clear()
    ticket.poke()
    assert ticket.done
