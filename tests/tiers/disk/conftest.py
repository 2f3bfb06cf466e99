"""Blocks, references and stores for the tests of the disk tier."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import xxhash

from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.disk import DiskBlock, DiskRef, DiskStore, ReadOutcome

SPACE = bytes(range(32))
OTHER_SPACE = bytes(range(1, 33))


class Kit:
    """Makes blocks whose bytes follow from their number, and checks what is read against that."""

    space = SPACE
    other_space = OTHER_SPACE

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[DiskStore] = []

    def store(self, capacity_bytes: int = 16 << 20, *, verify_at_start: bool = True) -> DiskStore:
        """A store on the test's directory, not yet open."""
        store = DiskStore(self.path, capacity_bytes, verify_at_start=verify_at_start, clock=ManualClock(1000.0))
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close(clean=False)

    @staticmethod
    def payload(number: int, block_bytes: int) -> bytes:
        return hashlib.shake_128(number.to_bytes(8, "little")).digest(block_bytes)

    def block(self, number: int, block_bytes: int = 65536, *, space: bytes = SPACE, key_bytes: int = 32) -> DiskBlock:
        payload = self.payload(number, block_bytes)
        return DiskBlock(
            fingerprint=space,
            key=self.key(number, key_bytes),
            parent=self.key(number - 1, key_bytes) if number else b"",
            checksum=xxhash.xxh3_64_intdigest(payload),
            payload=memoryview(payload),
        )

    def blocks(self, numbers: Sequence[int], block_bytes: int = 65536, *, space: bytes = SPACE) -> list[DiskBlock]:
        return [self.block(number, block_bytes, space=space) for number in numbers]

    @staticmethod
    def key(number: int, key_bytes: int = 32) -> bytes:
        return hashlib.shake_256(number.to_bytes(8, "little")).digest(key_bytes)

    @staticmethod
    def ref(block: DiskBlock, segment: int) -> DiskRef:
        return DiskRef(block.fingerprint, block.key, segment, block.checksum, len(block.payload))

    def refs(self, blocks: Sequence[DiskBlock], segments: Sequence[int]) -> list[DiskRef]:
        return [self.ref(block, segment) for block, segment in zip(blocks, segments, strict=True)]

    @staticmethod
    def read(store: DiskStore, refs: Sequence[DiskRef]) -> tuple[list[ReadOutcome], list[bytes]]:
        """(outcomes, what lies in the buffers then)."""
        buffers = [bytearray(ref.block_bytes) for ref in refs]
        outcomes = store.read(refs, [memoryview(buffer) for buffer in buffers])
        return outcomes, [bytes(buffer) for buffer in buffers]

    def expect(self, store: DiskStore, blocks: Sequence[DiskBlock], segments: Sequence[int]) -> None:
        """All blocks are served, with their own bytes."""
        outcomes, found = self.read(store, self.refs(blocks, segments))
        assert outcomes == [ReadOutcome.OK] * len(blocks)
        assert found == [bytes(block.payload) for block in blocks]

    def data_file(self, segment: int) -> Path:
        (path,) = self.path.glob(f"seg-{segment}-*/data.mdb")
        return path


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    """A kit on memory-backed files where there are some: these tests make thousands of synced transactions."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="hybridkv-test-", dir=memory if usable else tmp_path) as folder:
        made = Kit(Path(folder) / "store")
        yield made
        made.close()


@pytest.fixture
def failing() -> Callable[[str, OSError], Callable[[str], None]]:
    """A point handler that raises the given error at the given point."""

    def make(name: str, error: OSError) -> Callable[[str], None]:
        def handler(passed: str) -> None:
            if passed == name:
                raise error

        return handler

    return make
