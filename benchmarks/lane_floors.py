"""What the machine itself does with the bytes that lanes move: the floors of `bench migration`.

Each is the plainest code that does the work once, without checksum, bookkeeping or verification.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridkv.benchmarks.harness import Lap, lap
from hybridkv.tiers.shm import SharedRegion

Bytes = NDArray[np.uint8]
_WRITE_BYTES = 16 << 20


class RandomCopy:
    """Blocks from one shared-memory region to another, both in random order, on one thread: what a lane between two
    pools of host memory does, and nothing else. The views are made beforehand."""

    def __init__(self, folder: Path, block_bytes: int, count: int) -> None:
        """`folder`: on shared memory, as the pools are."""
        nbytes = block_bytes * count
        self._regions = [SharedRegion.create(folder / f"floor-{side}", nbytes) for side in ("from", "to")]
        rng = np.random.default_rng(2)
        for region in self._regions:
            region.commit(0, nbytes)
            region.array[:] = 1
        self._sources, self._targets = (
            [region.array[at : at + block_bytes] for at in (rng.permutation(count) * block_bytes).tolist()]
            for region in self._regions
        )

    def run(self) -> Lap:
        with lap() as taken:
            for source, target in zip(self._sources, self._targets, strict=True):
                np.copyto(target, source)
        return taken

    def close(self) -> None:
        self._sources, self._targets = [], []
        for region in self._regions:
            region.unlink()
            region.close()


@contextmanager
def random_copy(folder: Path, block_bytes: int, count: int) -> Iterator[RandomCopy]:
    floor = RandomCopy(folder, block_bytes, count)
    try:
        yield floor
    finally:
        floor.close()


class PlainFile:
    """One file with the bytes of `count` blocks, written in order; read block by block in random order.

    Each `write` makes a new file, and the ones before stay, as what a tier has stored stays: a file that is removed first
    leaves pages that the host has backed already, and the next one takes these.
    """

    def __init__(self, path: Path, block_bytes: int, count: int) -> None:
        self._name = path
        self._path = path
        self._written = 0
        self._block = block_bytes
        self._offsets = (np.random.default_rng(3).permutation(count) * block_bytes).tolist()
        self._content = np.random.default_rng(4).integers(0, 256, block_bytes * count, np.uint8)
        self._into = np.ones(block_bytes * count, np.uint8)

    def write(self, sync_bytes: int | None = None) -> Lap:
        """A new file, written in order and synced: once at the end, or after each `sync_bytes`."""
        self._path = self._name.with_name(f"{self._name.name}-{self._written}")
        self._written += 1
        step = sync_bytes or _WRITE_BYTES
        with lap() as taken:
            fd = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            for first in range(0, self._content.nbytes, step):
                _write_all(fd, self._content[first : first + step])
                if sync_bytes:
                    os.fsync(fd)
            os.fsync(fd)
            os.close(fd)
        return taken

    def read(self) -> Lap:
        """`preadv` of each block into memory, from the page cache if the file is there."""
        fd = os.open(self._path, os.O_RDONLY)
        with lap() as taken:
            for offset in self._offsets:
                os.preadv(fd, [self._into[offset : offset + self._block].data], offset)
        os.close(fd)
        return taken

    def read_cold(self) -> Lap:
        forget([self._path])
        return self.read()

    def read_mapped_cold(self) -> Lap:
        """Each block copied out of a fresh mapping."""
        forget([self._path])
        fd = os.open(self._path, os.O_RDONLY)
        with lap() as taken:
            mapping = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            content = np.frombuffer(mapping, np.uint8)
            for offset in self._offsets:
                np.copyto(self._into[offset : offset + self._block], content[offset : offset + self._block])
        del content
        mapping.close()
        os.close(fd)
        return taken


def forget(paths: Sequence[Path]) -> None:
    """Drop what the page cache holds of files whose content is on disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _write_all(fd: int, content: Bytes) -> None:
    left = content.data
    while left:
        left = left[os.write(fd, left) :]
