"""A working set just over its tier, used round and round: what hysteresis and cooldown save, and what demand costs."""

from collections.abc import Callable
from pathlib import Path

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, interleaved, lap
from hybridkv.benchmarks.lane_rig import KIB, LaneRig, config_for
from hybridkv.benchmarks.report import Better, Row
from hybridkv.service.facade import Host
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Tier

BLOCK_BYTES = 64 * KIB
TIER_BLOCKS = 1024
OVER = 1.1
UNDER = 0.9
BATCH = 32
SETTLING_S = 30
SECONDS = 30
TICK_S = 0.5
MOST_MOVES = 0.1
MOVES, DEMAND = "background moves per block access", "acquires in the tier"


def background(setting: Setting) -> list[Row]:
    """Accesses that ask for no tier, with the shipped marks: blocks the background pass moves for each access, once the
    first round is over. Simulated time: the figure is exact."""
    found = _moves_per_access(setting.folder / "thrash")
    return [Row(f"thrash: {MOVES}, working set {OVER}× the tier", found, "moves", None, MOST_MOVES, Better.LOWER)]


def demanded(setting: Setting, rounds: int = 1) -> list[Row]:
    """Acquires that insist on the tier, `BATCH` blocks each: blocks a second, beside a working set that fits."""
    with _rig(setting.folder / "over", OVER) as over, _rig(setting.folder / "under", UNDER) as under:
        subjects = {"over": _round(over, OVER, rounds), "floor": _round(under, UNDER, rounds)}
        laps = interleaved(subjects, setting.pairs)
    value = rounds * int(TIER_BLOCKS * OVER) / laps["over"].wall_s
    floor = rounds * int(TIER_BLOCKS * UNDER) / laps["floor"].wall_s
    return [Row(f"thrash: {DEMAND}, working set {OVER}× the tier", value, "blocks/s", floor)]


def _rig(folder: Path, share: float) -> LaneRig:
    folder.mkdir()
    room = 2 * TIER_BLOCKS * BLOCK_BYTES
    config = config_for(folder, gpu_bytes=TIER_BLOCKS * BLOCK_BYTES, cpu_bytes=room)
    rig = LaneRig(config, BLOCK_BYTES)
    rig.write(int(TIER_BLOCKS * share), Tier.CPU)
    return rig


def _round(rig: LaneRig, share: float, rounds: int) -> Callable[[], Lap]:
    wanted = _batches(rig, int(TIER_BLOCKS * share))

    def run() -> Lap:
        with lap() as taken:
            for _ in range(rounds):
                for keys in wanted:
                    rig.demand(keys, Tier.GPU)
        rig.settle()
        return taken

    return run


def _batches(rig: LaneRig, blocks: int) -> list[Keys]:
    rows = [rig.rows(range(at, min(at + BATCH, blocks))) for at in range(0, blocks, BATCH)]
    return [rig.keys_of(some) for some in rows]


def _moves_per_access(folder: Path) -> float:
    folder.mkdir()
    config = config_for(
        folder,
        gpu_bytes=TIER_BLOCKS * BLOCK_BYTES,
        cpu_bytes=2 * TIER_BLOCKS * BLOCK_BYTES,
        gpu__high_watermark=0.95,
        gpu__low_watermark=0.9,
        migration__promote_at_accesses=2,
        migration__cooldown_s=5.0,
        migration__background_bytes_per_s=0,
    )
    clock = ManualClock()
    host = Host(config, clock=clock, start_loop=False)
    with LaneRig(config, BLOCK_BYTES, host=host) as rig:
        blocks = int(TIER_BLOCKS * OVER)
        rig.write(blocks, Tier.CPU)
        wanted = _batches(rig, blocks)
        _simulate(rig, clock, wanted, SETTLING_S)
        before = _moved(rig)
        accesses = _simulate(rig, clock, wanted, SECONDS)
        moved = _moved(rig) - before
    host.close()
    return moved / accesses


def _simulate(rig: LaneRig, clock: ManualClock, wanted: list[Keys], seconds: float) -> int:
    """A batch in each half tick, round and round: how many blocks were accessed."""
    accesses = 0
    for step in range(int(seconds / TICK_S) * 2):
        keys = wanted[step % len(wanted)]
        lease = rig.host.acquire(rig.session, keys, independent=True).reply().lease
        rig.host.release(rig.session, lease)
        accesses += len(keys)
        clock.advance(TICK_S / 2)
        if step % 2:
            rig.host.tick()
            rig.settle()
    return accesses


def _moved(rig: LaneRig) -> int:
    return sum(int(row["count"]) for row in rig.migrator.moves.rows() if row["to"] != "none")
