"""Hints, recompute and deadlines over the wire of a real daemon, and through the client."""

from collections.abc import Iterator

import pytest

import hybridkv
from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.codec import hints_from_wire, hints_to_wire
from hybridkv.service.config import Config, load_config
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.hints import NO_HINTS, Hints, Importance
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome
from tests.service.wire import TIMEOUT_S, Wire, key, read, some_keys, write

RECOMPUTE = int(Outcome.RECOMPUTE)


@pytest.fixture
def config(config: Config) -> Config:
    """A device tier beside the CPU's, and nothing that moves by itself."""
    return load_config(
        overrides={
            "daemon.socket": config.daemon.socket,
            "cpu.shm_dir": config.cpu.shm_dir,
            "cpu.capacity_bytes": "4MiB",
            "gpu.devices": ["host:0"],
            "gpu.capacity_bytes": "4MiB",
            "migration.interval_s": 3600,
        },
        env={},
    )


@pytest.fixture
def kv(daemon: DaemonThread, space: Namespace) -> Iterator[hybridkv.KV]:
    with hybridkv.connect(daemon.address, space) as connected:
        yield connected


@pytest.fixture
def session(wire: Wire, space: Namespace) -> Iterator[int]:
    stream = wire.attach(space)
    yield stream.session
    stream.detach()


def coldest(daemon: DaemonThread, want: int) -> set[bytes]:
    """Keys that the CPU pool would give up first."""
    directory = daemon.host.directory
    with directory.lock:
        rows = directory.choice.victims(1, None, want)
        return {directory.blocks.keys[row] for row in rows}


def store(kv: hybridkv.KV, *numbers: int) -> None:
    """A chain on the CPU tier."""
    with kv.reserve([key(number) for number in numbers], tier="cpu", timeout_s=5.0) as slots:
        slots.seal()


def make_lane_slow(daemon: DaemonThread) -> None:
    """As if the lane up to the device had just been measured at a byte a second."""
    daemon.host.migrator.lanes.lane(1, 0).speed.note(1, 1.0, daemon.host.clock.now())


def test_a_caller_is_told_to_compute(daemon: DaemonThread, wire: Wire, session: int) -> None:
    write(wire, session, 1)
    make_lane_slow(daemon)
    here = wire.kv.Lookup(pb.LookupRequest(session=session, **some_keys(1)), timeout=TIMEOUT_S).tiers
    other = pb.TIER_GPU if here == b"\x01" else pb.TIER_CPU
    daemon.host.migrator.lanes.lane(0, 1).speed.note(1, 1.0, daemon.host.clock.now())
    asked = pb.AcquireRequest(session=session, tier=other, wait_s=5.0, recompute_s=0.01, **some_keys(1))
    reply = wire.kv.Acquire(asked, timeout=TIMEOUT_S)
    assert list(reply.states) == [RECOMPUTE]
    assert reply.slots == bytes(32)
    assert daemon.host.stats()["outcomes"]["recompute"] == 1  # type: ignore[index]


def test_the_client_sends_its_estimate_and_takes_the_answer_for_a_miss(daemon: DaemonThread, kv: hybridkv.KV) -> None:
    store(kv, 1, 2)
    make_lane_slow(daemon)
    keys = [key(1), key(2)]
    with kv.acquire(keys, tier="gpu", timeout_s=5.0, recompute_s=0.01) as lease:
        assert lease.states.tolist() == [RECOMPUTE] * 2
        assert lease.prefix == 0
        with pytest.raises(hybridkv.FailedPreconditionError, match="RECOMPUTE"):
            lease.array(0)
    with kv.acquire(keys, tier="gpu", timeout_s=5.0) as lease:
        assert lease.prefix == 2


def test_an_ended_session_yields_first(daemon: DaemonThread, kv: hybridkv.KV) -> None:
    for numbers in ((1, 2), (3, 4)):
        store(kv, *numbers)
    request = kv.request()
    request.acquire([key(3), key(4)], tier="cpu").release()
    request.end(end_of_session=True)
    assert coldest(daemon, 2) == {key(3), key(4)}
    assert daemon.host.stats()["counters"]["sessions_ended"] == 1  # type: ignore[index]


def test_the_hints_of_a_request_reach_the_daemon(daemon: DaemonThread, kv: hybridkv.KV) -> None:
    for number in (1, 2, 3):
        store(kv, number)
    with kv.request(priority=2, request_class=5) as request:
        request.acquire([key(1), key(99)], tier="cpu").release()
    with kv.request(expected_next_use_s=1e6) as request:
        request.acquire([key(3)], tier="cpu").release()
    assert coldest(daemon, 1) == {key(3)}
    assert coldest(daemon, 2) == {key(3), key(2)}
    assert daemon.host.stats()["request_classes"] == {
        "5": {"requests": 1, "asked": 2, "found": 1, "followed": 1, "used_again": 0}
    }


def test_a_reservation_carries_hints_too(daemon: DaemonThread, wire: Wire, session: int) -> None:
    for number, priority in ((1, 1), (2, 0), (3, 1)):
        asked = pb.ReserveRequest(session=session, tier=pb.TIER_CPU, wait_s=5.0, **some_keys(number))
        asked.hints.priority = priority
        reply = wire.kv.Reserve(asked, timeout=TIMEOUT_S)
        wire.kv.Seal(pb.SealRequest(session=session, reservation=reply.reservation), timeout=TIMEOUT_S)
    assert coldest(daemon, 1) == {key(2)}


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("priority", {"hints": pb.Hints(priority=3)}),
        ("request_class", {"hints": pb.Hints(request_class=256)}),
        ("expected_next_use_s", {"hints": pb.Hints(expected_next_use_s=float("nan"))}),
        ("recompute_s", {"recompute_s": -1.0}),
    ],
)
def test_what_makes_no_sense_is_refused(wire: Wire, session: int, field: str, fields: dict[str, object]) -> None:
    asked = pb.AcquireRequest(session=session, **some_keys(1), **fields)  # type: ignore[arg-type]
    error = wire.error(wire.kv.Acquire, asked)
    assert isinstance(error, InvalidArgumentError)
    assert field in str(error)


def test_a_prefetch_carries_its_deadline(daemon: DaemonThread, kv: hybridkv.KV) -> None:
    store(kv, 1, 2)
    stream = next(s for s in daemon.host.memory.devices[0].streams if s.name.endswith("/cpu-gpu0.background"))  # type: ignore[attr-defined]
    stream.hold()
    assert kv.prefetch([key(1)], tier="gpu", deadline_s=30.0) == 1
    given = [transfer.give_up_at for transfer in daemon.host.directory.state.transfers.values()]
    waiting = [wish.give_up_at for wish in daemon.host.migrator.prefetches._waiting.values()]
    stream.release_held()
    [at] = [*given, *waiting]
    assert at is not None
    assert 0 < at - daemon.host.clock.now() <= 30.0
    with pytest.raises(InvalidArgumentError, match="deadline_s"):
        kv.prefetch([key(2)], tier="gpu", deadline_s=-1.0)


def test_hints_survive_the_wire() -> None:
    for hints in (Hints(Importance.LOW, 0.0, 0), Hints(request_class=255, end_of_session=True)):
        sent = hints_to_wire(hints)
        assert sent is not None
        assert hints_from_wire(pb.Hints.FromString(sent.SerializeToString())) == hints
    assert hints_to_wire(NO_HINTS) is None
    assert hints_from_wire(pb.AcquireRequest().hints) == NO_HINTS


def test_a_client_of_before_is_served_as_ever(wire: Wire, session: int) -> None:
    write(wire, session, 1)
    states, data = read(wire, session, 1)
    assert states == [int(Outcome.HIT)]
    assert len(data) == 4096
