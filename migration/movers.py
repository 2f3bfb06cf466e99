"""Carrying the bytes of one batch from pool to pool. A mover blocks its lane's thread; it decides nothing.

A batch is transfers on one leg: all of one block size, from the leg's source slots to its target slots. The answer says
of each what became of it; only `MOVED` bytes may be read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from hybridkv.migration.disk_size import DiskSize
from hybridkv.migration.disk_watch import DiskWatch
from hybridkv.migration.memory import Memory
from hybridkv.tiers.device.base import Direction, Stream
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import Checksum
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.disk import DiskBlock, DiskRef, ReadOutcome
from hybridkv.tiers.errors import DiskFullError, HybridKVError
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import Reason


class Carried(Enum):
    """MOVED: all bytes are there. FAILED: try again some time. LOST: this copy cannot be read any more. CORRUPT: the
    bytes are not those the writer sealed, wherever else they lie."""

    MOVED = "moved"
    FAILED = "failed"
    LOST = "lost"
    CORRUPT = "corrupt"


@dataclass(slots=True)
class Cargo:
    """One transfer on its leg: offsets in the leg's pools (a disk place is the segment), and what became of it."""

    transfer: Transfer
    source: int
    target: int
    outcome: Carried = Carried.FAILED


class Mover(Protocol):
    """Moves batches of one leg; called by one thread."""

    def carry(self, batch: Sequence[Cargo]) -> None:
        """Move the bytes and set every cargo's outcome (and `target`, when the mover chooses the place)."""

    def close(self) -> None: ...


def _all_moved(batch: Sequence[Cargo]) -> None:
    moved = Carried.MOVED  # looked up once: an enum's attribute is a Python function's work
    for cargo in batch:
        cargo.outcome = moved


class DeviceMover:
    """Between the CPU pool and a device's pool, on a stream of its own."""

    def __init__(self, memory: Memory, pool: DevicePool, direction: Direction, name: str) -> None:
        self._memory = memory
        self._pool = pool
        self._direction = direction
        self.stream: Stream = pool.device.stream(name)

    def carry(self, batch: Sequence[Cargo]) -> None:
        sources = np.array([cargo.source for cargo in batch], np.int64)
        targets = np.array([cargo.target for cargo in batch], np.int64)
        on_device, on_host = (targets, sources) if self._direction is Direction.TO_DEVICE else (sources, targets)
        completion = self.stream.copy(
            self._direction, self._pool, on_device, self._memory.cpu_array, on_host, batch[0].transfer.size
        )
        completion.wait(None)
        completion.check()
        _all_moved(batch)
        if self._direction is Direction.TO_HOST:
            note_checksums(self._memory, batch, [cargo.target for cargo in batch])

    def close(self) -> None:
        self.stream.close()


class DeviceRelocator:
    """Within one device's pool."""

    def __init__(self, pool: DevicePool, name: str) -> None:
        self._pool = pool
        self.stream: Stream = pool.device.stream(name)

    def carry(self, batch: Sequence[Cargo]) -> None:
        completion = self.stream.copy(
            Direction.ON_DEVICE,
            self._pool,
            np.array([cargo.target for cargo in batch], np.int64),
            self._pool,
            np.array([cargo.source for cargo in batch], np.int64),
            batch[0].transfer.size,
        )
        completion.wait(None)
        completion.check()
        _all_moved(batch)

    def close(self) -> None:
        self.stream.close()


class CpuRelocator:
    """Within the CPU pool."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def carry(self, batch: Sequence[Cargo]) -> None:
        array, size = self._memory.cpu_array, batch[0].transfer.size
        for cargo in batch:
            np.copyto(array[cargo.target : cargo.target + size], array[cargo.source : cargo.source + size])
            cargo.outcome = Carried.MOVED

    def close(self) -> None:
        """Nothing to close."""


class DiskWriter:
    """CPU → disk: durable when it returns. Deletes what the directory dropped before it writes."""

    def __init__(self, memory: Memory, watch: DiskWatch, size: DiskSize) -> None:
        self._memory = memory
        self._watch = watch
        self._size = size

    def tend(self) -> None:
        """Between two batches: look after the store when asked to, fit it to its cap, delete what was dropped."""
        self._watch.look_if_asked()
        self._size.fit_if_asked()
        self.delete_dropped()

    def delete_dropped(self) -> None:
        """Delete from the store what the directory no longer lists."""
        directory, store = self._memory.directory, self._memory.store
        disk = directory.state.disk
        if disk is None or store is None or not (disk.to_delete or disk.to_remove or disk.when_removed):
            return
        with directory.lock:
            evicted, disk.to_delete = [name for name in disk.to_delete if not self._is_listed(*name)], []
            removed, disk.to_remove = [name for name in disk.to_remove if not self._is_listed(*name)], []
            told, disk.when_removed = disk.when_removed, []
        try:
            if removed:
                store.delete(removed, durable=True)
            removed = []
            for tell in told:
                tell()
            told = []
            store.delete(evicted)
        except HybridKVError:
            with directory.lock:
                disk.to_remove += removed
                disk.when_removed += told
                disk.to_delete += evicted
            raise

    def _is_listed(self, fingerprint: bytes, key: bytes, segment: int) -> bool:
        """The key was sealed again meanwhile and lies in this very segment: what was dropped is overwritten already."""
        directory = self._memory.directory
        space, disk = directory.space(fingerprint), directory.state.disk
        if space is None or disk is None:
            return False
        row = int(directory.sealed(space.index, [key])[0])
        return row != NO_ROW and int(directory.blocks.slot[disk.index][row]) == segment

    def carry(self, batch: Sequence[Cargo]) -> None:
        self.delete_dropped()
        good = self._verified(batch)
        store = self._memory.store
        if store is None or not good:
            return
        try:
            places = self._put(self._blocks(good))
        finally:
            self._watch.note()
        for cargo, place in zip(good, places, strict=True):
            if place is not None:
                cargo.target = place
                cargo.outcome = Carried.MOVED

    def _verified(self, batch: Sequence[Cargo]) -> list[Cargo]:
        """Only bytes that still have their writer's checksum go to disk; others are lost, not stored."""
        wrong = set(note_checksums(self._memory, batch, [cargo.source for cargo in batch], verify=True).tolist())
        for number in wrong:
            batch[number].outcome = Carried.CORRUPT
        return [cargo for number, cargo in enumerate(batch) if number not in wrong]

    def _blocks(self, batch: Sequence[Cargo]) -> list[DiskBlock]:
        memory, size = self._memory.cpu_array.data, batch[0].transfer.size
        parents = self._memory.directory.blocks.parent_keys.of(_rows(batch))
        return [
            DiskBlock(
                fingerprint,
                key,
                parent,
                checksum,
                memory[cargo.source : cargo.source + size],
            )
            for (cargo, fingerprint, key, checksum), parent in zip(
                _names(self._memory.directory, batch), parents, strict=True
            )
        ]

    def _put(self, blocks: list[DiskBlock]) -> list[int | None]:
        """Segment of each block, None where it found no place. When physical room lacks, one segment is emptied."""
        store = self._memory.store
        assert store is not None
        try:
            return list(store.put(blocks))
        except DiskFullError as full:
            places = list(full.stored) + [None] * (len(blocks) - len(full.stored))
            emptied = full.segment_to_empty
        if emptied is None:
            return places
        self._empty_segment(emptied)
        # What went into the emptied segment is gone with it and is written again.
        left = [number for number, place in enumerate(places) if place is None or place == emptied]
        again: Sequence[int | None]
        try:
            again = store.put([blocks[number] for number in left])
        except DiskFullError as full:
            again = [*full.stored, *[None] * (len(left) - len(full.stored))]
        for number, place in zip(left, again, strict=True):
            places[number] = place
        return places

    def _empty_segment(self, segment: int) -> None:
        directory, store = self._memory.directory, self._memory.store
        disk = directory.state.disk
        assert store is not None
        assert disk is not None
        with directory.lock:
            column = directory.blocks.slot[disk.index]
            rows = np.flatnonzero(column == segment)
            # A block that is being read from here keeps its entry: the reader finds it missing, and that drops it.
            moving = directory.state.transfers
            read = [row in moving and moving[row].source == disk.index for row in rows.tolist()]
            idle = rows[~np.array(read, np.bool_)]
            directory.state.counters["disk_blocks_evicted_with_segment"] += len(idle)
            self._size.evict(idle, Reason.RECLAIM)
            directory.state.counters["disk_segments_emptied"] += 1
        store.drop_segment(segment)

    def close(self) -> None:
        """Delete what was dropped last, or the next start would find it again. The store is the memory's to close."""
        self.delete_dropped()


class DiskReader:
    """Disk → CPU; what fails its checksum is lost and never readable."""

    def __init__(self, memory: Memory, watch: DiskWatch) -> None:
        self._memory = memory
        self._watch = watch

    def carry(self, batch: Sequence[Cargo]) -> None:
        store, array = self._memory.store, self._memory.cpu_array
        if store is None:
            return
        size, memory = batch[0].transfer.size, array.data
        into = [memory[cargo.target : cargo.target + size] for cargo in batch]
        ok, lost, moved = ReadOutcome.OK, (ReadOutcome.CORRUPT, ReadOutcome.MISSING), Carried.MOVED
        for cargo, outcome in zip(batch, store.read(self._refs(batch), into), strict=True):
            if outcome is ok:
                cargo.outcome = moved
            elif outcome in lost:
                cargo.outcome = Carried.LOST
        self._watch.note()

    def _refs(self, batch: Sequence[Cargo]) -> list[DiskRef]:
        size = batch[0].transfer.size
        return [
            DiskRef(fingerprint, key, cargo.source, checksum, size)
            for cargo, fingerprint, key, checksum in _names(self._memory.directory, batch)
        ]

    def close(self) -> None:
        """The store is the memory's to close."""


def _names(directory: Directory, batch: Sequence[Cargo]) -> Iterator[tuple[Cargo, bytes, bytes, int]]:
    """(cargo, fingerprint, key, checksum) of each."""
    blocks, fingerprints = directory.blocks, [space.fingerprint for space in directory.state.spaces]
    rows = _rows(batch)
    spaces, checksums = blocks.namespace[rows].tolist(), blocks.checksum[rows].tolist()
    for cargo, space, key, checksum in zip(batch, spaces, blocks.keys.of(rows), checksums, strict=True):
        yield cargo, fingerprints[space], key, checksum


def _rows(batch: Sequence[Cargo]) -> Rows:
    return np.array([cargo.transfer.row for cargo in batch], np.int64)


def note_checksums(
    memory: Memory, batch: Sequence[Cargo], places: Sequence[int], *, verify: bool = False
) -> NDArray[np.int64]:
    """Compute checksums that nobody knows yet; with `verify` also hold claimed ones against the bytes.

    Positions in the batch whose bytes do not have the checksum their writer gave. int64.
    """
    directory = memory.directory
    blocks, size = directory.blocks, batch[0].transfer.size
    rows = _rows(batch)
    known = blocks.checked[rows]
    asked = (known != Checksum.VERIFIED) & (verify | (known != Checksum.CLAIMED))
    numbers = np.flatnonzero(asked)
    if not len(numbers):
        return numbers
    array = memory.cpu_array
    found = np.array(
        [xxhash.xxh3_64_intdigest(array[place : place + size].data) for place in (places[i] for i in numbers.tolist())],
        np.uint64,
    )
    wrong = (known[numbers] == Checksum.CLAIMED) & (found != blocks.checksum[rows[numbers]])
    learnt = rows[numbers[~wrong]]
    with directory.lock:
        blocks.checksum[learnt] = found[~wrong]
        blocks.checked[learnt] = Checksum.VERIFIED
    mistaken: NDArray[np.int64] = numbers[wrong]
    return mistaken
