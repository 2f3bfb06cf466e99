"""How fast the lanes between host memory and the host device are, beside a random-order copy of the same blocks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, Laps, interleaved
from hybridkv.benchmarks.lane_floors import random_copy
from hybridkv.benchmarks.lane_rig import KIB, MIB, LaneRig, config_for
from hybridkv.benchmarks.report import Better, Row
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Priority, Tier

BLOCK_BYTES = (16 * KIB, 64 * KIB, 256 * KIB, 2 * MIB, 8 * MIB)
SET_BYTES = 64 * MIB
DEFAULT_BATCH = 16 * MIB
SMALL_BATCH = MIB
SHM = Path("/dev/shm")
DOWN, UP = "gpu→cpu", "cpu→gpu"
LEAST = {16 * KIB: 0.4}
LEAST_OTHERS = 0.7


def size_text(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def lane_name(lane: str, block_bytes: int, how: str = "demand") -> str:
    return f"{lane}, {size_text(block_bytes)} blocks, {how}"


def cpu_name(lane: str, block_bytes: int) -> str:
    return f"{lane}, {size_text(block_bytes)} blocks, processor time"


@dataclass(frozen=True, slots=True)
class _Ground:
    """A rig whose blocks lie on the device only between two laps."""

    rig: LaneRig
    rows: Rows

    def down(self, priority: Priority) -> Callable[[], Lap]:
        def run() -> Lap:
            taken = self.rig.demote(self.rows, self.rig.gpu, priority)
            self.rig.promote(self.rows, self.rig.gpu)
            self.rig.drop(self.rows, self.rig.cpu)
            return taken

        return run

    def up(self, *, demand: bool) -> Callable[[], Lap]:
        wanted = self.rig.keys_of(self.rows)

        def run() -> Lap:
            self.rig.demote(self.rows, self.rig.gpu)
            self.rig.settle()
            taken = self.rig.demand(wanted, Tier.GPU) if demand else self.rig.promote(self.rows, self.rig.gpu)
            self.rig.drop(self.rows, self.rig.cpu)
            return taken

        return run


@contextmanager
def _ground(folder: Path, block_bytes: int, set_bytes: int, batch_bytes: int) -> Iterator[_Ground]:
    pool = max(4 * set_bytes, 32 * block_bytes)
    config = config_for(
        folder,
        gpu_bytes=pool,
        cpu_bytes=pool,
        migration__background_bytes_per_s=0,
        migration__batch_bytes=batch_bytes,
    )
    with LaneRig(config, block_bytes) as rig:
        count = set_bytes // block_bytes
        rows = rig.write(count, Tier.GPU)
        rig.make_room(rig.cpu, count)
        yield _Ground(rig, rows)


def rates(setting: Setting, block_bytes: int, set_bytes: int = SET_BYTES) -> list[Row]:
    """Both lanes with default batches, as demand and in the background, with what processor time they take."""
    with ExitStack() as stack:
        ground = stack.enter_context(_ground(setting.folder, block_bytes, set_bytes, DEFAULT_BATCH))
        shm = ground.rig.host.memory.cpu.region.path
        assert shm is not None
        floor = stack.enter_context(random_copy(shm.parent, block_bytes, set_bytes // block_bytes))
        laps = interleaved(
            {
                "floor": floor.run,
                f"{DOWN} demand": ground.down(Priority.DEMAND),
                f"{DOWN} background": ground.down(Priority.BACKGROUND),
                f"{UP} demand": ground.up(demand=True),
                f"{UP} background": ground.up(demand=False),
            },
            setting.pairs,
        )
    target = LEAST.get(block_bytes, LEAST_OTHERS)
    rows = [
        _rate(lane_name(lane, block_bytes, how), laps[f"{lane} {how}"], laps["floor"], set_bytes, target)
        for lane in (DOWN, UP)
        for how in ("demand", "background")
    ]
    return rows + [
        processor_row(cpu_name(lane, block_bytes), laps[f"{lane} demand"], laps["floor"], set_bytes)
        for lane in (DOWN, UP)
    ]


def small_batches(setting: Setting, block_bytes: int, set_bytes: int = SET_BYTES) -> list[Row]:
    """The same with `migration.batch_bytes` at 1 MiB: what a batch costs."""
    with ExitStack() as stack:
        ground = stack.enter_context(_ground(setting.folder, block_bytes, set_bytes, SMALL_BATCH))
        shm = ground.rig.host.memory.cpu.region.path
        assert shm is not None
        floor = stack.enter_context(random_copy(shm.parent, block_bytes, set_bytes // block_bytes))
        laps = interleaved(
            {"floor": floor.run, DOWN: ground.down(Priority.DEMAND), UP: ground.up(demand=True)}, setting.pairs
        )
    how = "demand, batches of 1 MiB"
    return [_rate(lane_name(lane, block_bytes, how), laps[lane], laps["floor"], set_bytes, None) for lane in (DOWN, UP)]


def _rate(name: str, subject: Laps, floor: Laps, nbytes: int, target: float | None) -> Row:
    return Row(name, subject.gb_per_s(nbytes), "GB/s", floor.gb_per_s(nbytes), target)


def processor_row(name: str, subject: Laps, floor: Laps, nbytes: int) -> Row:
    """Processor time of the whole process for each GB moved; for information."""
    return Row(name, subject.cpu_s_per_gb(nbytes), "s/GB", floor.cpu_s_per_gb(nbytes), better=Better.LOWER)
