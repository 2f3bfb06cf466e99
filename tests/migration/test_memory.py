"""Opening a host's memory: what the disk still has, in the order it was used; and nothing left behind."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, HIT, MISS, NEW, Rig, checksums, key, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def disk_order(rig: Rig) -> list[tuple[int, int]]:
    """(namespace's number, block's number) on disk, coldest first."""
    blocks, book = rig.directory.blocks, rig.directory.books[-1]
    rows = [row for window in book.policy.scan() for row in window.tolist()]
    return [(int(blocks.namespace[row]), int.from_bytes(blocks.keys[row][:8], "little")) for row in rows]


def restarted(rig: Rig, make_host: MakeHost, **how: int) -> Rig:
    rig.close()
    return make_host(clock=rig.clock, **{"gpus": 0, "disk_bytes": DISK, **how})


# ---------------------------------------------------------------------------------------------------- restart


def test_a_restart_serves_from_disk_what_was_there(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put(range(8))
    assert rig.host.drain(PATIENCE_S).written == 8
    again = restarted(rig, make_host)
    assert again.inside("disk") == set(range(8))
    assert again.worker.read(range(9)) == [HIT] * 8 + [MISS]


def test_what_was_only_in_memory_is_a_miss_after_a_restart(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.put([2])
    again = restarted(rig, make_host)
    assert again.worker.read([1, 2]) == [HIT, MISS]
    assert again.worker.write([2]) == [NEW]


def test_the_order_on_disk_survives_a_restart(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    for number in (5, 3, 8, 1):
        rig.clock.advance(1)
        rig.put_on_disk([number])
    again = restarted(rig, make_host)
    assert [number for _, number in disk_order(again)] == [5, 3, 8, 1]


def test_the_order_spans_segments_and_namespaces(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=2 << 20)
    other = rig.attach(BLOCK, "other")
    expected = []
    for number in range(16):  # a segment of this store holds a few blocks
        rig.clock.advance(1)
        worker = other if number % 3 == 0 else rig.worker
        worker.put([number])
        assert rig.host.drain(PATIENCE_S).left == 0
        expected.append(number)
    again = restarted(rig, make_host, disk_bytes=2 << 20)
    order = disk_order(again)
    assert [number for _, number in order] == expected
    assert len({space for space, _ in order}) == 2
    store = again.host.memory.store
    assert store is not None
    assert store.usage().segments > 1


def test_a_disk_tier_made_smaller_lets_the_oldest_go(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=2 << 20)
    for number in range(40):
        rig.clock.advance(1)
        rig.worker.put([number])
        if number % 8 == 7:
            assert rig.host.drain(PATIENCE_S).left == 0
    again = restarted(rig, make_host, disk_bytes=1 << 20)
    room = again.directory.books[-1].capacity_slots(BLOCK)
    assert room < 40
    again.worker.put(range(100, 164))  # the CPU tier is full: room is needed on disk, more than was lacking
    again.settle()
    kept = again.inside("disk")
    assert 0 < len(kept) <= room
    assert min(kept) >= 20  # the oldest went first
    newest = max(kept)
    assert again.worker.read([newest], tier=Tier.CPU) == [HIT]
    store = again.host.memory.store
    assert store is not None
    assert store.usage().physical_bytes <= 1 << 20


def test_parents_are_known_after_a_restart(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    assert rig.worker.write([1, 2, 3]) == [NEW] * 3
    assert rig.host.drain(PATIENCE_S).left == 0
    again = restarted(rig, make_host)
    blocks = again.directory.blocks
    assert blocks.parent[again.row(2)] == again.row(1)
    assert blocks.parent[again.row(3)] == again.row(2)
    assert not blocks.orphans
    assert again.worker.write([4], parent=key(3)) == [NEW]


def test_a_chain_whose_head_was_lost_is_orphaned_and_counted(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    assert rig.worker.write([1, 2, 3]) == [NEW] * 3
    assert rig.host.drain(PATIENCE_S).left == 0
    rig.host.remove(rig.worker.session, keys([1]))
    again = restarted(rig, make_host)
    assert again.inside("disk") == {2, 3}
    assert again.host.stats()["orphans"] == 1


def test_a_layout_that_changed_shares_nothing(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    again = restarted(rig, make_host)
    wide = again.attach(2 * BLOCK, "m")
    assert wide.read([1]) == [MISS]
    same_size = again.attach(BLOCK, "another model")
    assert same_size.read([1]) == [MISS]
    assert again.worker.read([1]) == [HIT]


def test_checksums_survive_a_restart(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    again = restarted(rig, make_host)
    assert again.directory.blocks.checksum[again.row(1)] == checksums([1])[0]


# ---------------------------------------------------------------------------------------------------- open and close


def test_a_second_host_on_the_same_disk_is_refused_by_name(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UnavailableError, match=r"\d"):
        make_host(gpus=0, disk_bytes=DISK, cpu__shm_dir=str(other), daemon__socket=f"unix://{other}/kv.sock")
    assert rig.worker.read([1]) == [HIT]
    assert list(other.rglob("*.region")) == []  # the refused one left nothing


def test_a_closed_host_leaves_no_shared_memory(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(gpus=2, disk_bytes=DISK)
    rig.worker.put([1], Tier.GPU)
    rig.worker.put([2])
    rig.close()
    rig.host.close()  # again
    left = [path.name for path in tmp_path.rglob("*") if path.is_file() and "disk" not in path.parts]
    assert [name for name in left if name.endswith((".region", ".headers"))] == []


def test_an_unused_tier_costs_nothing(make_host: MakeHost) -> None:
    rig = make_host(gpus=1, gpu_blocks=160, cpu_blocks=320)
    assert rig.host.memory.cpu.region.committed_bytes() <= 20 * BLOCK + 4096  # one extent
    pool = rig.host.memory.device_pools[0]
    assert pool.committed_bytes <= 10 * BLOCK


def test_only_host_memory_can_be_addressed(make_host: MakeHost) -> None:
    rig = make_host(gpus=1, disk_bytes=DISK)
    assert rig.host.memory.kinds() == ["host", "host", "disk"]
    with pytest.raises(InvalidArgumentError, match="pool"):
        rig.host.memory.region_of(2)
    assert rig.host.memory.device_of(0).kind == "host"
    assert "gpu0, cpu, disk" in repr(rig.host.memory)


def test_a_disk_directory_removed_before_the_start_is_an_empty_tier(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.close()
    shutil.rmtree(tmp_path / "disk")
    again = make_host(gpus=0, disk_bytes=DISK, clock=rig.clock)
    assert again.worker.read([1]) == [MISS]
