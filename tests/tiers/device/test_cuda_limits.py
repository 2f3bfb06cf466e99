"""What CUDA refuses, and how the device keeps within it; failures, and the kernels' path."""

import numpy as np
import pytest

from hybridkv.benchmarks.device_peer import pattern
from hybridkv.tiers.device.base import Direction, Registration
from hybridkv.tiers.device.cuda import CudaDevice
from hybridkv.tiers.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from tests.tiers.device.bench import EXTENT_BYTES, LARGE, SMALL, Bench, offsets
from tests.tiers.device.fake_cuda import FakeCuda


@pytest.mark.parametrize("direction", [Direction.TO_DEVICE, Direction.TO_HOST])
@pytest.mark.parametrize("registrations", [1, 2])
@pytest.mark.parametrize("packed", [True, False])
def test_kernels_move_small_blocks_of_page_locked_memory(
    direction: Direction, registrations: int, packed: bool
) -> None:
    """Packed on the host's side: gathered and copied as one, but not across registrations. Else: kernels only."""
    count, device_side = 12, offsets(*range(0, 36, 3), nbytes=SMALL)
    memory, back = pattern(12, 2 * count * SMALL), np.zeros(count * SMALL, np.uint8)
    host_side = offsets(*range(count), nbytes=SMALL) if packed else offsets(*range(0, 2 * count, 2), nbytes=SMALL)
    bench = Bench(True)
    device = CudaDevice(0, bench.runtime)
    for part in np.split(np.arange(memory.nbytes), registrations * 2):  # registrations end at whole blocks
        assert device.register_host(memory, int(part[0]), len(part)).ok
    data = np.concatenate([memory[o : o + SMALL] for o in host_side.tolist()])
    if direction is Direction.TO_HOST:
        for number, place in enumerate(device_side.tolist()):
            bench.pool.view(place, SMALL).numpy()[:] = data[number * SMALL : (number + 1) * SMALL]
        memory[:] = 0
    pool = device.create_pool(16 << 20, extent_bytes=EXTENT_BYTES)
    pool.commit_extent(0)
    pool.view(0, EXTENT_BYTES).copy_(bench.pool.view(0, EXTENT_BYTES))
    bench.world.log.clear()
    done = device.stream("s").copy(direction, pool, device_side, memory, host_side, SMALL)
    assert done.wait(10)
    assert done.error is None
    kernels = bench.world.calls("gather") + bench.world.calls("scatter")
    parts = registrations if packed else 1
    assert kernels == (parts if packed else 2)
    assert bench.world.calls("copy_async") == (2 * parts if packed else 1)  # the indices, and the one run
    for number, place in enumerate(device_side.tolist()):
        back[number * SMALL : (number + 1) * SMALL] = pool.view(place, SMALL).numpy()
    assert np.array_equal(back, data)
    assert np.array_equal(np.concatenate([memory[o : o + SMALL] for o in host_side.tolist()]), data)
    device.close()


def test_a_large_batch_is_issued_in_parts(bench: Bench) -> None:
    """One batch of more copies than may be in flight."""
    apart = offsets(*range(0, 1200, 2), nbytes=SMALL)
    memory = np.zeros(1200 * SMALL, np.uint8)  # not page-locked, and at odd addresses: no kernel
    device_side = apart + 4
    bench.world.pause()
    done = bench.device.stream("s").copy(Direction.TO_DEVICE, bench.pool, device_side, memory, apart, SMALL)
    assert bench.world.wait_for_calls("copy_async", 1)
    bench.world.resume()
    assert done.wait(10)
    assert done.error is None
    assert bench.world.calls("copy_async") == len(apart)


def test_closing_a_pool_leaves_what_an_importer_maps(bench: Bench) -> None:
    worker = CudaDevice(0, FakeCuda(bench.world))
    mapped = worker.import_pool(bench.pool.export().new_handles())
    bench.pool.close()
    assert len(mapped.view(0, SMALL)) == SMALL
    mapped.close()


def test_an_export_tells_later_allocations_once(bench: Bench) -> None:
    worker = CudaDevice(0, FakeCuda(bench.world))
    for extent in (2, 3):
        bench.pool.release_extent(extent)
    export = bench.pool.export()
    mapped = worker.import_pool(export.new_handles())
    with pytest.raises(InvalidArgumentError):
        mapped.view(2 * EXTENT_BYTES, SMALL)
    bench.pool.commit_extent(3)
    later = export.new_handles()
    mapped.add(later)
    assert [handle.offset for handle in later] == [2 * EXTENT_BYTES]
    assert len(mapped.view(3 * EXTENT_BYTES, SMALL)) == SMALL
    mapped.close()
    export.close()


@pytest.mark.parametrize("page_locked", [True, False])
def test_neighbours_in_two_allocations_are_two_copies(bench: Bench, page_locked: bool) -> None:
    both = offsets(127, 128, nbytes=LARGE)  # the last block of one allocation and the first of the next
    device = CudaDevice(0, bench.runtime)  # with buffers that hold both blocks
    pool = device.create_pool(16 << 20, extent_bytes=EXTENT_BYTES, extents_per_allocation=2)
    for extent in range(4):
        pool.commit_extent(extent)
    memory = bench.host if page_locked else np.zeros(2 * LARGE, np.uint8)
    stream = device.stream("s")
    done = stream.copy(Direction.TO_DEVICE, pool, both, memory, both - both[0], LARGE)
    assert done.wait(10)
    assert done.error is None
    assert bench.world.calls("copy_async") == 2
    moved = stream.copy(Direction.ON_DEVICE, pool, both - 64 * LARGE, pool, both, LARGE)
    assert moved.wait(10)
    assert moved.error is None
    assert bench.world.calls("copy_async") == 4
    device.close()


def test_neighbours_in_two_registrations_are_two_copies(bench: Bench) -> None:
    memory = np.zeros(2 * LARGE, np.uint8)
    for part in (0, LARGE):
        assert bench.device.register_host(memory, part, LARGE).ok
    both = offsets(0, 1, nbytes=LARGE)
    done = bench.device.stream("s").copy(Direction.TO_DEVICE, bench.pool, both, memory, both, LARGE)
    assert done.wait(10)
    assert done.error is None
    assert bench.world.calls("copy_async") == 2


def test_a_refused_registration_is_told_and_copies_still_work(bench: Bench) -> None:
    bench.runtime.refuse_registration = True
    memory = pattern(10, LARGE)
    answer = bench.device.register_host(memory, 0, LARGE)
    assert answer.outcome is Registration.FAILED
    assert "not permitted" in answer.reason
    zero = offsets(0, nbytes=LARGE)
    assert bench.device.stream("s").copy(Direction.TO_DEVICE, bench.pool, zero, memory, zero, LARGE).wait(10)
    assert np.array_equal(bench.device_bytes(0, LARGE), memory)


def test_two_devices_share_one_registration(either: Bench) -> None:
    bench = either
    other = CudaDevice(1, bench.runtime)
    assert other.register_host(bench.host, 0, bench.host.nbytes).ok
    bench.device.unregister_host(bench.host, 0, bench.host.nbytes)
    pool = other.create_pool(EXTENT_BYTES, extent_bytes=EXTENT_BYTES)
    pool.commit_extent(0)
    scattered = offsets(*range(0, 40, 2), nbytes=SMALL)  # its kernels do not reach what another device registered
    done = other.stream("s").copy(Direction.TO_DEVICE, pool, scattered, bench.host, scattered, SMALL)
    assert done.wait(10)
    assert done.error is None
    other.close()


def test_a_failed_batch_reports_and_the_next_one_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, zero = bench.device.stream("s"), offsets(0, nbytes=LARGE)
    bench.host[:LARGE] = pattern(11, LARGE)

    def broken(*_: object) -> None:
        raise UnavailableError("cudaMemcpyAsync: unspecified launch failure (719), device 0")

    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime, "copy_async", broken)
        failed = stream.copy(Direction.TO_DEVICE, bench.pool, zero, bench.host, zero, LARGE)
        assert failed.wait(10)
    assert isinstance(failed.error, UnavailableError)
    with pytest.raises(UnavailableError, match="719"):
        failed.check()
    done = stream.copy(Direction.TO_DEVICE, bench.pool, zero, bench.host, zero, LARGE)
    assert done.wait(10)
    assert done.error is None
    assert np.array_equal(bench.device_bytes(0, LARGE), pattern(11, LARGE))


def test_a_stream_whose_order_broke_copies_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise UnavailableError("cudaEventRecord: invalid resource handle (400), device 0")

    up, down = bench.device.stream("up"), bench.device.stream("down")
    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime, "record_event", broken)
        event = up.record_event()
        assert event.recorded.wait(10)
    down.wait_event(event)
    zero = offsets(0, nbytes=LARGE)
    done = down.copy(Direction.TO_HOST, bench.pool, zero, bench.host, zero, LARGE)
    assert done.wait(10)
    assert isinstance(done.error, UnavailableError)
    assert not event.done
    assert bench.world.calls("copy_async") == 0


def test_a_full_device_refuses_the_extent_and_stays_usable(bench: Bench) -> None:
    bench.world.free_bytes[0] = 0
    bench.pool.release_extent(2)
    bench.pool.release_extent(3)
    bench.world.free_bytes[0] = 4096
    with pytest.raises(ResourceExhaustedError, match="GPU memory"):
        bench.pool.commit_extent(2)
    assert not bench.pool.is_committed(2)
    bench.world.free_bytes[0] = bench.world.device_bytes
    bench.pool.commit_extent(2)
    assert bench.device.free_bytes() == bench.world.device_bytes - bench.pool.allocation_bytes
