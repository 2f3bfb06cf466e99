"""Changing the config of a running host: each part goes by the new values, and nothing is lost on the way."""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridkv.service.config import load_config
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.extents import ExtentState
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, HIT, NEW, Rig

MakeHost = Callable[..., Rig]
DISK = 16 << 20
EXTENT = 2 * BLOCK  # of the default CPU pool of 32 blocks


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**how: Any) -> Rig:
        made.append(Rig(tmp_path, **how))
        return made[-1]

    yield make
    found: list[str] = []
    for rig in made:
        rig.free_everything()
        rig.migrator.quiesce(PATIENCE_S)
        found += rig.host.check()
        rig.close()
    assert found == []


def passes(rig: Rig, count: int = 1) -> None:
    for _ in range(count):
        rig.host.tick()
        rig.settle()
        rig.migrator.carver.idle()


def served(rig: Rig, numbers: Iterable[int]) -> bool:
    """Each block is a hit, one after the other."""
    return all(rig.worker.read([number]) == [HIT] for number in numbers)


def committed(rig: Rig) -> int:
    return rig.host.memory.cpu.region.committed_bytes() // BLOCK * BLOCK


def tier(rig: Rig, name: str) -> dict[str, Any]:
    found: dict[str, Any] = rig.host.stats()["tiers"][name]  # type: ignore[index]
    return found


# ---------------------------------------------------------------------------------------------------- versions


def test_versions_count_changes_and_guard_against_others(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    assert rig.host.config_version == 1
    update = rig.host.update_config({"cpu.idle_timeout_s": 7}, expected_version=1)
    assert (update.version, update.previous_version) == (2, 1)
    assert rig.host.config.cpu.idle_timeout_s == 7
    with pytest.raises(FailedPreconditionError, match="version 1 was expected, 2 is in force"):
        rig.host.update_config({"cpu.idle_timeout_s": 8}, expected_version=1)
    same = rig.host.update_config({"cpu.idle_timeout_s": 7})
    assert (same.version, same.changed) == (2, ())
    assert rig.host.stats()["config_version"] == 2


def test_a_refused_update_changes_nothing(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    before, rules = rig.host.config, rig.migrator.background.rules
    for changes in ({"cpu.idle_timeout_s": 7, "cpu.low_watermark": 2}, {"cpu.idle_timeout_s": 7, "cpu.shm_dir": "/x"}):
        with pytest.raises((InvalidArgumentError, FailedPreconditionError)):
            rig.host.update_config(changes)
    assert rig.host.config is before
    assert rig.migrator.background.rules is rules
    assert rig.host.config_version == 1


# ---------------------------------------------------------------------------------------------------- thresholds


def test_a_watermark_moves_blocks_with_the_next_pass(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put(range(32))
    passes(rig, 2)
    assert len(rig.inside("cpu")) == 32
    rig.host.update_config({"cpu.high_watermark": 0.75, "cpu.low_watermark": 0.5})
    passes(rig, 2)
    assert rig.inside("cpu") == set(range(16, 32))
    assert rig.inside("disk") == set(range(16))
    assert rig.moves(reason="watermark") == {"done": 16}


def test_an_idle_timeout_and_a_cooldown_go_by_the_new_values(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1])
    rig.clock.advance(20)
    rig.worker.put([2])
    passes(rig)
    assert rig.inside("disk") == set()
    rig.host.update_config({"cpu.idle_timeout_s": 10})
    passes(rig, 2)
    assert rig.inside("disk") == {1}


def test_lanes_take_batches_and_bounds_by_the_new_values(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    changes = {"migration.batch_bytes": "64KiB", "migration.inflight_bytes": "1MiB", "migration.interval_s": 2}
    rig.host.update_config({**changes, "migration.background_bytes_per_s": "1MB", "disk.admit_min_accesses": 3})
    migrator = rig.migrator
    assert migrator.spec.interval_s == 2
    assert migrator.spec.batch_bytes == 64 << 10
    assert migrator.inflight.limit_bytes == 1 << 20
    assert migrator.reclaim.admit_min_accesses == 3
    pacing = rig.lane("cpu-cpu.background").pacing
    assert pacing is not None
    assert "rate=1000000.0" in repr(pacing)


def test_the_half_life_is_that_of_the_counts(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put([1])
    rig.host.update_config({"migration.decay_half_life_s": 10})
    rig.clock.advance(10)
    rig.worker.touch([1])
    assert rig.directory.blocks.accesses[rig.row(1)] == pytest.approx(1.5)


# ---------------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize("policy", ["lfu", "fifo", "clock", "arc", "s3fifo", "gdsf", "rhq", "lru"])
def test_a_policy_takes_over_every_block(make_host: MakeHost, policy: str) -> None:
    first = "fifo" if policy == "lru" else "lru"
    rig = make_host(gpus=0, disk_bytes=DISK, cpu__policy=first)
    rig.worker.put(range(32))
    rig.host.update_config({"cpu.policy": policy})
    assert rig.host.check() == []
    assert rig.host.stats()["policies"]["cpu"] == policy  # type: ignore[index]
    rig.worker.put(range(100, 108))
    rig.settle()
    assert len(rig.inside("cpu")) == 32
    assert served(rig, [*range(32), *range(100, 108)])


def test_another_policy_chooses_other_victims(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    for number in range(32):
        rig.worker.put([number])
        rig.clock.advance(1)
    rig.host.update_config({"cpu.policy": "lfu"})
    for _ in range(3):
        rig.worker.touch([0])
        rig.clock.advance(1)
    rig.worker.touch(range(1, 32))  # each used later than 0, but less often
    rig.worker.put([100])
    rig.settle()
    assert 0 in rig.inside("cpu")
    assert rig.inside("cpu") != set(range(32))


# ---------------------------------------------------------------------------------------------------- capacity


def test_a_smaller_cpu_tier_drains_by_extents_and_grows_again_in_full(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put(range(32))
    assert committed(rig) == 16 * EXTENT
    rig.host.update_config({"cpu.capacity_bytes": 4 * EXTENT})
    passes(rig, 3)
    assert tier(rig, "cpu")["excess_bytes"] == 0
    assert tier(rig, "cpu")["capacity_bytes"] == 4 * EXTENT
    assert tier(rig, "cpu")["returned_bytes"] == 12 * EXTENT
    assert committed(rig) == 4 * EXTENT
    assert rig.inside("cpu") == set(range(24, 32))  # the coldest went down, and nothing is lost
    assert rig.inside("disk") == set(range(24))
    assert rig.moves(reason="resize", source="cpu", target="disk") == {"done": 24}
    rig.worker.put(range(100, 110))
    rig.settle()
    assert committed(rig) == 4 * EXTENT
    rig.host.update_config({"cpu.capacity_bytes": 16 * EXTENT})
    rig.worker.put(range(200, 232))
    rig.settle()
    assert len(rig.inside("cpu")) == 32
    assert committed(rig) == 16 * EXTENT
    assert served(rig, range(24))


def test_what_is_leased_holds_up_the_shrinking_until_it_is_released(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put(range(32))
    lease = rig.worker.hold(range(0, 32, 2)).lease  # one in every extent
    rig.host.update_config({"cpu.capacity_bytes": 4 * EXTENT})
    passes(rig, 2)
    assert tier(rig, "cpu")["excess_bytes"] == 12 * EXTENT
    rig.worker.verify(range(0, 32, 2), rig.worker.again(lease))
    rig.worker.release(lease)
    passes(rig, 3)
    assert tier(rig, "cpu")["excess_bytes"] == 0
    assert served(rig, range(32))


def test_growing_again_before_it_is_drained_stops_the_draining(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put(range(32))
    lease = rig.worker.hold(range(0, 32, 2)).lease
    rig.host.update_config({"cpu.capacity_bytes": 4 * EXTENT})
    rig.host.update_config({"cpu.capacity_bytes": 16 * EXTENT})
    rig.worker.release(lease)
    passes(rig, 3)
    assert len(rig.inside("cpu")) == 32
    assert tier(rig, "cpu")["excess_bytes"] == 0


def test_a_smaller_gpu_tier_sends_its_blocks_down(make_host: MakeHost) -> None:
    rig = make_host(gpus=2, gpu_blocks=16, cpu_blocks=64)
    rig.carve_cpu(32)
    for device in (0, 1):
        rig.worker.put(range(100 * device, 100 * device + 16), Tier.GPU, device=device)
    rig.host.update_config({"gpu.capacity_bytes": 8 * BLOCK})
    passes(rig, 3)
    assert len(rig.inside("gpu0")) == len(rig.inside("gpu1")) == 8
    assert rig.inside("cpu") == {*range(8), *range(100, 108)}
    assert rig.host.memory.device_pools[0].committed_bytes == 8 * BLOCK


def test_a_smaller_tier_without_one_below_evicts(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put(range(32))
    rig.host.update_config({"cpu.capacity_bytes": 4 * EXTENT})
    passes(rig, 3)
    assert rig.inside("cpu") == set(range(24, 32))
    assert rig.moves(reason="resize", target="none") == {"evicted": 24}


def test_a_smaller_disk_tier_fits_its_cap_and_grows_again(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=64, disk_bytes=8 << 20)
    for start in range(0, 256, 16):
        rig.put_on_disk(range(start, start + 16))
        rig.clock.advance(1)
    store = rig.host.memory.store
    assert store is not None
    assert store.usage().physical_bytes > 4 << 20
    rig.host.update_config({"disk.capacity_bytes": "4MiB"})
    rig.settle()
    assert store.usage().physical_bytes <= 4 << 20
    assert store.usage().capacity_bytes == 4 << 20
    left = rig.inside("disk")
    assert 0 < len(left) <= rig.directory.books[-1].capacity_slots(BLOCK)
    assert len(left) > 100
    assert left == set(range(256 - len(left), 256))  # the coldest went
    assert rig.moves(reason="resize", source="disk") == {"evicted": 256 - len(left)}
    assert served(rig, sorted(left))
    rig.put_on_disk(range(300, 330))
    assert store.usage().physical_bytes <= 4 << 20
    rig.host.update_config({"disk.capacity_bytes": "8MiB"})
    for start in range(400, 640, 30):
        rig.put_on_disk(range(start, start + 30))
    assert len(rig.inside("disk")) >= 240
    assert store.usage().physical_bytes <= 8 << 20


def test_a_tier_cannot_become_smaller_than_one_extent_or_one_block(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=256, disk_bytes=64 << 20)
    with pytest.raises(InvalidArgumentError, match=rf"cpu.capacity_bytes: 65536: at least {16 * BLOCK}, one extent"):
        rig.host.update_config({"cpu.capacity_bytes": "64KiB"})
    with pytest.raises(InvalidArgumentError, match=r"disk.capacity_bytes: 1048576: no block of 16384 bytes fits"):
        rig.host.update_config({"disk.capacity_bytes": "1MiB"})
    assert rig.host.config_version == 1


def test_under_memory_pressure_a_tier_grows_when_the_pressure_is_over(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridkv.migration.pressure import MemoryReading

    rig = make_host(gpus=0, migration__host_pressure_high=0.9)
    used = [95]
    monkeypatch.setattr(rig.migrator.relief, "read_host", lambda: [MemoryReading("host", 100, used[0])])
    rig.worker.put(range(32))
    rig.host.update_config({"cpu.capacity_bytes": 4 * EXTENT})
    passes(rig, 3)
    assert rig.host.health()["memory_pressure"] == (
        False,
        "cpu: host: 95 of 100 bytes are used, 10 are to go back",
    )
    rig.host.update_config({"cpu.capacity_bytes": 16 * EXTENT})
    book = rig.directory.state.mapped(0)
    assert len(book.table.extents_in(ExtentState.RETURNED)) >= 12
    used[0] = 10
    passes(rig)
    assert book.table.extents_in(ExtentState.RETURNED) == []
    assert rig.host.health()["memory_pressure"] == (True, "")
    assert rig.host.stats()["memory_pressure"]["cpu"]["source"] == "host"  # type: ignore[index]


# ---------------------------------------------------------------------------------------------------- sessions, log


def test_sessions_keep_what_they_were_told_and_new_ones_hear_the_new(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put([1])
    rig.host.update_config({"daemon.lease_s": 2, "limits.keys_per_call_count": 8})
    assert rig.worker.hold([1]).expires_in_s == 30
    assert rig.worker.write(range(100, 110)) == [NEW] * 10
    other = rig.attach()
    assert other.attached.limits.lease_s == 2
    assert other.hold([1]).expires_in_s == 2
    with pytest.raises(InvalidArgumentError, match="10 in one call; the limit is 8"):
        other.reserve(range(200, 210))


def test_the_grace_is_that_of_now(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put([1])
    rig.worker.hold([1])
    rig.host.update_config({"daemon.grace_s": 100})
    rig.host.stream_broken(rig.worker.session)
    rig.clock.advance(20)
    rig.host.tick()
    assert rig.host.stats()["leases"] == 1


def test_the_log_level_is_that_of_the_package(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    logger = logging.getLogger("hybridkv")
    before = logger.level
    try:
        rig.host.update_config({"daemon.log_level": "debug"})
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)


# ---------------------------------------------------------------------------------------------------- reload


def test_a_reload_applies_what_is_live_and_names_what_is_not(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(gpus=0)
    values = {"daemon.socket": rig.host.config.daemon.socket, "cpu.shm_dir": str(tmp_path)}
    loaded = load_config(overrides={**values, "cpu.capacity_bytes": "1GiB", "cpu.idle_timeout_s": 77}, env={})
    update = rig.host.reload_config(loaded)
    assert rig.host.config.cpu.idle_timeout_s == 77
    assert rig.host.config.cpu.capacity_bytes == 32 * BLOCK
    assert "needs a restart above" in update.needs_restart["cpu.capacity_bytes"]
    assert "migration.lane_slots_count" in update.needs_restart
