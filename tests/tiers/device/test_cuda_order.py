"""Each synchronisation of the CUDA device has a test here that fails without it.

The fake runtime does nothing until somebody waits, so what the code does not wait for has not happened. Where the code
must *not* go on, a test gives it a moment to go wrong while the device stands still (`world.pause`).
"""

import gc
import threading
import weakref

import numpy as np
import pytest

from hybridkv.benchmarks.device_peer import pattern
from hybridkv.tiers.device.base import Direction
from hybridkv.tiers.device.cuda import CudaDevice
from hybridkv.tiers.device.cuda_host import registrations_of
from hybridkv.tiers.device.cuda_parts import COPIES_PER_PART
from hybridkv.tiers.device.cuda_stream import PARTS_IN_FLIGHT
from hybridkv.tiers.errors import (
    FailedPreconditionError,
)
from tests.tiers.device.bench import EXTENT_BYTES, LARGE, MOMENT_S, SMALL, Bench, offsets
from tests.tiers.device.fake_cuda import FakeCuda
from tests.tiers.device.fake_world import LAUNCHES_BEFORE_BLOCKING


def test_completion_waits_for_the_bytes(bench: Bench) -> None:
    """The finisher waits for the part's event, which was recorded behind the copies."""
    bench.host[:LARGE] = pattern(1, LARGE)
    zero = offsets(0, nbytes=LARGE)
    bench.world.pause()
    done = bench.device.stream("s").copy(Direction.TO_DEVICE, bench.pool, zero, bench.host, zero, LARGE)
    assert bench.world.wait_for_calls("copy_async", 1)
    assert not done.wait(MOMENT_S)
    bench.world.resume()
    assert done.wait(10)
    assert np.array_equal(bench.device_bytes(0, LARGE), pattern(1, LARGE))


def test_the_event_is_recorded_behind_the_copies(bench: Bench) -> None:
    three = offsets(0, 2, 4, nbytes=LARGE)
    bench.world.log.clear()
    bench.device.stream("s").copy(Direction.TO_DEVICE, bench.pool, three, bench.host, three, LARGE).wait(10)
    assert [call for call, _ in bench.world.log] == ["copy_async"] * 3 + ["record_event", "wait_event"]


def test_a_stream_waits_for_another_streams_event_before_it_copies(bench: Bench) -> None:
    bench.host[:LARGE] = pattern(2, LARGE)
    here, there = offsets(0, nbytes=LARGE), offsets(1, nbytes=LARGE)
    up, down = bench.device.stream("up"), bench.device.stream("down")
    bench.world.pause()  # else the finishing thread of `up` might force its copy by itself
    up.copy(Direction.TO_DEVICE, bench.pool, here, bench.host, here, LARGE)
    event = up.record_event()
    assert event.recorded.wait(10)
    down.wait_event(event)
    done = down.copy(Direction.TO_HOST, bench.pool, here, bench.host, there, LARGE)
    assert bench.world.wait_for_calls("copy_async", 2)
    calls = [call for call, _ in bench.world.log]
    assert "stream_wait_event" in calls[: len(calls) - calls[::-1].index("copy_async")]
    bench.world.resume()
    assert done.wait(10)
    assert np.array_equal(bench.host[LARGE : 2 * LARGE], pattern(2, LARGE))


def test_an_engines_event_is_waited_for(bench: Bench) -> None:
    """A worker fills a reserved slot by a kernel; the copy down sees what the kernel wrote."""
    worker = CudaDevice(0, FakeCuda(bench.world))
    runtime = worker._runtime
    assert isinstance(runtime, FakeCuda)
    export = bench.pool.export()
    mapped = worker.import_pool(export.new_handles())
    view = mapped.view(0, LARGE).numpy()
    runtime.kernel(0, runtime.current_stream(0), lambda: np.copyto(view, pattern(3, LARGE)))
    payload = worker.export_event(worker.record_event())
    stream, zero = bench.device.stream("down"), offsets(0, nbytes=LARGE)
    stream.wait_event(bench.device.import_event(payload))
    assert stream.copy(Direction.TO_HOST, bench.pool, zero, bench.host, zero, LARGE).wait(10)
    assert np.array_equal(bench.host[:LARGE], pattern(3, LARGE))
    mapped.close()


def test_an_event_not_yet_recorded_is_waited_for(bench: Bench) -> None:
    """CUDA lets a stream pass an event that nobody recorded."""
    bench.host[:LARGE] = pattern(4, LARGE)
    here, there = offsets(0, nbytes=LARGE), offsets(1, nbytes=LARGE)
    up, down = bench.device.stream("up"), bench.device.stream("down")
    bench.stalled(up)
    issued = bench.world.calls("copy_async")
    up.copy(Direction.TO_DEVICE, bench.pool, here, bench.host, here, LARGE)
    down.wait_event(up.record_event())
    done = down.copy(Direction.TO_HOST, bench.pool, here, bench.host, there, LARGE)
    assert not bench.world.wait_for_calls("copy_async", issued + 1, MOMENT_S)
    bench.world.resume()
    assert done.wait(10)
    assert np.array_equal(bench.host[LARGE : 2 * LARGE], pattern(4, LARGE))


def test_an_event_travels_only_once_it_is_recorded(bench: Bench) -> None:
    stream = bench.device.stream("up")
    bench.stalled(stream)
    stream.copy(Direction.TO_DEVICE, bench.pool, offsets(0, nbytes=LARGE), bench.host, offsets(0, nbytes=LARGE), LARGE)
    event = stream.record_event()
    payload: list[bytes] = []
    thread = threading.Thread(target=lambda: payload.append(bench.device.export_event(event)))
    thread.start()
    thread.join(MOMENT_S)
    assert payload == []
    bench.world.resume()
    thread.join(10)
    assert len(payload) == 1


@pytest.mark.parametrize("direction", [Direction.TO_DEVICE, Direction.TO_HOST])
def test_staging_is_not_reused_while_its_copy_runs(either: Bench, direction: Direction) -> None:
    """Twelve scattered small blocks through a buffer of four."""
    bench, blocks, data = either, offsets(*range(0, 36, 3), nbytes=SMALL), pattern(5, 36 * SMALL)
    if direction is Direction.TO_HOST:
        bench.pool.view(0, 36 * SMALL).numpy()[:] = data
    else:
        bench.host[: 36 * SMALL] = data
    last = "scatter" if direction is Direction.TO_DEVICE or bench.runtime.reaches_host else "gather"
    bench.world.pause()
    done = bench.device.stream("s").copy(direction, bench.pool, blocks, bench.host, blocks, SMALL)
    assert bench.world.wait_for_calls(last, 1)
    assert not bench.world.wait_for_calls(last, 2, MOMENT_S)
    bench.world.resume()
    assert done.wait(10)
    assert bench.world.calls(last) == 3
    for block in range(0, 36, 3):
        expected = data[block * SMALL : (block + 1) * SMALL]
        assert np.array_equal(bench.device_bytes(block, SMALL), expected)
        assert np.array_equal(bench.host[block * SMALL : (block + 1) * SMALL], expected)


def test_source_lives_until_done(bench: Bench) -> None:
    source = pattern(6, LARGE)
    assert registrations_of(bench.runtime).register(0, source, 0, LARGE).ok  # the device itself would keep the array
    alive = weakref.ref(source)
    stream, zero = bench.device.stream("s"), offsets(0, nbytes=LARGE)
    bench.world.pause()
    done = stream.copy(Direction.TO_DEVICE, bench.pool, zero, source, zero, LARGE)
    assert bench.world.wait_for_calls("record_event", 1)
    stopped = threading.Event()
    stream._issuer.submit(stopped.set)  # behind the batch: the issuing thread has let go of it
    assert stopped.wait(10)
    del source
    gc.collect()
    assert alive() is not None
    bench.world.resume()
    assert done.wait(10)
    stream.close()
    assert np.array_equal(bench.device_bytes(0, LARGE), pattern(6, LARGE))
    assert alive() is None


def test_an_extent_is_not_released_under_a_copy(bench: Bench) -> None:
    zero = offsets(0, nbytes=LARGE)
    bench.world.pause()
    done = bench.device.stream("s").copy(Direction.TO_DEVICE, bench.pool, zero, bench.host, zero, LARGE)
    with pytest.raises(FailedPreconditionError, match="under way"):
        bench.pool.release_extent(0)
    bench.world.resume()
    assert done.wait(10)
    assert bench.pool.release_extent(0) == 0
    assert bench.pool.release_extent(1) == bench.pool.allocation_bytes


def test_what_follows_a_staged_copy_to_the_host_waits_for_the_cpu(bench: Bench) -> None:
    """Small blocks come down through staging; a direct copy then takes them up again from the same host memory."""
    device = CudaDevice(0, bench.runtime, staging_bytes=LARGE)  # all in one part, so that only the order holds it back
    pool = device.create_pool(16 << 20, extent_bytes=EXTENT_BYTES)
    pool.commit_extent(0)
    data = pattern(7, LARGE)
    pool.view(0, LARGE).numpy()[:] = data
    down, stream = offsets(*range(15, -1, -1), nbytes=SMALL), device.stream("s")
    bench.world.pause()
    stream.copy(Direction.TO_HOST, pool, down, bench.host, down, SMALL)
    done = stream.copy(Direction.TO_DEVICE, pool, offsets(9, nbytes=LARGE), bench.host, offsets(0, nbytes=LARGE), LARGE)
    assert bench.world.wait_for_calls("copy_async", 2)  # the indices, and the blocks
    assert not bench.world.wait_for_calls("copy_async", 3, MOMENT_S)
    bench.world.resume()
    assert done.wait(10)
    assert np.array_equal(pool.view(9 * LARGE, LARGE).numpy(), data)
    device.close()


def test_an_event_behind_a_staged_copy_covers_the_cpus_part(bench: Bench) -> None:
    data = pattern(8, 2 * SMALL)
    bench.pool.view(0, 2 * SMALL).numpy()[:] = data
    memory, swapped = np.zeros(2 * SMALL, np.uint8), offsets(1, 0, nbytes=SMALL)
    stream = bench.device.stream("s")
    bench.world.pause()
    stream.copy(Direction.TO_HOST, bench.pool, swapped, memory, swapped, SMALL)
    event = stream.record_event()
    assert bench.world.wait_for_calls("gather", 1)
    assert not event.recorded.wait(MOMENT_S)
    bench.world.resume()
    assert event.wait(10)
    assert np.array_equal(memory, data)


def test_the_cpu_reads_a_staged_source_only_after_what_the_stream_waits_for(bench: Bench) -> None:
    """A large block comes down on one stream; another, behind its event, takes small pieces of it up."""
    data = pattern(9, LARGE)
    bench.pool.view(0, LARGE).numpy()[:] = data
    down, up = bench.device.stream("down"), bench.device.stream("up")
    zero, pieces = offsets(0, nbytes=LARGE), offsets(*range(15, -1, -1), nbytes=SMALL)
    bench.world.pause()
    down.copy(Direction.TO_HOST, bench.pool, zero, bench.host, zero, LARGE)
    event = down.record_event()
    assert event.recorded.wait(10)
    up.wait_event(event)
    done = up.copy(Direction.TO_DEVICE, bench.pool, EXTENT_BYTES + pieces, bench.host, pieces, SMALL)
    assert not bench.world.wait_for_calls("scatter", 1, MOMENT_S)
    bench.world.resume()
    assert done.wait(10)
    assert np.array_equal(bench.pool.view(EXTENT_BYTES, LARGE).numpy(), data)


def test_the_launch_queue_never_fills(bench: Bench) -> None:
    """Issuing holds the interpreter lock, so a call that blocks would stop the process."""
    far_apart = offsets(*range(0, 128, 2), nbytes=LARGE)
    stream = bench.device.stream("s")
    bench.world.pause()
    batches = LAUNCHES_BEFORE_BLOCKING // len(far_apart) + 2
    done = [
        stream.copy(Direction.TO_DEVICE, bench.pool, far_apart, bench.host, far_apart, LARGE) for _ in range(batches)
    ]
    bench.world.resume()
    assert all(completion.wait(10) for completion in done)
    assert [completion.error for completion in done] == [None] * batches
    assert PARTS_IN_FLIGHT * COPIES_PER_PART < LAUNCHES_BEFORE_BLOCKING


def test_memory_that_an_importer_maps_is_not_freed(bench: Bench) -> None:
    worker = CudaDevice(0, FakeCuda(bench.world))
    export = bench.pool.export()
    handles = export.new_handles()
    mapped = worker.import_pool(handles)
    assert [bench.pool.release_extent(extent) for extent in range(4)] == [0, 0, 0, 0]
    mapped.close()
    export.close()
    export.close()
    assert bench.world.free_bytes[0] == bench.world.device_bytes
