"""What the demo runs on: how large its tiers are, and where their files lie."""

import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from hybridkv.benchmarks.demo_space import BLOCK_BYTES
from hybridkv.tiers.disk.sizing import capacity_blocks

GPU_SHARE, CPU_SHARE, DISK_SHARE = 0.10, 0.25, 0.60
"""Of the unique blocks of the workload."""

LANE_SLOTS = 16
EXTENTS = 16
_DISK_STEP_BYTES = 256 << 10
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Blocks that each tier is meant to hold, and the bytes that are configured for it.

    A mapped tier is 16 extents of whole blocks, so the GPU tier is rounded down to a multiple of 16 blocks. The CPU
    tier is rounded down likewise and gets the lanes' slots on top, which hold no resident block. The disk tier gets the
    bytes that its trees, its values' headers and the two batches kept free need beside the blocks.
    """

    unique_blocks: int
    gpu_blocks: int
    cpu_blocks: int
    disk_blocks: int
    gpu_bytes: int
    cpu_bytes: int
    disk_bytes: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def sizes_for(unique_blocks: int) -> Sizes:
    """Tiers for a workload of so many different blocks; an extent holds one block at least."""
    gpu, cpu = (max(1, int(unique_blocks * share) // EXTENTS) * EXTENTS for share in (GPU_SHARE, CPU_SHARE))
    disk = max(1, int(unique_blocks * DISK_SHARE))
    lanes = -(-LANE_SLOTS // EXTENTS) * EXTENTS
    return Sizes(unique_blocks, gpu, cpu, disk, gpu * BLOCK_BYTES, (cpu + lanes) * BLOCK_BYTES, _disk_bytes(disk))


def _disk_bytes(blocks: int) -> int:
    """The smallest capacity that holds `blocks`."""
    capacity = blocks * BLOCK_BYTES // _DISK_STEP_BYTES * _DISK_STEP_BYTES + (1 << 20)
    while capacity_blocks(capacity, BLOCK_BYTES) < blocks:
        capacity += _DISK_STEP_BYTES
    return capacity


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one run, removed at its end: `work` (socket, config, logs), `shm` and `disk` (the tiers' files)."""

    work: Path
    shm: Path
    disk: Path

    @property
    def address(self) -> str:
        return f"unix://{self.work}/kv.sock"

    def remove(self) -> None:
        for folder in (self.work, self.shm, self.disk):
            shutil.rmtree(folder, ignore_errors=True)


def make_places(sizes: Sizes) -> Places:
    """Fresh folders for a demo."""
    return fresh_places("demo", 2 * (sizes.gpu_bytes + sizes.cpu_bytes))


def fresh_places(name: str, memory_bytes: int) -> Places:
    """Fresh folders: `shm` on shared memory where that has so much room, `disk` on a real disk where there is one."""
    work = Path(tempfile.mkdtemp(prefix=f"hybridkv-{name}-"))
    roomy = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > memory_bytes
    shm = Path(tempfile.mkdtemp(prefix=f"hybridkv-{name}-", dir=_SHARED_MEMORY if roomy else None))
    on_disk = next((place for place in (Path(tempfile.gettempdir()), Path.cwd()) if not _is_tmpfs(place)), None)
    return Places(work, shm, Path(tempfile.mkdtemp(prefix=f"hybridkv-{name}-disk-", dir=on_disk)))


def _is_tmpfs(folder: Path) -> bool:
    """Whether `folder` lies in memory: the mount point nearest above it is a tmpfs."""
    mounts = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [(Path(mount.split()[4]), kind.split()[0]) for mount, kind in mounts]
    above = [(len(point.parts), at, kind) for at, (point, kind) in enumerate(points) if folder.is_relative_to(point)]
    return max(above)[2] == "tmpfs"
