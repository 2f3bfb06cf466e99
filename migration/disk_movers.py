"""Carrying bytes to and from the disk tier: the movers of its lanes, see `movers`."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import numpy as np

from hybridkv.migration.disk_size import DiskSize
from hybridkv.migration.disk_watch import DiskWatch
from hybridkv.migration.memory import Memory
from hybridkv.migration.movers import Cargo, Carried, Landing, lose_unverified, note_checksums
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import PRIVATE_PARENT
from hybridkv.tiers.disk import DiskBlock, DiskRef, ReadOutcome
from hybridkv.tiers.errors import DiskFullError, HybridKVError
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import Reason

_READERS = 2
_LEAST_SHARE_BYTES = 512 << 10  # less is not worth a second thread
_LEAST_SHARED_BLOCK_BYTES = 128 << 10  # smaller ones are mostly Python: two threads wait for each other


class DiskWriter:
    """CPU → disk: durable once landed. Deletes what the directory dropped before it writes.

    The next batch's checksums are computed while this one is written. Writing is the landing thread's, for what it
    stored before must be in the directory by then: deletions and emptied segments go by that.
    """

    def __init__(self, memory: Memory, watch: DiskWatch, size: DiskSize) -> None:
        self._memory = memory
        self._watch = watch
        self._size = size
        self._ahead = ThreadPoolExecutor(1, "hybridkv-checksums")

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

    def start(self, batch: Cargo) -> Landing:
        return partial(self._land, batch, self._ahead.submit(self._prepare, batch))

    def _prepare(self, batch: Cargo) -> tuple[list[int], list[DiskBlock]]:
        """The positions of what may be stored, and what that is."""
        good = self._verified(batch)
        return good, self._blocks(batch, good)

    def _land(self, batch: Cargo, prepared: Future[tuple[list[int], list[DiskBlock]]]) -> None:
        good, blocks = prepared.result()
        self.delete_dropped()
        if self._memory.store is None or not good:
            return
        try:
            places = self._put(blocks)
        finally:
            self._watch.note()
        stored = [(number, place) for number, place in zip(good, places, strict=True) if place is not None]
        if stored:
            numbers, found = map(list, zip(*stored, strict=True))
            batch.targets[numbers] = found
            batch.outcomes[numbers] = Carried.MOVED

    def _verified(self, batch: Cargo) -> list[int]:
        """Only bytes that still have their writer's checksum go to disk; others are lost, not stored."""
        lost = lose_unverified(self._memory, batch)
        wrong = note_checksums(self._memory, batch, batch.sources, verify=True)
        batch.outcomes[wrong] = Carried.CORRUPT
        batch.outcomes[lost] = Carried.LOST
        good: list[int] = np.flatnonzero(batch.outcomes == Carried.FAILED).tolist()
        return good

    def _blocks(self, batch: Cargo, numbers: list[int]) -> list[DiskBlock]:
        blocks, size = self._memory.directory.blocks, batch.size
        memory = self._memory.cpu_array.data
        sources, rows = batch.sources[numbers].tolist(), batch.rows[numbers]
        return [
            DiskBlock(fingerprint, key, PRIVATE_PARENT if private else parent, checksum, memory[at : at + size])
            for at, private, parent, (fingerprint, key, checksum) in zip(
                sources,
                blocks.private[rows].tolist(),
                blocks.parent_keys.of(rows),
                _names(self._memory.directory, rows),
                strict=True,
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
        self._ahead.shutdown()
        self.delete_dropped()


class DiskReader:
    """Disk → CPU; what fails its checksum is lost and never readable. Two threads read large blocks: the device answers
    several requests at once, and checksums are computed meanwhile. Small ones are announced to the kernel in any case."""

    def __init__(self, memory: Memory, watch: DiskWatch) -> None:
        self._memory = memory
        self._watch = watch
        self._readers = ThreadPoolExecutor(_READERS, "hybridkv-reader")
        self._alone = ThreadPoolExecutor(1, "hybridkv-small-reader")

    def start(self, batch: Cargo) -> Landing:
        if batch.nbytes < _READERS * _LEAST_SHARE_BYTES:
            return partial(self._read_here, batch)
        if batch.size < _LEAST_SHARED_BLOCK_BYTES:
            return partial(self._land, [self._alone.submit(self._read, batch, slice(None))])
        share = -(-len(batch) // _READERS)
        parts = [slice(first, first + share) for first in range(0, len(batch), share)]
        return partial(self._land, [self._readers.submit(self._read, batch, part) for part in parts])

    def _read_here(self, batch: Cargo) -> None:
        self._read(batch, slice(None))
        self._watch.note()

    def _land(self, parts: Sequence[Future[None]]) -> None:
        wait(parts)
        for part in parts:
            part.result()
        self._watch.note()

    def _read(self, batch: Cargo, part: slice) -> None:
        store, memory, size = self._memory.store, self._memory.cpu_array.data, batch.size
        if store is None:
            return
        names = _names(self._memory.directory, batch.rows[part])
        refs = [
            DiskRef(fingerprint, key, segment, checksum, size)
            for segment, (fingerprint, key, checksum) in zip(batch.sources[part].tolist(), names, strict=True)
        ]
        outcomes = store.read(refs, [memory[at : at + size] for at in batch.targets[part].tolist()])
        batch.outcomes[part] = [*map(_CARRIED.__getitem__, outcomes)]

    def close(self) -> None:
        """The store is the memory's to close."""
        self._readers.shutdown()
        self._alone.shutdown()


_CARRIED = {
    ReadOutcome.OK: Carried.MOVED,
    ReadOutcome.MISSING: Carried.LOST,
    ReadOutcome.CORRUPT: Carried.LOST,
    ReadOutcome.FAILED: Carried.FAILED,
}


def _names(directory: Directory, rows: Rows) -> Iterator[tuple[bytes, bytes, int]]:
    """(fingerprint, key, checksum) of each."""
    blocks, fingerprints = directory.blocks, [space.fingerprint for space in directory.state.spaces]
    return zip(
        map(fingerprints.__getitem__, blocks.namespace[rows].tolist()),
        blocks.keys.of(rows),
        blocks.checksum[rows].tolist(),
        strict=True,
    )
