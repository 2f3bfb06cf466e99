"""Read and Write: bytes come out as they went in, or an error says why; nothing half-written is ever found."""

from collections.abc import Iterator

import grpc
import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.config import Config
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.status import error_from
from hybridkv.tiers.errors import (
    HybridKVError,
    InvalidArgumentError,
    NotFoundError,
)
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, ReserveOutcome, Tier
from tests.service.wire import ROOM_S, TIMEOUT_S, Stream, Wire, parts, payload, read, some_keys, wired, write


@pytest.fixture
def stream(wire: Wire, space: Namespace) -> Stream:
    return wire.attach(space)


def write_error(wire: Wire, messages: Iterator[pb.WritePart]) -> HybridKVError:
    with pytest.raises(grpc.RpcError) as caught:
        wire.kv.Write(messages, timeout=TIMEOUT_S)
    return error_from(caught.value)


def nothing_left(wire: Wire, stream: Stream, daemon: DaemonThread, *numbers: int) -> bool:
    states, data = read(wire, stream.session, *numbers, independent=True)
    stats = daemon.host.stats()
    return set(states) == {Outcome.MISS} and not data and (stats["reservations"], stats["blocks"]) == (0, 0)


@pytest.mark.parametrize("size", [1, 4096, 5000, 3 << 20])
def test_what_was_written_is_read(wire: Wire, stream: Stream, daemon: DaemonThread, size: int) -> None:
    numbers = list(range(1, 2 if size == 1 else 21))
    data = b"".join(map(payload, numbers))
    reply = wire.kv.Write(parts(stream.session, numbers, data, size), timeout=TIMEOUT_S)
    assert list(reply.outcomes) == [ReserveOutcome.NEW] * len(numbers)
    assert read(wire, stream.session, *numbers) == ([Outcome.HIT] * len(numbers), data)
    assert daemon.host.stats()["leases"] == 0


def test_parts_stay_within_the_limit_and_the_first_has_the_states(wire: Wire, stream: Stream) -> None:
    write(wire, stream.session, *range(10))
    got = list(wire.kv.Read(pb.ReadRequest(session=stream.session, **some_keys(*range(11))), timeout=TIMEOUT_S))
    assert list(got[0].states) == [Outcome.HIT] * 10 + [Outcome.MISS]
    assert [len(part.data) for part in got] == [0, 16384, 16384, 8192]


def test_only_hits_are_sent(wire: Wire, stream: Stream) -> None:
    write(wire, stream.session, 1, 3)
    states, data = read(wire, stream.session, 1, 2, 3, independent=True)
    assert states == [Outcome.HIT, Outcome.MISS, Outcome.HIT]
    assert data == payload(1) + payload(3)


def test_payload_of_keys_that_another_has_is_dropped(wire: Wire, stream: Stream) -> None:
    write(wire, stream.session, 2)
    data = payload(1) + bytes(4096) + payload(3)
    reply = wire.kv.Write(parts(stream.session, [1, 2, 3], data), timeout=TIMEOUT_S)
    assert list(reply.outcomes) == [ReserveOutcome.NEW, ReserveOutcome.PRESENT, ReserveOutcome.NEW]
    assert read(wire, stream.session, 1, 2, 3)[1] == payload(1) + payload(2) + payload(3)
    again = wire.kv.Write(parts(stream.session, [1, 2, 3], data), timeout=TIMEOUT_S)
    assert list(again.outcomes) == [ReserveOutcome.PRESENT] * 3


@pytest.mark.parametrize("length", [0, 4095, 8191, 8193, 12288])
def test_short_or_excess_data_is_refused_and_nothing_published(
    wire: Wire, stream: Stream, daemon: DaemonThread, length: int
) -> None:
    data = (payload(1) + payload(2) + payload(3))[:length]
    error = write_error(wire, parts(stream.session, [1, 2], data))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "data"
    assert "8192" in str(error)
    assert nothing_left(wire, stream, daemon, 1, 2)


def test_a_write_without_any_part_is_refused(wire: Wire) -> None:
    assert isinstance(write_error(wire, iter(())), InvalidArgumentError)


def test_a_write_of_an_unknown_session_is_refused(wire: Wire) -> None:
    assert isinstance(write_error(wire, parts(999, [1], payload(1))), NotFoundError)


def test_a_write_with_bad_keys_is_refused(wire: Wire, stream: Stream) -> None:
    error = write_error(wire, iter([pb.WritePart(session=stream.session, keys=b"x" * 17, key_bytes=16)]))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "keys"


@pytest.mark.parametrize("tier", [pb.TIER_ANY, pb.TIER_GPU, pb.TIER_CPU])
def test_streams_reach_the_pools_of_host_devices(config: Config, space: Namespace, tier: pb.Tier) -> None:
    gpu = config.gpu.model_copy(update={"devices": ("host:0", "host:1"), "capacity_bytes": 1 << 20})
    with DaemonThread(config.model_copy(update={"gpu": gpu})) as daemon, wired(daemon.address) as wire:
        stream = wire.attach(space)
        data = payload(1) + payload(2)
        wire.kv.Write(parts(stream.session, [1, 2], data, tier=tier), timeout=TIMEOUT_S)
        assert read(wire, stream.session, 1, 2, wait_s=ROOM_S) == ([Outcome.HIT] * 2, data)
        found = wire.kv.Lookup(pb.LookupRequest(session=stream.session, **some_keys(1, 2)), timeout=TIMEOUT_S)
        assert list(found.tiers) == [Tier.CPU if tier == pb.TIER_CPU else Tier.GPU] * 2
        assert daemon.host.check() == []


def test_a_write_to_the_disk_tier_is_refused(wire: Wire, stream: Stream) -> None:
    error = write_error(wire, parts(stream.session, [1], payload(1), tier=pb.TIER_DISK))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "tier"
