"""What movers do when the disk fails, lies or is gone: a MISS with a counter, never a wrong byte, never a stop."""

import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hybridkv.tiers import points
from hybridkv.tiers.directory.blocks import Checksum
from hybridkv.tiers.disk import DiskBlock, DiskState, DiskStore
from hybridkv.tiers.errors import DiskFullError, ResourceExhaustedError, UnavailableError
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S, failing_at
from tests.migration.hosts import BLOCK, HIT, MISS, NEW, Rig, checksums, content, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20
EIO = OSError(errno.EIO, "injected")


def store_of(rig: Rig) -> DiskStore:
    store = rig.host.memory.store
    assert store is not None
    return store


def damage(tmp_path: Path, number: int) -> None:
    """Change a byte in the middle of the block's payload on disk."""
    wanted = content(number).tobytes()
    for file in (tmp_path / "disk").glob("seg-*/data.mdb"):
        data = file.read_bytes()
        at = data.find(wanted)
        if at >= 0:
            with file.open("r+b") as writable:
                writable.seek(at + BLOCK // 2)
                writable.write(bytes([data[at + BLOCK // 2] ^ 0xFF]))
            return
    raise AssertionError(f"block {number} is not on disk")


# ---------------------------------------------------------------------------------------------------- writes fail


def test_a_failed_write_leaves_the_cpu_copy_and_turns_the_tier_off(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1, 2])
    with points.listening(failing_at("disk.put.before_commit", EIO)):
        rig.lower("cpu", [1])
        rig.until(lambda: rig.moves(source="cpu", target="disk") == {"failed": 1})
    rig.settle()
    assert rig.where(1) == {"cpu"}
    assert rig.worker.read([1, 2]) == [HIT, HIT]
    disk = rig.directory.state.disk
    assert disk is not None
    assert not disk.on
    assert rig.lane("cpu-disk").pulse.errors == 1
    assert len(rig.directory.state.setbacks) == 0  # the tier's fault, not the block's
    assert not rig.host.health()["disk"][0]
    assert "injected" in rig.host.health()["disk"][1]


def test_the_disk_tier_comes_back_by_itself(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([9])
    rig.worker.put([1])
    with points.listening(failing_at("disk.put.before_commit", EIO)):
        rig.lower("cpu", [1])
        rig.until(lambda: store_of(rig).state is DiskState.OFF)
    rig.settle()
    assert rig.worker.read([9]) == [MISS]
    assert len(rig.directory.state.setbacks) == 0  # the tier's fault, not the block's
    rig.host.tick()  # asks the writer to look
    disk = rig.directory.state.disk
    assert disk is not None
    rig.until(lambda: disk.on)
    assert rig.host.health()["disk"] == (True, "")
    rig.lower("cpu", [1])
    rig.settle()
    assert rig.where(1) == {"disk"}
    assert rig.worker.read([1, 9], tier=Tier.CPU) == [HIT, HIT]


def test_with_the_disk_off_the_other_tiers_serve_on(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.put_on_disk([200])
    store_of(rig).close()
    rig.look_after_disk()
    disk = rig.directory.state.disk
    assert disk is not None
    assert not disk.on
    assert rig.worker.read([200]) == [MISS]
    rig.worker.put(range(16), Tier.GPU)
    rig.worker.put(range(20, 60))
    assert rig.moves(source="cpu", target="none")["evicted"] == 10  # 30 fit beside the lanes' slots
    assert rig.worker.read(range(16), tier=Tier.CPU) == [HIT] * 16
    assert rig.host.drain(1.0).left > 0


def test_a_read_that_fails_is_a_miss_and_the_copy_stays(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    with points.listening(failing_at("disk.read.before_pread", EIO, times=2)):
        assert rig.worker.read([1]) == [MISS]
    assert rig.where(1) == {"disk"}
    rig.look_after_disk()
    assert rig.worker.read([1]) == [HIT]


def test_no_space_is_read_only_and_reads_go_on(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.put([2])
    with points.listening(failing_at("disk.put.before_commit", OSError(errno.ENOSPC, "injected"))):
        rig.lower("cpu", [2])
        rig.until(lambda: store_of(rig).state is DiskState.READ_ONLY)
    rig.settle()
    assert rig.worker.read([1]) == [HIT]
    assert rig.where(2) == {"cpu"}
    rig.look_after_disk()
    disk = rig.directory.state.disk
    assert disk is not None
    assert disk.on


def test_a_failing_disk_does_not_spin_a_reservation(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32, disk_bytes=DISK)
    rig.worker.put(range(32))
    with points.listening(failing_at("disk.put.before_commit", EIO, times=1000)):
        assert rig.worker.write([100, 101]) == [NEW, NEW]
    rig.settle()
    assert rig.where(0) == set()  # the tier below was off: evicted, and counted
    assert rig.moves(source="cpu", target="none")["evicted"] == 2
    assert rig.moves(source="cpu", target="disk")["failed"] <= 4


# ---------------------------------------------------------------------------------------------------- the disk lies


def test_a_rotten_payload_is_a_miss_and_its_copy_is_gone(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1, 2])
    damage(tmp_path, 1)
    assert rig.worker.read([1, 2]) == [MISS, HIT]
    assert rig.where(1) == set()
    assert rig.counter("copies_lost") == 1
    assert store_of(rig).usage().counters.blocks_corrupt == 1
    assert rig.worker.write([1]) == [NEW]  # and it can be written again


def test_a_rotten_copy_is_dropped_when_another_serves(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.put_on_disk([1])
    assert rig.worker.read([1], tier=Tier.GPU) == [HIT]
    damage(tmp_path, 1)
    assert rig.where(1) == {"gpu0", "disk"}
    assert rig.worker.read([1], tier=Tier.CPU) == [HIT]
    assert rig.where(1) >= {"gpu0", "cpu"}


def test_a_block_that_vanished_from_the_store_is_a_miss(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1, 2])
    store = store_of(rig)
    segments = rig.directory.blocks.slot[rig.pool("disk")]
    store.drop_segment(int(segments[rig.row(1)]))
    assert rig.worker.read([1, 2]) == [MISS, MISS]
    assert rig.host.check() == []
    assert rig.counter("copies_lost") == 2


def test_lost_segments_are_dropped_from_the_directory(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1, 2])
    rig.worker.put([3])
    for segment in (tmp_path / "disk").glob("seg-*"):
        shutil.rmtree(segment)
    rig.look_after_disk()  # finds it gone: off
    rig.look_after_disk()  # back, without what was there
    assert store_of(rig).state is DiskState.ON
    assert rig.where(1) == rig.where(2) == set()
    assert rig.where(3) == {"cpu"}
    assert rig.counter("copies_lost") == 2
    rig.lower("cpu", [3])
    rig.settle()
    assert rig.worker.read([3], tier=Tier.CPU) == [HIT]


def test_a_copy_lost_with_its_segment_is_no_loss_where_another_is(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    assert rig.worker.read([1]) == [HIT]
    for segment in (tmp_path / "disk").glob("seg-*"):
        shutil.rmtree(segment)
    rig.look_after_disk()
    rig.look_after_disk()
    assert rig.where(1) == {"cpu"}
    assert rig.worker.read([1]) == [HIT]


# ---------------------------------------------------------------------------------------------------- writers lie


def test_bytes_without_their_writers_checksum_never_reach_the_disk(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([2])
    reply = rig.worker.reserved([1])
    rig.worker.fill(1, reply.slots[0])
    rig.host.seal(rig.worker.session, reply.reservation, None, checksums([99]))  # those of other bytes
    rig.lower("cpu", [1, 2])
    rig.settle()
    assert rig.where(1) == set()
    assert rig.where(2) == {"disk"}
    assert rig.counter("blocks_corrupt") == 1
    assert store_of(rig).usage().live_blocks == 1
    assert rig.worker.read([1]) == [MISS]


def test_a_corrupt_block_that_is_leased_goes_when_the_lease_ends(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    reply = rig.worker.reserved([1])
    rig.worker.fill(1, reply.slots[0])
    rig.host.seal(rig.worker.session, reply.reservation, None, checksums([99]))
    lease = rig.worker.hold([1]).lease
    assert rig.host.drain(PATIENCE_S).written == 0
    rig.settle()
    assert rig.host.lookup(rig.worker.session, keys([1])).states.tolist() == [MISS]
    assert rig.used("cpu") == BLOCK  # its holder may still read it
    rig.worker.release(lease)
    assert rig.used("cpu") == 0


def test_blocks_sealed_without_a_checksum_get_one_before_the_disk(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1], sums=False)
    assert rig.directory.blocks.checked[rig.row(1)] == Checksum.NONE
    rig.lower("cpu", [1])
    rig.settle()
    row = rig.row(1)
    assert rig.directory.blocks.checked[row] == Checksum.VERIFIED
    assert rig.directory.blocks.checksum[row] == checksums([1])[0]
    assert rig.worker.read([1]) == [HIT]


def test_blocks_sealed_on_a_device_get_their_checksum_at_their_first_cpu_copy(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU, sums=False)
    assert rig.directory.blocks.checked[rig.row(1)] == Checksum.NONE
    assert rig.worker.read([1], tier=Tier.CPU) == [HIT]
    assert rig.directory.blocks.checksum[rig.row(1)] == checksums([1])[0]


# ---------------------------------------------------------------------------------------------------- the disk is full


def test_when_physical_room_lacks_one_segment_is_emptied(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1, 2])
    store, put = store_of(rig), store_of(rig).put
    segment = int(rig.directory.blocks.slot[rig.pool("disk")][rig.row(1)])
    full = [DiskFullError("full", segment, (None,))]

    def once_full(blocks: Sequence[DiskBlock]) -> list[int]:
        if full:
            raise full.pop()
        return put(blocks)

    monkeypatch.setattr(store, "put", once_full)
    rig.worker.put([3])
    rig.lower("cpu", [3])
    rig.settle()
    assert rig.where(3) == {"disk"}
    assert rig.where(1) == rig.where(2) == set()
    assert rig.counter("disk_segments_emptied") == 1
    assert rig.counter("disk_blocks_evicted_with_segment") == 2
    assert rig.worker.read([3]) == [HIT]


def test_what_was_stored_before_the_disk_was_full_counts(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    store, put = store_of(rig), store_of(rig).put
    calls: list[int] = []

    def half(blocks: Sequence[DiskBlock]) -> list[int]:
        calls.append(len(blocks))
        if len(calls) == 1:
            raise DiskFullError("full", None, (*put(blocks[:1]), None))
        return put(blocks)

    monkeypatch.setattr(store, "put", half)
    rig.worker.put([1, 2])
    rig.lower("cpu", [1, 2])
    rig.until(lambda: rig.moves(source="cpu", target="disk") == {"done": 1, "failed": 1})
    rig.settle()
    assert rig.where(1) == {"disk"}
    assert rig.where(2) == {"cpu"}
    assert rig.worker.read([1, 2]) == [HIT, HIT]


def test_a_store_that_keeps_refusing_loses_nothing_and_holds_nobody_up(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)

    def refuse(blocks: Sequence[DiskBlock]) -> list[int]:
        raise UnavailableError("the disk tier is off: injected")

    monkeypatch.setattr(store_of(rig), "put", refuse)
    rig.worker.put(range(32))
    with pytest.raises(ResourceExhaustedError, match="cpu"):  # after some failed batches, not for ever
        rig.worker.reserved([100])
    rig.settle()
    assert rig.worker.read(range(32)) == [HIT] * 32
    assert rig.counter("lane_errors") >= 3
    assert np.count_nonzero(rig.directory.blocks.busy) == 0
