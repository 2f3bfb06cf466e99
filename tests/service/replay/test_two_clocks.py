"""One code, two clocks: a replay tells exactly what a real host, with real bytes and real lanes, serves of the same trace."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridkv.benchmarks.content import Content
from hybridkv.migration.acquires import AcquireReply
from hybridkv.migration.reserves import ReserveReply
from hybridkv.migration.simulate import Request
from hybridkv.service.config import Config, load_config
from hybridkv.service.facade import Host
from hybridkv.service.replay.host import SimulatedHost
from hybridkv.service.replay.worker import Worker
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, ReserveOutcome
from tests.migration.samples import sample

BLOCK = 4096
REQUESTS = 90
CONTENT = Content(BLOCK)
SPACE = Namespace(model="trace", layout=BlockLayout.opaque(BLOCK, 16, "trace"))

OFF = {
    "gpu.high_watermark": 1.0,
    "gpu.low_watermark": 1.0,
    "gpu.idle_timeout_s": 0,
    "cpu.high_watermark": 1.0,
    "cpu.low_watermark": 1.0,
    "cpu.idle_timeout_s": 0,
    "disk.high_watermark": 1.0,
    "disk.low_watermark": 1.0,
    "migration.promote_at_accesses": 0,
    "migration.chain_prefetch_max_blocks": 0,
    "migration.host_pressure_high": 1.0,
    "migration.lane_slots_count": 4,
}
GPU = {"gpu.devices": ["host:0"], "gpu.capacity_bytes": 256 * BLOCK}
CPU = {"cpu.capacity_bytes": 512 * BLOCK}
DISK = {"disk.path": "disk", "disk.capacity_bytes": 1200 * BLOCK * 2}
ALL = {**OFF, **GPU, **CPU, **DISK}
DEFAULTS = {**GPU, **CPU, **DISK, "migration.host_pressure_high": 1.0}

CONFIGS: dict[str, dict[str, object]] = {
    "all defaults": DEFAULTS,
    "nothing but room": ALL,
    "cpu only": {**OFF, "cpu.capacity_bytes": 700 * BLOCK},
    "gpu and cpu": {**OFF, **GPU, **CPU},
    "cpu and disk": {**OFF, **CPU, **DISK, "disk.capacity_bytes": "32MiB"},  # the files never come near their cap
    "idle": {**ALL, "gpu.idle_timeout_s": 3, "cpu.idle_timeout_s": 10},
    "watermarks": {
        **ALL, "gpu.high_watermark": 0.8, "gpu.low_watermark": 0.5, "cpu.high_watermark": 0.9, "cpu.low_watermark": 0.6,
        "disk.high_watermark": 0.7, "disk.low_watermark": 0.6,
    },
    "few accesses": {**ALL, "gpu.demote_below_accesses": 2, "gpu.min_residency_s": 2, "cpu.demote_below_accesses": 3},
    "promotion": {**ALL, "migration.promote_at_accesses": 2, "gpu.high_watermark": 0.9, "gpu.low_watermark": 0.7,
                  "gpu.idle_timeout_s": 5},
    "admission": {**ALL, "disk.admit_min_accesses": 2},
    "policies": {**ALL, "gpu.policy": "rhq", "cpu.policy": "arc", "disk.policy": "s3fifo"},
    "other policies": {**ALL, "gpu.policy": "fifo", "cpu.policy": "gdsf", "disk.policy": "clock"},
    "yet others": {**DEFAULTS, "gpu.policy": "lfu", "cpu.policy": "rhq", "disk.policy": "lru"},
    "prefetch": {**ALL, "migration.chain_prefetch_max_blocks": 32},
    "two devices": {**ALL, "gpu.devices": ["host:0", "host:1"], "gpu.capacity_bytes": 128 * BLOCK},
    "two short calls": {**ALL, "limits.keys_per_call_count": 100},
}  # fmt: skip


class VerifyingWorker(Worker):
    """Writes real bytes, and reads every block it is leased."""

    def acquired(self, keys: Keys, reply: AcquireReply) -> None:
        for at in np.flatnonzero(reply.states == Outcome.HIT).tolist():
            assert CONTENT.verify(keys[at], self._memory(reply, at))

    def reserved(self, keys: Keys, reply: ReserveReply) -> None:
        for at in np.flatnonzero(reply.outcomes == ReserveOutcome.NEW).tolist():
            CONTENT.fill(keys[at], self._memory(reply, at, writable=True))

    def _memory(self, reply: AcquireReply | ReserveReply, at: int, *, writable: bool = False) -> NDArray[np.uint8]:
        slot = reply.slots[at]
        start = int(slot["offset"])
        return self.host.pool_array(int(slot["pool"]), writable)[start : start + BLOCK]


def config_of(overrides: dict[str, object], folder: Path) -> Config:
    where: dict[str, object] = {"cpu.shm_dir": str(folder), "daemon.socket": f"unix://{folder}/kv.sock"}
    if "disk.path" in overrides:
        where["disk.path"] = str(folder / "disk")
    return load_config(env={}, overrides={**overrides, **where})


def served(worker: Worker, requests: Sequence[Request]) -> dict[str, object]:
    """Everything that must be equal."""
    by_request = [worker.serve(request) for request in requests]
    host = worker.host
    assert host.check() == []
    return {
        "hits": by_request,
        "by_tier": dict(worker.hits),
        "new": worker.new_blocks,
        "moves": {
            (row["from"], row["to"], row["reason"], row["outcome"]): row["count"] for row in host.migrator.moves.rows()
        },
        "resident": {
            str(book.id): sorted(
                host.directory.blocks.keys[row]
                for row in np.flatnonzero(host.directory.blocks.slot[book.index] != NO_SLOT).tolist()
            )
            for book in host.directory.books
        },
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_a_replay_equals_a_real_host(name: str, tmp_path: Path) -> None:
    config = config_of(CONFIGS[name], tmp_path)
    requests = sample("taubench_first150")[:REQUESTS]
    clock = ManualClock()
    host = Host(config, clock=clock, start_loop=False)
    try:
        real = served(VerifyingWorker(host, clock, SPACE), requests)
    finally:
        host.close()
    clock = ManualClock()
    simulated = served(Worker(SimulatedHost(config, clock), clock, SPACE), requests)
    assert simulated == real
    assert 0 < sum(real["hits"]) < sum(len(request.chain) for request in requests)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["gpu and cpu", "watermarks", "admission"])
def test_lanes_side_by_side_serve_the_same_hits(name: str, tmp_path: Path) -> None:
    """As in a daemon. Which transfer ends first is up to the threads here, so moves and places are not held together."""
    config = config_of(CONFIGS[name], tmp_path)
    requests = sample("taubench_first150")[:REQUESTS]
    clock = ManualClock()
    host = Host(config, clock=clock, start_loop=False)
    try:
        real = served(VerifyingWorker(host, clock, SPACE, in_turn=False), requests)
    finally:
        host.close()
    clock = ManualClock()
    simulated = served(Worker(SimulatedHost(config, clock), clock, SPACE), requests)
    assert simulated["hits"] == real["hits"]
    assert simulated["new"] == real["new"]
    assert sum(real["hits"]) < 13_578, "evictions cost hits here: the comparison says something"  # type: ignore[call-overload]
