"""What every device does. The host device, the CUDA device on a fake runtime, and a real GPU under `-m gpu`."""

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.benchmarks.device_peer import pattern
from hybridkv.tiers.device.base import Direction
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from tests.tiers.device.conftest import EXTENT_BYTES, EXTENTS, Bytes, Rig

SIZES = [4 << 10, 16 << 10, 64 << 10, 2 << 20]
Offsets = npt.NDArray[np.int64]


def scattered(seed: int, count: int, nbytes: int, room: int) -> Offsets:
    """Distinct slots of `nbytes`, in random order."""
    return np.random.default_rng(seed).permutation(room // nbytes)[:count].astype(np.int64) * nbytes


def filled(rig: Rig, nbytes: int, seed: int, *, registered: bool = True) -> Bytes:
    memory = rig.host_memory(nbytes, registered=registered)
    memory[:] = pattern(seed, nbytes)
    return memory


def rows(memory: Bytes, offsets: Offsets, nbytes: int) -> Bytes:
    return np.stack([memory[o : o + nbytes] for o in offsets.tolist()])


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("nbytes", SIZES)
def test_round_trip_at_random_offsets(rig: Rig, nbytes: int, registered: bool) -> None:
    count = min(100, (4 << 20) // nbytes)
    source = filled(rig, 4 << 20, 1, registered=registered)
    back = rig.host_memory(4 << 20, registered=registered)
    at = scattered(2, count, nbytes, rig.pool.capacity_bytes)
    out, into = scattered(3, count, nbytes, 4 << 20), scattered(4, count, nbytes, 4 << 20)
    stream = rig.device.stream("round-trip")
    first = stream.copy(Direction.TO_DEVICE, rig.pool, at, source, out, nbytes)
    second = stream.copy(Direction.TO_HOST, rig.pool, at, back, into, nbytes)
    assert second.wait(30)
    assert first.done
    first.check()
    second.check()
    assert np.array_equal(rows(back, into, nbytes), rows(source, out, nbytes))
    untouched = np.setdiff1d(np.arange(0, 4 << 20, nbytes), into)
    assert not any(back[o : o + nbytes].any() for o in untouched.tolist())


def test_offsets_need_no_alignment_to_the_block(rig: Rig) -> None:
    nbytes = 4096
    source, back = filled(rig, 1 << 20, 5), rig.host_memory(1 << 20)
    at = np.arange(20, dtype=np.int64) * 9 * 512 + 512
    out = np.arange(20, dtype=np.int64)[::-1] * 4100 + 3
    stream = rig.device.stream("odd")
    stream.copy(Direction.TO_DEVICE, rig.pool, at, source, out, nbytes)
    stream.copy(Direction.TO_HOST, rig.pool, at, back, out, nbytes).wait(30)
    assert np.array_equal(rows(back, out, nbytes), rows(source, out, nbytes))


@pytest.mark.parametrize("nbytes", SIZES)
def test_the_later_batch_wins(rig: Rig, nbytes: int) -> None:
    source, back = filled(rig, nbytes * 2, 6), rig.host_memory(nbytes)
    stream = rig.device.stream("order")
    where, zero = np.array([nbytes], np.int64), np.zeros(1, np.int64)
    for version in (0, 1, 0, 1):
        stream.copy(Direction.TO_DEVICE, rig.pool, where, source, zero + version * nbytes, nbytes)
    stream.copy(Direction.TO_HOST, rig.pool, where, back, zero, nbytes).wait(30)
    assert np.array_equal(back, source[nbytes:])


@pytest.mark.parametrize("nbytes", SIZES)
def test_relocation_on_the_device(rig: Rig, nbytes: int) -> None:
    count = 6
    source, back = filled(rig, count * nbytes, 7), rig.host_memory(count * nbytes)
    places = scattered(8, 2 * count, nbytes, rig.pool.capacity_bytes)
    packed = np.arange(count, dtype=np.int64) * nbytes
    stream = rig.device.stream("relocate")
    stream.copy(Direction.TO_DEVICE, rig.pool, places[:count], source, packed, nbytes)
    stream.copy(Direction.ON_DEVICE, rig.pool, places[count:], rig.pool, places[:count], nbytes)
    stream.copy(Direction.TO_HOST, rig.pool, places[count:], back, packed, nbytes).wait(30)
    assert np.array_equal(back, source)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False), (True, True)])
def test_one_stream_orders_the_host_side_too(rig: Rig, first: bool, second: bool) -> None:
    """Down to host memory and up again from there: each way through page-locked memory or not."""
    nbytes, count = 4096, 40
    source = filled(rig, count * nbytes, 9)
    between, back = rig.host_memory(count * nbytes, registered=first or second), rig.host_memory(count * nbytes)
    packed = np.arange(count, dtype=np.int64) * nbytes
    mixed = packed[::-1] if first else packed
    stream = rig.device.stream("host-order")
    stream.copy(Direction.TO_DEVICE, rig.pool, packed, source, packed, nbytes)
    stream.copy(Direction.TO_HOST, rig.pool, packed, between, mixed, nbytes)
    again = packed[::-1] if second else packed
    stream.copy(Direction.TO_DEVICE, rig.pool, EXTENT_BYTES + again, between, mixed, nbytes)
    stream.copy(Direction.TO_HOST, rig.pool, EXTENT_BYTES + again, back, packed, nbytes).wait(30)
    assert np.array_equal(back, source)


@pytest.mark.parametrize("nbytes", [4096, 256 << 10])
def test_an_event_orders_two_streams(rig: Rig, nbytes: int) -> None:
    count = 8
    source, back = filled(rig, count * nbytes, 10), rig.host_memory(count * nbytes)
    packed = np.arange(count, dtype=np.int64)[::-1] * nbytes
    writer, reader = rig.device.stream("writer"), rig.device.stream("reader")
    writer.copy(Direction.TO_DEVICE, rig.pool, packed, source, packed, nbytes)
    reader.wait_event(writer.record_event())
    reader.copy(Direction.TO_HOST, rig.pool, packed, back, packed, nbytes).wait(30)
    assert np.array_equal(back, source)


def test_an_event_covers_host_memory(rig: Rig) -> None:
    """One stream brings small blocks down, another takes them up from the same host memory."""
    nbytes, count = 4096, 40
    source, back = filled(rig, count * nbytes, 11), rig.host_memory(count * nbytes)
    between = rig.host_memory(count * nbytes, registered=False)
    packed = np.arange(count, dtype=np.int64) * nbytes
    down, up = rig.device.stream("down"), rig.device.stream("up")
    down.copy(Direction.TO_DEVICE, rig.pool, packed, source, packed, nbytes)
    down.copy(Direction.TO_HOST, rig.pool, packed, between, packed, nbytes)
    up.wait_event(down.record_event())
    up.copy(Direction.TO_DEVICE, rig.pool, EXTENT_BYTES + packed, between, packed, nbytes)
    up.copy(Direction.TO_HOST, rig.pool, EXTENT_BYTES + packed, back, packed, nbytes).wait(30)
    assert np.array_equal(back, source)


def test_an_event_is_done_once_reached(rig: Rig) -> None:
    stream = rig.device.stream("event")
    event = stream.record_event()
    assert event.wait(30)
    assert event.done
    assert stream.synchronize(30)


def test_an_empty_batch_completes(rig: Rig) -> None:
    none = np.empty(0, np.int64)
    done = rig.device.stream("empty").copy(Direction.TO_HOST, rig.pool, none, rig.host_memory(4096), none, 4096)
    assert done.wait(30)
    assert done.error is None


def test_callbacks_hear_of_the_end(rig: Rig) -> None:
    heard: list[bool] = []
    zero = np.zeros(1, np.int64)
    done = rig.device.stream("callback").copy(Direction.TO_HOST, rig.pool, zero, rig.host_memory(4096), zero, 4096)
    done.add_done_callback(lambda completion: heard.append(completion.done))
    rig.device.close()
    done.add_done_callback(lambda completion: heard.append(completion.done))
    assert heard == [True, True]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("other_offsets", {"other_offsets": [0, 4096, 8192]}),
        ("other_offsets", {"other_offsets": [0, 1 << 20]}),
        ("other_offsets", {"other_offsets": [0, -1]}),
        ("device_offsets", {"device_offsets": [0, EXTENT_BYTES * EXTENTS]}),
        ("device_offsets", {"device_offsets": [-4096, 0]}),
        ("device_offsets", {"device_offsets": [0, 100]}),
        ("device_offsets", {"device_offsets": [0.0, 4096.0]}),
        ("nbytes", {"nbytes": 0}),
        ("other", {"direction": Direction.ON_DEVICE}),
        ("other", {"other": np.zeros((256, 4096), np.uint8)}),
        ("other", {"other": np.zeros(1 << 20, np.int8)}),
    ],
)
def test_bad_arguments_are_refused_before_anything_moves(rig: Rig, field: str, arguments: dict[str, object]) -> None:
    good: dict[str, object] = {
        "direction": Direction.TO_DEVICE,
        "device_offsets": [0, 4096],
        "other": rig.host_memory(1 << 20),
        "other_offsets": [0, 4096],
        "nbytes": 4096,
    }
    call = good | arguments
    call["device_offsets"] = np.array(call["device_offsets"])
    call["other_offsets"] = np.array(call["other_offsets"])
    with pytest.raises(InvalidArgumentError) as refused:
        rig.device.stream("bad").copy(pool=rig.pool, **call)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert rig.pool.release_extent(0) >= 0  # nothing was left in use


def test_read_only_memory_is_no_destination(rig: Rig) -> None:
    memory, zero = np.zeros(4096, np.uint8), np.zeros(1, np.int64)
    memory.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="read-only"):
        rig.device.stream("ro").copy(Direction.TO_HOST, rig.pool, zero, memory, zero, 4096)


def test_a_closed_stream_carries_out_what_it_has_and_takes_no_more(rig: Rig) -> None:
    source, zero = filled(rig, 4096, 12), np.zeros(1, np.int64)
    stream = rig.device.stream("closed")
    done = stream.copy(Direction.TO_DEVICE, rig.pool, zero, source, zero, 4096)
    stream.close()
    stream.close()
    assert done.done
    assert done.error is None
    with pytest.raises(UnavailableError):
        stream.copy(Direction.TO_DEVICE, rig.pool, zero, source, zero, 4096)
    assert rig.pool.release_extent(0) >= 0


def test_extents_are_committed_and_released(rig: Rig) -> None:
    pool, whole = rig.pool, rig.pool.committed_bytes
    per_allocation = pool.allocation_bytes // pool.extent_bytes
    given_back = [pool.release_extent(extent) for extent in range(EXTENTS)]
    assert whole == EXTENT_BYTES * EXTENTS
    assert sum(given_back) >= whole
    assert pool.committed_bytes == 0
    assert pool.release_extent(0) == 0
    with pytest.raises(InvalidArgumentError):
        pool.view(0, 4096)
    zero = np.zeros(1, np.int64)
    with pytest.raises(InvalidArgumentError, match="not committed"):
        rig.device.stream("holes").copy(Direction.TO_HOST, pool, zero, rig.host_memory(4096), zero, 4096)
    pool.commit_extent(0)
    pool.commit_extent(0)
    assert pool.is_committed(0)
    assert not pool.is_committed(min(per_allocation, EXTENTS - 1))
    assert len(pool.view(0, 4096)) == 4096


def test_bases_are_allocation_starts(rig: Rig) -> None:
    bases = [rig.pool.base_of(extent) for extent in range(EXTENTS)]
    assert all(base % rig.pool.allocation_bytes == 0 for base in bases)
    assert all(0 <= extent * EXTENT_BYTES - base < rig.pool.allocation_bytes for extent, base in enumerate(bases))
    with pytest.raises(InvalidArgumentError):
        rig.pool.base_of(EXTENTS)


def test_a_view_shows_the_bytes(rig: Rig) -> None:
    source = filled(rig, 8192, 13)
    at = np.array([EXTENT_BYTES * 5], np.int64)
    rig.device.stream("view").copy(Direction.TO_DEVICE, rig.pool, at, source, np.zeros(1, np.int64), 8192).wait(30)
    view = rig.pool.view(EXTENT_BYTES * 5, 8192)
    assert np.array_equal(view.cpu().numpy(), source)
    view.fill_(7)
    if view.is_cuda:
        event = rig.device.record_event()
        assert event.wait(30)
    assert int(rig.pool.view(EXTENT_BYTES * 5 + 8191, 1)[0]) == 7


def test_registration_says_what_became_of_it(rig: Rig) -> None:
    memory = rig.host_memory(1 << 20, registered=False)
    answer = rig.device.register_host(memory, 4096, 8192)
    assert answer.ok
    assert answer.reason or answer.outcome.value == "registered"
    rig.device.unregister_host(memory, 4096, 8192)
    rig.device.unregister_host(memory, 4096, 8192)
    assert rig.device.register_host(memory, 0, 1 << 20).ok


def test_a_second_process_reads_and_writes(rig: Rig) -> None:
    nbytes = 64 << 10
    source, back = filled(rig, 4 * nbytes, 0), rig.host_memory(2 * nbytes)
    places = {int(o): 20 + i for i, o in enumerate(scattered(14, 4, nbytes, rig.pool.capacity_bytes))}
    for index, seed in enumerate(places.values()):
        source[index * nbytes : (index + 1) * nbytes] = pattern(seed, nbytes)
    stream = rig.device.stream("ipc")
    at, packed = np.array([*places], np.int64), np.arange(4, dtype=np.int64) * nbytes
    stream.copy(Direction.TO_DEVICE, rig.pool, at, source, packed, nbytes).wait(30)
    export = rig.pool.export()
    handles = export.new_handles()
    assert export.new_handles() == []
    written = {int(at[0]): 98, int(at[3]): 99}
    with rig.second_process(export) as peer:
        answer = peer.ask(handles, nbytes, places, written)
        stream.wait_event(rig.device.import_event(answer.event))
        stream.copy(Direction.TO_HOST, rig.pool, at[[0, 3]], back, packed[:2], nbytes).wait(60)
    export.close()
    assert answer.wrong == []
    assert np.array_equal(back, np.concatenate([pattern(98, nbytes), pattern(99, nbytes)]))


def test_an_unknown_event_is_refused(rig: Rig) -> None:
    with pytest.raises((InvalidArgumentError, UnavailableError)):
        rig.device.import_event(b"no event")


def test_a_pool_in_use_does_not_close(rig: Rig) -> None:
    extents = rig.pool.begin_use(np.zeros(1, np.int64), 4096)
    with pytest.raises(FailedPreconditionError):
        rig.pool.close()
    with pytest.raises(FailedPreconditionError, match="under way"):
        rig.pool.release_extent(0)
    rig.pool.end_use(extents)
    rig.pool.close()
    with pytest.raises(FailedPreconditionError):
        rig.pool.commit_extent(0)
