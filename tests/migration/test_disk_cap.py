"""The physical cap of the disk tier under a whole host: what the file system holds is looked at with every batch."""

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridkv.tiers import points
from hybridkv.tiers.disk.folder import bytes_on_disk
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import HIT, NEW, Rig, Worker, keys

MakeHost = Callable[..., Rig]
CAPACITY = 1 << 20
BLOCK_SIZES = (16384, 8192, 65536)
WATCHED = (
    "disk.put.before_commit",
    "disk.put.committed",
    "disk.delete.committed",
    "disk.segment.created",
    "disk.segment.unlinking",
    "disk.segment.unlinked",
)


class Watcher:
    """Looks at the files at every step of every batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batches = 0
        self.largest = 0

    def __call__(self, passed: str) -> None:
        if passed in WATCHED:
            self.batches += passed == "disk.put.committed"
            self.largest = max(self.largest, self.held())

    def held(self) -> int:
        return bytes_on_disk(self.folder)


def churn(rig: Rig, workers: list[Worker], nbytes: int) -> list[tuple[Worker, int]]:
    """Write blocks of mixed sizes, and remove some, until `nbytes` went to disk; what was written and not removed."""
    rng = random.Random(11)
    store = rig.host.memory.store
    assert store is not None
    kept: list[tuple[Worker, int]] = []
    number = 0
    while store.usage().counters.bytes_put < nbytes:
        worker = rng.choice(workers)
        numbers = list(range(number, number := number + rng.randint(1, 4)))
        assert worker.write(numbers, sums=True) == [NEW] * len(numbers)
        kept += [(worker, fresh) for fresh in numbers]
        if rng.random() < 0.3:
            owner, gone = kept.pop(rng.randrange(len(kept)))
            rig.host.remove(owner.session, keys([gone]))
    rig.settle()
    return kept


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """On memory-backed files where there are some: this makes hundreds of synced transactions."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="hybridkv-test-", dir=memory if usable else tmp_path) as folder:
        yield Path(folder)


def test_ten_fold_churn_of_mixed_sizes_stays_under_the_cap_at_every_batch(make_host: MakeHost, disk: Path) -> None:
    rig = make_host(
        gpus=0, cpu_blocks=64, disk_bytes=CAPACITY, disk__path=str(disk / "store"), limits__namespaces_count=8
    )
    workers = [rig.worker, *(rig.attach(size) for size in BLOCK_SIZES[1:])]
    watcher = Watcher(disk)
    with points.listening(watcher):
        kept = churn(rig, workers, 10 * CAPACITY)
        assert rig.host.drain(PATIENCE_S) is not None
        rig.settle()
    assert watcher.batches > 60
    assert 0.6 * CAPACITY < watcher.largest <= CAPACITY
    usage = rig.host.stats()["disk_store"]
    assert watcher.held() <= usage["physical_bytes"] <= CAPACITY  # type: ignore[index]
    states = [worker.read([number]) for worker, number in kept]  # every byte of a HIT is verified
    assert 8 < states.count([HIT]) < len(kept)
    rig.close()
    assert watcher.held() <= CAPACITY
    again = make_host(gpus=0, cpu_blocks=64, disk_bytes=CAPACITY, disk__path=str(disk / "store"))
    usage = again.host.stats()["disk_store"]
    assert watcher.held() <= usage["physical_bytes"] <= CAPACITY  # type: ignore[index]
    assert usage["live_blocks"] == again.host.stats()["tiers"]["disk"]["blocks"] > 8  # type: ignore[index]
