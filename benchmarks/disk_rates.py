"""How fast the lanes to and from the disk tier are, beside plain files on the same file system."""

from contextlib import ExitStack
from pathlib import Path

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, interleaved
from hybridkv.benchmarks.lane_floors import PlainFile, forget, random_copy
from hybridkv.benchmarks.lane_rates import DEFAULT_BATCH, SMALL_BATCH, lane_name, processor_row, size_text
from hybridkv.benchmarks.lane_rig import KIB, MIB, LaneRig, config_for
from hybridkv.benchmarks.report import Row
from hybridkv.tiers.errors import InternalError
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Tier

SET_BYTES = 32 * MIB
TIER_BYTES = 4096 * MIB
"""The cap of the disk tier: a small tier's segments and transactions are small as well. Nothing of it is allocated ahead."""
WRITE, READ = "cpu→disk", "disk→cpu"
LEAST_WRITTEN = 0.7
LEAST_CACHED = {16 * KIB: 0.2, 64 * KIB: 0.4}
LEAST_CACHED_OTHERS = 0.6
LEAST_COLD = 0.8
CACHED, COLD, PAGE_CACHE = "cached", "cold", "cached, beside preadv of a plain file"


class _Ground:
    """A rig with a disk tier. Each write is of new blocks; each read brings up what was written last, and drops it."""

    def __init__(self, setting: Setting, block_bytes: int, set_bytes: int, batch_bytes: int) -> None:
        self.count = set_bytes // block_bytes
        self._disk = setting.folder / "disk"
        config = config_for(
            setting.folder,
            cpu_bytes=max(4 * set_bytes, 32 * block_bytes),
            disk_bytes=max(TIER_BYTES, 3 * (setting.pairs + 2) * set_bytes),
            migration__background_bytes_per_s=0,
            migration__batch_bytes=batch_bytes,
        )
        self.rig = LaneRig(config, block_bytes)
        self._written: Rows | None = None
        self.write()

    def write(self) -> Lap:
        self._written = self.rig.write(self.count, Tier.CPU)
        return self.rig.demote(self._written, self.rig.cpu)

    def read(self) -> Lap:
        if self._written is None:
            raise InternalError("nothing was written")
        self.rig.make_room(self.rig.cpu, self.count)
        taken = self.rig.promote(self._written, self.rig.cpu)
        self.rig.drop(self._written, self.rig.cpu)
        return taken

    def read_cold(self) -> Lap:
        forget(sorted(self._disk.rglob("data.mdb")))
        return self.read()

    @property
    def shm(self) -> Path:
        path = self.rig.host.memory.cpu.region.path
        assert path is not None
        return path.parent


def written(setting: Setting, block_bytes: int, set_bytes: int = SET_BYTES) -> list[Row]:
    """Writing: durable at its end, checksums verified on the way."""
    ground = _Ground(setting, block_bytes, set_bytes, DEFAULT_BATCH)
    plain = PlainFile(setting.folder / "plain", block_bytes, ground.count)
    with ground.rig:
        laps = interleaved({"floor": plain.write, WRITE: ground.write}, setting.pairs)
    subject, floor = laps[WRITE], laps["floor"]
    name = lane_name(WRITE, block_bytes)
    return [
        Row(name, subject.gb_per_s(set_bytes), "GB/s", floor.gb_per_s(set_bytes), LEAST_WRITTEN),
        processor_row(f"{WRITE}, {size_text(block_bytes)} blocks, processor time", subject, floor, set_bytes),
    ]


def written_in_small_batches(setting: Setting, block_bytes: int, set_bytes: int = SET_BYTES) -> list[Row]:
    """Writing with `migration.batch_bytes` at 1 MiB, beside a file that is synced as often."""
    ground = _Ground(setting, block_bytes, set_bytes, SMALL_BATCH)
    plain = PlainFile(setting.folder / "plain", block_bytes, ground.count)
    with ground.rig:
        laps = interleaved({"floor": lambda: plain.write(SMALL_BATCH), WRITE: ground.write}, setting.pairs)
    name = lane_name(WRITE, block_bytes, "batches of 1 MiB")
    return [Row(name, laps[WRITE].gb_per_s(set_bytes), "GB/s", laps["floor"].gb_per_s(set_bytes))]


def read(setting: Setting, block_bytes: int, set_bytes: int = SET_BYTES) -> list[Row]:
    """Reading, every checksum verified: from the page cache, and cold."""
    ground = _Ground(setting, block_bytes, set_bytes, DEFAULT_BATCH)
    plain = PlainFile(setting.folder / "plain", block_bytes, ground.count)
    plain.write()
    with ExitStack() as stack:
        stack.enter_context(ground.rig)
        copy = stack.enter_context(random_copy(ground.shm, block_bytes, ground.count))
        warm = interleaved({"copy": copy.run, "pread": plain.read, READ: ground.read}, setting.pairs)
        cold = interleaved(
            {"pread": plain.read_cold, "mapped": plain.read_mapped_cold, READ: ground.read_cold}, setting.pairs
        )
    target = LEAST_CACHED.get(block_bytes, LEAST_CACHED_OTHERS)
    rate = warm[READ].gb_per_s(set_bytes)
    best = max(cold["pread"].gb_per_s(set_bytes), cold["mapped"].gb_per_s(set_bytes))
    return [
        Row(lane_name(READ, block_bytes, CACHED), rate, "GB/s", warm["copy"].gb_per_s(set_bytes), target),
        Row(lane_name(READ, block_bytes, PAGE_CACHE), rate, "GB/s", warm["pread"].gb_per_s(set_bytes)),
        Row(lane_name(READ, block_bytes, COLD), cold[READ].gb_per_s(set_bytes), "GB/s", best, LEAST_COLD),
        processor_row(f"{READ}, {size_text(block_bytes)} blocks, processor time", warm[READ], warm["copy"], set_bytes),
    ]
