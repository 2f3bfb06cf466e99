"""Relief by fake readings: it begins and ends at two marks, stops at the minimum, judges devices by their own memory."""

from collections.abc import Callable

import pytest

from hybridkv.migration.pressure import MemoryReading
from hybridkv.tiers.states import Tier
from tests.migration.hosts import BLOCK, Rig

MakeHost = Callable[..., Rig]


def passes(rig: Rig, count: int = 1) -> None:
    for _ in range(count):
        rig.host.tick()
        rig.settle()
        rig.migrator.carver.idle()


def host_reads(rig: Rig, monkeypatch: pytest.MonkeyPatch, *used: int) -> None:
    """The host's use in percent, pass after pass; the last one stays."""
    left = list(used)

    def read() -> list[MemoryReading]:
        return [MemoryReading("host", 100 * BLOCK, (left.pop(0) if len(left) > 1 else left[0]) * BLOCK)]

    monkeypatch.setattr(rig.migrator.relief, "read_host", read)


def pressure(rig: Rig, pool: str = "cpu") -> bool:
    return bool(rig.host.stats()["memory_pressure"][pool]["under_pressure"])  # type: ignore[index]


def test_pressure_begins_above_the_mark_and_ends_five_points_below(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=0, migration__host_pressure_high=0.9)
    rig.worker.put(range(32))
    seen = []
    host_reads(rig, monkeypatch, 90, 91, 88, 86, 85, 88, 90, 91)
    for _ in range(8):
        passes(rig)
        seen.append(pressure(rig))
    assert seen == [False, True, True, True, False, False, False, True]


def test_extents_stay_away_between_the_marks_and_come_back_below(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=0, migration__host_pressure_high=0.9)
    rig.worker.put(range(32))
    host_reads(rig, monkeypatch, 95)
    passes(rig, 2)
    returned = rig.host.stats()["tiers"]["cpu"]["returned_bytes"]  # type: ignore[index]
    assert returned >= 10 * BLOCK
    assert rig.host.health()["memory_pressure"][0] is False
    host_reads(rig, monkeypatch, 86)
    passes(rig, 2)
    assert rig.host.stats()["tiers"]["cpu"]["returned_bytes"] >= returned  # type: ignore[index]
    host_reads(rig, monkeypatch, 85)
    passes(rig)
    assert rig.host.stats()["tiers"]["cpu"]["returned_bytes"] == 0  # type: ignore[index]
    assert rig.host.health()["memory_pressure"] == (True, "")


def test_a_minimum_that_is_raised_while_running_holds(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, migration__host_pressure_high=0.5)
    rig.worker.put(range(32))
    host_reads(rig, monkeypatch, 99)
    rig.host.update_config({"cpu.min_bytes": 20 * BLOCK})
    passes(rig, 4)
    assert len(rig.inside("cpu")) == 20
    rig.host.update_config({"cpu.min_bytes": 8 * BLOCK})
    passes(rig, 4)
    assert len(rig.inside("cpu")) == 8


def test_a_mark_that_is_lowered_while_running_begins_the_relief(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=0)
    rig.worker.put(range(32))
    host_reads(rig, monkeypatch, 80)
    passes(rig)
    assert not pressure(rig)
    rig.host.update_config({"migration.host_pressure_high": 0.7})
    passes(rig)
    assert pressure(rig)
    rig.host.update_config({"migration.host_pressure_high": 1.0})
    passes(rig)
    assert not pressure(rig)


def test_a_device_is_judged_by_its_own_memory(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=2, gpu_blocks=16, cpu_blocks=64, migration__device_pressure_high=0.9)
    rig.carve_cpu(32)
    for device in (0, 1):
        rig.worker.put(range(100 * device, 100 * device + 16), Tier.GPU, device=device)
    full, fine = MemoryReading("cuda:0", 20 * BLOCK, 19 * BLOCK), MemoryReading("cuda:1", 100 * BLOCK, 10 * BLOCK)
    monkeypatch.setattr(rig.migrator.relief, "read_device", lambda pool: full if pool == 0 else fine)
    passes(rig, 2)
    assert (pressure(rig, "gpu0"), pressure(rig, "gpu1")) == (True, False)
    assert len(rig.inside("gpu1")) == 16
    assert len(rig.inside("gpu0")) < 16
    assert rig.moves(source="gpu0", reason="memory_pressure")["done"] > 0
    assert "cuda:0: " in rig.host.health()["memory_pressure"][1]
