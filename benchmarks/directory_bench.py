"""`hybridkv bench directory`: what the directory costs with 10^6 blocks, beside 10^4. What each row means:
docs/performance.md."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hybridkv.benchmarks.bench import Bench, Setting, Step
from hybridkv.benchmarks.directory_rig import CHAIN, CPU, DirectoryRig, watched
from hybridkv.benchmarks.harness import Lap, interleaved, lap
from hybridkv.benchmarks.panels import Panel
from hybridkv.benchmarks.report import Better, Row
from hybridkv.migration.view import Thresholds
from hybridkv.service.own_process import spare_collections
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.replacement import NO_ROW

FEW, MANY = 10_000, 1_000_000
LOOKUP_KEYS = 2000
LOOKUPS = 20
CHAINS = 64
LOOKUP_LEAST, CHANGE_LEAST = 0.12, 0.4
HEAP_LIMIT_BYTES = 300.0
LOCK_LIMIT_MS = 10.0
COLLECTION_LIMIT_MS = 20.0
PASSES = 5


def speeds(setting: Setting, few: int = FEW, many: int = MANY) -> list[Row]:
    """Lookups, seals and evictions of the same work in a large directory, and in a small one as the floor."""
    rigs = {count: DirectoryRig(count) for count in (few, many)}
    for rig in rigs.values():
        rig.fill()
    work: dict[str, tuple[float, Callable[[DirectoryRig], Lap], int]] = {
        "random lookup": (LOOKUP_LEAST, _look_up, LOOKUP_KEYS * LOOKUPS),
        "lookup of unknown keys": (LOOKUP_LEAST, partial(_look_up, known=False), LOOKUP_KEYS * LOOKUPS),
        "seal": (CHANGE_LEAST, _seal, CHAINS * CHAIN),
        "evict": (CHANGE_LEAST, _evict, CHAINS * CHAIN),
    }
    timed = {f"{name} {count}": partial(run, rig) for count, rig in rigs.items() for name, (_, run, _) in work.items()}
    found = interleaved(timed, setting.pairs)
    return [
        _speed(
            speed_name(name, many), blocks / found[f"{name} {many}"].cpu_s, blocks / found[f"{name} {few}"].cpu_s, least
        )
        for name, (least, _, blocks) in work.items()
    ]


def speed_name(name: str, count: int) -> str:
    return f"{name} among {count:,} blocks"


def _speed(name: str, value: float, floor: float, least: float) -> Row:
    return Row(name, value / 1e6, "million/s", floor / 1e6, least)


def _look_up(rig: DirectoryRig, known: bool = True) -> Lap:
    """Batches of keys, as one call of a worker brings them."""
    wanted = [_keys(rig, known) for _ in range(LOOKUPS)]
    with lap() as taken:
        for keys in wanted:
            rows = rig.lookup(keys)
    if (rows != NO_ROW).all() != known:
        raise AssertionError("a lookup found what is not there, or not what is")
    return taken


def _keys(rig: DirectoryRig, known: bool) -> Keys:
    return rig.some_keys(LOOKUP_KEYS) if known else Keys(np.random.default_rng().bytes(16 * LOOKUP_KEYS), 16)


def _seal(rig: DirectoryRig) -> Lap:
    """New chains come into host memory; they go again untimed."""
    wanted = [rig.chain() for _ in range(CHAINS)]
    with lap() as taken:
        sealed = [rig.seal(keys, CPU) for keys in wanted]
    with rig.directory.lock:
        for rows in sealed:
            rig.directory.copies.remove(rows)
    return taken


def _evict(rig: DirectoryRig) -> Lap:
    """The coldest blocks of host memory go; as many new ones come untimed."""
    for keys in (rig.chain() for _ in range(CHAINS)):
        rig.seal(keys, CPU)
    with lap() as taken:
        gone = sum(rig.evict(CPU, CHAIN) for _ in range(CHAINS))
    if gone != CHAINS * CHAIN:
        raise AssertionError(f"{gone} blocks were evicted")
    return taken


# ------------------------------------------------------------------------------------------------ the rest


def restart(setting: Setting, count: int = MANY) -> list[Row]:
    """All blocks become known in one call, as at a start that finds them on disk."""
    taken = []
    for _ in range(2 if setting.pairs > 1 else 1):
        rig = DirectoryRig(count)
        chains = [rig.chain() for _ in range(-(-count // CHAIN))]
        keys = [key for chain in chains for key in chain]
        parents = [key for chain in chains for key in (b"", *chain[:-1])]
        zeros, times = [0] * len(keys), [1.0] * len(keys)
        with lap() as one:
            rig.directory.restore(rig.space, keys, parents, zeros, zeros, times)
        taken.append(one.cpu_s)
    return [Row(f"restart: {count:,} blocks found on disk become known", min(taken), "s", better=Better.LOWER)]


def planning(setting: Setting, count: int = MANY) -> list[Row]:
    """The longest hold of the directory's lock in passes of the planner, at rest and with all there is to do."""
    rig = DirectoryRig(count)
    rig.fill()
    rig.clock.advance(1000.0)
    spare_collections()  # as in a daemon
    rest = Thresholds(high_watermark=0.999, low_watermark=0.99, idle_timeout_s=1e9)
    busy = Thresholds(high_watermark=0.02, low_watermark=0.01, idle_timeout_s=1.0)
    rows = []
    for name, thresholds in (("at rest", rest), ("moving all it may", busy)):
        background = rig.background(thresholds)
        with watched(rig.directory) as held:
            for _ in range(min(PASSES, setting.pairs)):
                rig.directory.accesses.touch(rig.lookup(rig.some_keys(LOOKUP_KEYS)))
                background.run_once()
        worst = max(held) * 1e3
        name = f"planning pass {name}, {count:,} blocks: longest hold of the lock"
        rows.append(_low(name, worst, "ms", LOCK_LIMIT_MS))
    gc.unfreeze()
    return rows


def heap(_setting: Setting, few: int = FEW, many: int = MANY) -> list[Row]:
    """A process of its own says what the blocks take, and how long its collections last."""
    small, large = _child(few), _child(many)
    return [
        _low(f"process heap for each of {many:,} blocks", large["bytes_per_block"], "bytes", HEAP_LIMIT_BYTES),
        _low(f"process heap for each of {few:,} blocks", small["bytes_per_block"], "bytes", None),
        _low(f"longest garbage collection, {many:,} blocks", large["collection_ms"], "ms", COLLECTION_LIMIT_MS),
        _low("longest garbage collection, no blocks", large["collection_before_ms"], "ms", None),
        _low(f"slowest seal and evict of {CHAIN} blocks, {many:,} blocks", large["slowest_seal_ms"], "ms", None),
        _low(f"slowest seal and evict of {CHAIN} blocks, {few:,} blocks", small["slowest_seal_ms"], "ms", None),
    ]


def _low(name: str, value: float, unit: str, target: float | None) -> Row:
    return Row(name, value, unit, None, target, Better.LOWER)


def _child(count: int) -> dict[str, float]:
    command: Sequence[str] = [sys.executable, "-m", "hybridkv.benchmarks.directory_child", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


_NAMES = ("random lookup", "lookup of unknown keys", "seal", "evict")
BENCH = Bench(
    "directory",
    "hybridkv bench directory",
    (
        Step("speeds", speeds),
        Step("restart", restart),
        Step("planning", planning),
        Step("heap and collections", heap),
    ),
    (
        Panel(
            f"With {MANY:,} blocks (dashed: with {FEW:,})",
            "million/s",
            list(_NAMES),
            {"directory": [speed_name(name, MANY) for name in _NAMES]},
        ),
    ),
)
