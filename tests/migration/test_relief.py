"""Memory pressure: whole extents go back to the host, down to the minimum, and come again."""

from collections.abc import Callable

import pytest

from hybridkv.migration.pressure import MemoryReading
from hybridkv.tiers.states import Tier
from tests.migration.hosts import BLOCK, HIT, Rig

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def pass_once(rig: Rig) -> None:
    rig.host.tick()
    rig.settle()


def pass_twice(rig: Rig) -> None:
    """The first pass may find that the pool below or above has to be carved first."""
    pass_once(rig)
    pass_once(rig)


def committed(rig: Rig) -> int:
    """Bytes of memory behind the CPU tier, without what the file system adds for itself."""
    return rig.host.memory.cpu.region.committed_bytes() // BLOCK * BLOCK


def press(rig: Rig, monkeypatch: pytest.MonkeyPatch, *, limit: int, others: int) -> None:
    """The host has `limit` bytes of memory; `others` bytes are used beside what the CPU tier has committed."""

    def read() -> list[MemoryReading]:
        return [MemoryReading("host", limit, others + committed(rig))]

    monkeypatch.setattr(rig.migrator.relief, "read_host", read)


def test_under_memory_pressure_extents_go_back_and_come_again(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=0, migration__host_pressure_high=0.55, disk_bytes=DISK)
    rig.worker.put(range(32))
    full, extent = committed(rig), 2 * BLOCK
    assert full == 16 * extent
    press(rig, monkeypatch, limit=100 * extent, others=41 * extent)  # 57 %: seven extents above the low mark of 50 %
    for _ in range(3):
        pass_once(rig)
        rig.migrator.carver.idle()
    assert full - committed(rig) == 7 * extent
    assert len(rig.inside("cpu")) == 18
    assert rig.inside("disk") >= set(range(14))  # the coldest went down, and nothing is lost
    assert rig.inside("disk") | rig.inside("cpu") == set(range(32))
    pass_once(rig)  # at the low mark the pressure is over, and what is needed may be taken again
    assert rig.worker.read(range(14), tier=Tier.CPU) == [HIT] * 14
    rig.settle()
    assert committed(rig) == full


def test_memory_stays_for_reads_that_are_under_way_and_goes_when_they_must_have_ended(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=0, migration__host_pressure_high=0.55, disk_bytes=DISK)
    rig.migrator.carver.return_after_s = 3600.0
    rig.worker.put(range(32))
    full, extent = committed(rig), 2 * BLOCK
    press(rig, monkeypatch, limit=100 * extent, others=41 * extent)
    for _ in range(3):  # what is leaving counts: nothing more is asked for while it is still there
        pass_once(rig)
        rig.migrator.carver.idle()
    assert len(rig.inside("cpu")) == 18
    assert committed(rig) == full
    press(rig, monkeypatch, limit=1000 * extent, others=0)
    pass_once(rig)
    assert rig.worker.read(range(14), tier=Tier.CPU) == [HIT] * 14  # carved anew from what never went
    rig.settle()
    assert rig.migrator.reclaim.leaving(rig.pool("cpu")) == 0
    rig.migrator.carver.return_after_s = 0.0
    press(rig, monkeypatch, limit=100 * extent, others=41 * extent)
    pass_twice(rig)
    rig.migrator.carver.idle()
    assert full - committed(rig) == 7 * extent


def test_memory_pressure_stops_at_min_bytes(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, migration__host_pressure_high=0.5, cpu__min_bytes=8 * BLOCK)
    rig.worker.put(range(32))
    press(rig, monkeypatch, limit=32 * BLOCK, others=32 * BLOCK)
    for _ in range(4):
        pass_once(rig)
        rig.migrator.carver.idle()
    assert committed(rig) == 8 * BLOCK
    assert rig.inside("cpu") == set(range(24, 32))
    rig.worker.put(range(100, 120))  # the pressure lasts: the tier makes do with what it has
    assert committed(rig) == 8 * BLOCK
    assert rig.inside("cpu") == set(range(112, 120))


def test_memory_pressure_spares_what_is_leased(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, migration__host_pressure_high=0.5)
    rig.worker.put(range(32))
    lease = rig.worker.hold([0, 5]).lease
    press(rig, monkeypatch, limit=32 * BLOCK, others=32 * BLOCK)
    for _ in range(4):
        pass_once(rig)
        rig.migrator.carver.idle()
    rig.worker.verify([0, 5], rig.worker.again(lease))
    assert committed(rig) == 4 * BLOCK


def test_without_pressure_no_memory_is_given_back(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, migration__host_pressure_high=0.9)
    rig.worker.put(range(32))
    press(rig, monkeypatch, limit=1000 * BLOCK, others=0)
    pass_once(rig)
    assert committed(rig) == 32 * BLOCK
    assert len(rig.inside("cpu")) == 32
