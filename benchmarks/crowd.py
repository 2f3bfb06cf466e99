"""Several workers at once: what all of them read together, and how evenly small calls are answered."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import quantile
from hybridkv.benchmarks.lane_rig import KIB, MIB
from hybridkv.benchmarks.report import Better, Row
from hybridkv.benchmarks.rpc_calls import ACQUIRE, fill, ground
from hybridkv.tiers.errors import UnavailableError

FEW, MANY = 2, 8
BLOCK_BYTES = 256 * KIB
SMALL_BYTES = 4 * KIB
BLOCKS = 512
BATCH = 64
ROUND_S = 0.4
CROWD_LEAST, P99_MOST = 0.8, 4.0
STOP_S = 60.0
CROWD_NAME = f"leased reads of {MANY} workers at once, {BATCH} × 256 KiB"


def p99_name(workers: int) -> str:
    return f"p99 of {ACQUIRE}, {'alone' if workers == 1 else f'{workers} workers at once'}"


class _Worker:
    """One process of `crowd_peer`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "hybridkv.benchmarks.crowd_peer", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def line(self) -> str:
        assert self._process.stdout is not None
        found = self._process.stdout.readline()
        if not found:
            raise UnavailableError(f"a worker of the benchmark ended with {self._process.wait(STOP_S)}")
        return found

    def stop(self) -> None:
        self._process.communicate(timeout=STOP_S)


@contextmanager
def _workers(address: str, block_bytes: int, blocks: int, batch: int, count: int) -> Iterator[list[_Worker]]:
    with ExitStack() as stack:
        crowd = []
        for seed in range(count):
            crowd.append(_Worker([address, *map(str, (block_bytes, blocks, batch, seed))]))
            stack.callback(crowd[-1].stop)
        for worker in crowd:
            worker.line()
        yield crowd


def _round(crowd: Sequence[_Worker], seconds: float) -> list[list[float]]:
    """What each took for each of its calls, all at once."""
    for worker in crowd:
        worker.start(seconds)
    return [json.loads(worker.line()) for worker in crowd]


def reads(setting: Setting, blocks: int = BLOCKS, batch: int = BATCH, seconds: float = ROUND_S) -> list[Row]:
    """Rounds of few workers and of many take turns on one daemon; the sum of their rates."""
    rates: dict[int, list[float]] = {FEW: [], MANY: []}
    with (
        ground(setting, BLOCK_BYTES, blocks * BLOCK_BYTES * 5 // 4 + 64 * MIB) as on,
        _workers(on.address, BLOCK_BYTES, blocks, batch, MANY) as crowd,
    ):
        fill(on.kv, blocks)
        for number in range(setting.pairs + 1):
            for count in (FEW, MANY) if number % 2 == 0 else (MANY, FEW):
                taken = _round(crowd[:count], seconds)
                if number:
                    rates[count].append(sum(len(calls) / sum(calls) for calls in taken))
    few, many = (median(rates[count]) * batch * BLOCK_BYTES / 1e9 for count in (FEW, MANY))
    return [Row(CROWD_NAME, many, "GB/s", few, CROWD_LEAST)]


def small_calls(setting: Setting, seconds: float = ROUND_S) -> list[Row]:
    """The tail of one block's acquire and release beside its median, of one worker and of many; medians over the rounds."""
    taken: dict[int, list[list[float]]] = {1: [], MANY: []}
    with (
        ground(setting, SMALL_BYTES, 64 * MIB) as on,
        _workers(on.address, SMALL_BYTES, MANY, 1, MANY) as crowd,
    ):
        fill(on.kv, MANY)
        for number in range(setting.pairs + 1):
            for count, rounds in taken.items():
                calls = [one for calls in _round(crowd[:count], seconds) for one in calls]
                if number:
                    rounds.append(calls)
    return [
        Row(
            p99_name(count),
            median(quantile(calls, 0.99) for calls in rounds) * 1e6,
            "µs",
            median(quantile(calls, 0.5) for calls in rounds) * 1e6,
            P99_MOST,
            Better.LOWER,
        )
        for count, rounds in taken.items()
    ]
