"""Watermarks, policies and capacities change while workers write and read: blocks move as told and none is lost."""

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hybridkv.service.metrics import StatsCollector
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, HIT, Rig, key

DISK = 64 << 20
WORKERS, BLOCKS_EACH = 3, 30
CHANGES: list[dict[str, object]] = [
    {"cpu.capacity_bytes": 12 * BLOCK, "cpu.policy": "lfu"},
    {"cpu.high_watermark": 0.6, "cpu.low_watermark": 0.4},
    {"gpu.capacity_bytes": 8 * BLOCK, "gpu.policy": "rhq"},
    {"cpu.capacity_bytes": 32 * BLOCK, "cpu.policy": "arc", "disk.policy": "s3fifo"},
    {"cpu.high_watermark": 0.9, "cpu.low_watermark": 0.8, "migration.batch_bytes": "32KiB"},
    {"gpu.capacity_bytes": 16 * BLOCK, "gpu.policy": "clock", "cpu.policy": "gdsf"},
]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, gpus=1, cpu_blocks=32, disk_bytes=DISK, migration__lane_slots_count=1)
    yield rig
    rig.free_everything()
    rig.close()


class Load:
    """Workers that write blocks of their own and read any that were written, verifying every byte."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.written: list[int] = []
        self.rounds = 0
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(number,)) for number in range(WORKERS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S * 6)

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _guarded(self, number: int) -> None:
        try:
            self._work(number)
        except BaseException as failure:  # told to the test's own thread
            self.failures.append(failure)

    def _work(self, number: int) -> None:
        worker, random = self.rig.attach(), Random(number)
        for n in range(BLOCKS_EACH):
            block = 1000 * number + n
            worker.put([block], random.choice([Tier.CPU, Tier.GPU]))
            self.written.append(block)
            for read in random.sample(self.written, min(2, len(self.written))):
                assert worker.read([read]) == [HIT], f"block {read} is lost"
            self.rounds += 1


def test_nothing_is_lost_and_everything_is_told(rig: Rig) -> None:
    applied = 0
    with Load(rig) as load:
        while load.running:
            if load.rounds > (applied + 1) * WORKERS * BLOCKS_EACH // (len(CHANGES) + 1) and applied < len(CHANGES):
                rig.host.update_config(CHANGES[applied])
                applied += 1
            rig.host.tick()
            assert rig.host.check() == []
    assert load.failures == []
    assert applied == len(CHANGES)
    for _ in range(4):
        rig.host.tick()
        rig.settle()
    assert_as_told(rig)
    assert all(rig.worker.read([block]) == [HIT] for block in sorted(load.written))
    assert_explained(rig, load.written)


def assert_as_told(rig: Rig) -> None:
    stats = rig.host.stats()
    assert stats["config_version"] == 1 + len(CHANGES)
    assert stats["policies"] == {"gpu0": "clock", "cpu": "gdsf", "disk": "s3fifo"}
    assert rig.used("cpu") <= 0.9 * 32 * BLOCK
    for name, blocks in (("gpu0", 16), ("cpu", 32)):
        tier = stats["tiers"][name]  # type: ignore[index]
        assert (tier["capacity_bytes"], tier["excess_bytes"]) == (blocks * BLOCK, 0)
    assert sum(rig.moves(reason="resize").values()) > 0
    assert sum(rig.moves(reason="watermark").values()) > 0
    metrics = exposed(stats)
    assert f"hybridkv_config_version {1 + len(CHANGES)}.0" in metrics
    for reason in ("resize", "watermark"):
        assert any(line.startswith("hybridkv_moves_total") and f'reason="{reason}"' in line for line in metrics)


def exposed(stats: dict[str, Any]) -> list[str]:
    """The lines of the metrics endpoint."""
    registry = CollectorRegistry()
    registry.register(StatsCollector(lambda: stats))
    return generate_latest(registry).decode().splitlines()


def assert_explained(rig: Rig, blocks: list[int]) -> None:
    """Each block can be explained, and the history tells of the moves that the changes caused."""
    reasons = set()
    for block in blocks:
        (found,) = rig.host.explain(key(block))
        assert found["state"] == "sealed"
        reasons |= {move["reason"] for move in found["history"]}
    assert {"resize", "watermark", "demand"} <= reasons
