"""What background moves do to those who work meanwhile: acquires of resident blocks, and promotions on demand."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Self

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.foreground_peer import acquire_times
from hybridkv.benchmarks.harness import quantile
from hybridkv.benchmarks.lane_rig import KIB, MIB, WAIT_S, LaneRig, config_for
from hybridkv.benchmarks.report import Better, Row
from hybridkv.benchmarks.storm import LEAST_STORM_GB_PER_S, Storm
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Priority, Tier

BLOCK_BYTES = 256 * KIB
STORM_BYTES = 128 * MIB
POOL_BYTES = 512 * MIB
CALLS = 400
PROMOTIONS = 40
P99_LIMIT = 3.0
QUEUE_SHARE_LEAST = 0.8
ACQUIRE_HERE, ACQUIRE_WORKER = "acquire of a resident block, in process", "acquire of a resident block, by a worker"
STORM = "background storm"


class Peer:
    """A worker process that acquires one resident block again and again when told to."""

    def __init__(self, address: str, number: int) -> None:
        command = [sys.executable, "-m", "hybridkv.benchmarks.foreground_peer", address, str(BLOCK_BYTES), str(number)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def times(self, calls: int) -> list[float]:
        """Seconds of each acquire and release."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UnavailableError("the worker process has ended")
        taken: list[float] = json.loads(line)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()  # its standard input is closed, and it ends
        if self._process.wait(WAIT_S):
            raise UnavailableError(f"the worker process ended with {self._process.returncode}")


@dataclass(frozen=True, slots=True)
class _Ground:
    """A daemon with default caps. `storm`: blocks on the device for a storm; `resident`, `promoted`: one block each, in
    host memory."""

    rig: LaneRig
    address: str
    storm: Rows
    resident: Rows
    promoted: Rows
    resident_number: int


@contextmanager
def _ground(setting: Setting, *, disk: bool = False) -> Iterator[_Ground]:
    config = config_for(
        setting.folder,
        gpu_bytes=POOL_BYTES,
        cpu_bytes=POOL_BYTES,
        disk_bytes=POOL_BYTES if disk else 0,
    )
    with DaemonThread(config) as daemon, LaneRig(config, BLOCK_BYTES, host=daemon.host) as rig:
        rig.make_room(rig.cpu, STORM_BYTES // BLOCK_BYTES + 64)
        storm = rig.write(STORM_BYTES // BLOCK_BYTES, Tier.GPU)
        resident, promoted = rig.write(1, Tier.CPU), rig.write(1, Tier.CPU)
        yield _Ground(rig, daemon.address, storm, resident, promoted, STORM_BYTES // BLOCK_BYTES)


@dataclass(slots=True)
class _Pairs:
    """Quantiles of idle and stormy rounds, and what the storms achieved."""

    idle: list[list[float]]
    stormy: list[list[float]]
    storms: list[float]

    def rows(self, name: str, share: float, target: float | None) -> list[Row]:
        """The median over the rounds of the quantile: alone, and under the storm beside it."""
        idle, stormy = (median(quantile(times, share) for times in rounds) for rounds in (self.idle, self.stormy))
        what = f"{name}, p{share * 100:.0f}"
        return [
            Row(f"{what}, idle", idle * 1e3, "ms", better=Better.LOWER),
            Row(f"{what}, under a {STORM}", stormy * 1e3, "ms", idle * 1e3, target, Better.LOWER),
        ]

    def storm_row(self, name: str) -> Row:
        return Row(f"{STORM} beside: {name}", median(self.storms), "GB/s", None, LEAST_STORM_GB_PER_S)


def _paired(ground: _Ground, pairs: int, times: Callable[[], list[float]]) -> _Pairs:
    """Idle and stormy rounds in turn, after one of each that does not count."""
    found = _Pairs([], [], [])
    for number in range(pairs + 1):
        idle = times()
        with Storm(ground.rig, ground.storm) as storm:
            stormy = times()
        ground.rig.settle()
        if number:
            found.idle.append(idle)
            found.stormy.append(stormy)
            found.storms.append(storm.gb_per_s)
    return found


def acquires(setting: Setting, calls: int = CALLS) -> list[Row]:
    """Acquire and release of a resident block: in the daemon's process, and by a worker of its own process."""
    rows: list[Row] = []
    with ExitStack() as stack:
        ground = stack.enter_context(_ground(setting))
        wanted = ground.rig.keys_of(ground.resident)
        host, session = ground.rig.host, ground.rig.session
        peer = stack.enter_context(Peer(ground.address, ground.resident_number))

        def here() -> None:
            host.release(session, host.acquire(session, wanted).reply().lease)

        by_worker = _paired(ground, setting.pairs, lambda: peer.times(calls))
        in_process = _paired(ground, setting.pairs, lambda: acquire_times(here, 4 * calls))
    for name, found in ((ACQUIRE_WORKER, by_worker), (ACQUIRE_HERE, in_process)):
        rows += found.rows(name, 0.5, None) + found.rows(name, 0.99, P99_LIMIT) + [found.storm_row(name)]
    return rows


def promotions(setting: Setting, times: int = PROMOTIONS) -> list[Row]:
    """A promotion that somebody waits for, alone and under a storm: from host memory, and from disk (cached)."""
    rows: list[Row] = []
    with _ground(setting, disk=True) as ground:
        rig = ground.rig
        up = _paired(ground, setting.pairs, lambda: _promotion_times(rig, ground.promoted, Tier.GPU, times))
        rig.demote(ground.promoted, rig.cpu)
        disk = _paired(ground, setting.pairs, lambda: _promotion_times(rig, ground.promoted, Tier.CPU, times))
    for name, found in (("promotion on demand cpu→gpu", up), ("promotion on demand disk→cpu", disk)):
        rows += found.rows(name, 0.5, None) + found.rows(name, 0.99, None) + [found.storm_row(name)]
    return rows


def _promotion_times(rig: LaneRig, rows: Rows, tier: Tier, times: int) -> list[float]:
    wanted, pool = rig.keys_of(rows), rig.gpu if tier is Tier.GPU else rig.cpu
    taken = []
    for _ in range(times):
        taken.append(rig.demand(wanted, tier).wall_s)
        rig.forget_copies(rows, pool)
    return taken


def overtaking(setting: Setting) -> list[Row]:
    """How much of a full background queue is still queued when a demand that came after it is served: one for another
    block, and one for the block that stands last in the queue."""
    other: list[float] = []
    last: list[float] = []
    with _ground(setting) as ground:
        for _ in range(setting.pairs):
            other.append(_share_left(ground, ground.promoted, Tier.GPU))
            ground.rig.forget_copies(ground.promoted, ground.rig.gpu)
            last.append(_share_left(ground, ground.storm[-1:], Tier.CPU))
    name = "background queue left when a demand behind it was served"
    return [
        Row(f"{name}: another block", median(other), "share", None, QUEUE_SHARE_LEAST),
        Row(f"{name}: the last in the queue", median(last), "share", None, QUEUE_SHARE_LEAST),
    ]


def _share_left(ground: _Ground, wanted: Rows, tier: Tier) -> float:
    """Afterwards the storm's blocks lie on the device only, as before."""
    rig = ground.rig
    queue = rig.begin_demotion(ground.storm, rig.gpu, Priority.BACKGROUND)
    rig.demand(rig.keys_of(wanted), tier)
    left = queue.queued() / queue.total
    queue.wait()
    rig.settle()
    rig.promote(ground.storm[rig.slots(ground.storm, rig.gpu) == NO_SLOT], rig.gpu)
    rig.drop(ground.storm, rig.cpu)
    return left
