"""What only the host device does: holding back, failing on request, read-only imports, lazy memory."""

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hybridkv.tiers.device.base import AllocationHandle, Direction, Registration
from hybridkv.tiers.device.completion import Completion
from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.device.host import HostDevice
from hybridkv.tiers.device.host_pool import HostPool
from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

NBYTES = 4096
EXTENT_BYTES = 64 << 10
ZERO = np.zeros(1, np.int64)


@pytest.fixture
def device() -> Iterator[HostDevice]:
    made = HostDevice(0)
    yield made
    made.close()


@pytest.fixture
def pool(device: HostDevice) -> HostPool:
    made = device.create_pool(4 * EXTENT_BYTES, extent_bytes=EXTENT_BYTES)
    made.commit_extent(0)
    return made


def ones() -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return np.ones(NBYTES, np.uint8)


def up(stream: HostStream, pool: HostPool, slot: int = 0) -> Completion:
    return stream.copy(Direction.TO_DEVICE, pool, ZERO + slot * NBYTES, ones(), ZERO, NBYTES)


def landed(pool: HostPool, slot: int = 0) -> bool:
    return bool(pool.region.array[slot * NBYTES : (slot + 1) * NBYTES].all())


def test_hold_before_copy(device: HostDevice, pool: HostPool) -> None:
    stream = device.stream("s")
    stream.hold()
    done = up(stream, pool)
    assert stream.wait_held()
    assert not done.done
    assert not landed(pool)
    with pytest.raises(FailedPreconditionError):
        pool.release_extent(0)
    stream.release_held()
    assert done.wait(10)
    assert landed(pool)


def test_hold_before_completion(device: HostDevice, pool: HostPool) -> None:
    """The bytes have moved, but nobody has been told."""
    stream = device.stream("s")
    stream.hold(HoldAt.BEFORE_COMPLETION)
    done = up(stream, pool)
    assert stream.wait_held()
    assert landed(pool)
    assert not done.done
    stream.release_held()
    assert done.wait(10)


def test_held_batches_are_let_go_one_by_one(device: HostDevice, pool: HostPool) -> None:
    stream = device.stream("s")
    stream.hold()
    first, second = up(stream, pool, 0), up(stream, pool, 1)
    stream.release_held(1)
    assert first.wait(10)
    assert stream.wait_held()
    assert not second.done
    stream.release_held(1)
    assert second.wait(10)


def test_another_stream_is_not_held(device: HostDevice, pool: HostPool) -> None:
    held, free = device.stream("held"), device.stream("free")
    held.hold()
    waiting = up(held, pool, 0)
    assert up(free, pool, 1).wait(10)
    assert not waiting.done
    assert device.streams == (held, free)


def test_an_event_behind_a_held_batch_holds_the_other_stream(device: HostDevice, pool: HostPool) -> None:
    writer, reader = device.stream("writer"), device.stream("reader")
    writer.hold()
    up(writer, pool)
    event = writer.record_event()
    reader.wait_event(event)
    back = np.zeros(NBYTES, np.uint8)
    done = reader.copy(Direction.TO_HOST, pool, ZERO, back, ZERO, NBYTES)
    assert writer.wait_held()
    assert not event.wait(0)
    assert not reader.synchronize(0.05)
    with pytest.raises(FailedPreconditionError, match="once it is done"):
        device.export_event(event)
    assert not back.any()
    writer.release_held()
    assert done.wait(10)
    assert back.all()


def test_a_failed_batch_reports_and_the_next_one_runs(device: HostDevice, pool: HostPool) -> None:
    stream = device.stream("s")
    stream.hold()
    stream.fail_next(UnavailableError("the link is down"))
    failed, good = up(stream, pool, 0), up(stream, pool, 1)
    stream.release_held()
    assert good.wait(10)
    assert failed.done
    assert isinstance(failed.error, UnavailableError)
    assert good.error is None
    assert not landed(pool, 0)
    assert landed(pool, 1)
    with pytest.raises(UnavailableError, match="link"):
        failed.check()


def test_close_lets_held_batches_go(device: HostDevice, pool: HostPool) -> None:
    other, stream = device.stream("t"), device.stream("s")  # the waiting one is closed first
    stream.hold()
    done = up(stream, pool)
    other.wait_event(stream.record_event())
    later = up(other, pool, 1)
    device.close()
    assert done.done
    assert later.done
    assert not [thread for thread in threading.enumerate() if thread.name in (stream.name, other.name)]


def test_registration_is_not_needed(device: HostDevice) -> None:
    answer = device.register_host(ones(), 0, NBYTES)
    assert answer.outcome is Registration.NOT_NEEDED
    assert answer.ok
    assert device.free_bytes() is None


def test_an_uncommitted_pool_costs_nothing_and_released_memory_goes_back(tmp_path: Path) -> None:
    device, path = HostDevice(3), tmp_path / "gpu3.data"
    pool = device.create_pool(64 << 20, path=path)
    assert path.stat().st_blocks == 0
    pool.commit_extent(2)
    assert path.stat().st_blocks * 512 >= pool.extent_bytes
    assert pool.release_extent(2) == pool.extent_bytes
    assert path.stat().st_blocks == 0
    assert path.stat().st_mode & 0o777 == 0o600
    device.close()
    assert not path.exists()


@pytest.mark.parametrize(("capacity", "extent"), [(100, None), (1 << 20, 1000), (1 << 20, 2 << 20), (1 << 20, 0)])
def test_bad_sizes_are_refused(device: HostDevice, capacity: int, extent: int | None) -> None:
    with pytest.raises(InvalidArgumentError):
        device.create_pool(capacity, extent_bytes=extent)


def test_capacity_is_whole_extents(device: HostDevice) -> None:
    pool = device.create_pool((1 << 20) + 5000, extent_bytes=EXTENT_BYTES)
    assert pool.capacity_bytes == 1 << 20
    assert pool.extent_count == 16


def test_a_read_only_import_gives_views_without_a_warning(device: HostDevice, pool: HostPool) -> None:
    up(device.stream("s"), pool).wait(10)
    export = pool.export()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with device.import_pool(export.new_handles(), fd=export.descriptor(writable=False)) as imported:
            view = imported.view(0, NBYTES)
            assert bool(view.all())
            with pytest.raises(InvalidArgumentError):
                imported.view(pool.capacity_bytes, 1)
    with pytest.raises(FailedPreconditionError):
        device.import_pool(
            [AllocationHandle("host", "host-0", 0, NBYTES)], fd=export.descriptor(writable=False), writable=True
        )


def test_a_write_through_a_read_only_import_faults_the_writer(device: HostDevice, pool: HostPool) -> None:
    """In a child process: torch knows no read-only memory, the page tables do."""
    up(device.stream("s"), pool).wait(10)
    fd = pool.export().descriptor(writable=False)
    code = (
        "from hybridkv.tiers.device.host import HostDevice; from hybridkv.tiers.device.base import AllocationHandle\n"
        f"p = HostDevice(0).import_pool([AllocationHandle('host', 'host-0', 0, {NBYTES})], fd={fd})\n"
        f"p.view(0, {NBYTES}).fill_(9)"
    )
    writer = subprocess.run([sys.executable, "-c", code], pass_fds=(fd,), check=False)
    os.close(fd)
    assert writer.returncode == -11
    assert bool((pool.region.array[:NBYTES] == 1).all())


def test_imports_check_what_they_are_given(device: HostDevice) -> None:
    with pytest.raises(InvalidArgumentError, match="descriptor"):
        device.import_pool([AllocationHandle("host", "host-0", 0, NBYTES)])
    with pytest.raises(InvalidArgumentError, match="kind"):
        device.import_pool([AllocationHandle("cuda", "GPU-1", 0, NBYTES)], fd=os.open("/dev/null", os.O_RDONLY))


def test_pools_of_two_devices_do_not_mix(device: HostDevice, pool: HostPool) -> None:
    other = HostDevice(1)
    theirs = other.create_pool(EXTENT_BYTES, extent_bytes=EXTENT_BYTES)
    theirs.commit_extent(0)
    with pytest.raises(InvalidArgumentError, match="host-1"):
        device.stream("s").copy(Direction.ON_DEVICE, pool, ZERO, theirs, ZERO, NBYTES)
    other.close()
