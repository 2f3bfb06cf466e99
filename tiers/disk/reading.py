"""Reads: one `preadv` per block into the caller's memory, and nothing believed that was not verified.

`preadv` and the checksum run outside the GIL. Nothing here writes; blocks found rotten are doomed in their segment.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import lmdb
import xxhash

from hybridkv.tiers.disk.codec import HEADER_BYTES, identity, lmdb_key
from hybridkv.tiers.disk.faults import StorageFault, Trouble, classify
from hybridkv.tiers.disk.health import Health
from hybridkv.tiers.disk.segment import Segment
from hybridkv.tiers.disk.shelf import Shelf
from hybridkv.tiers.disk.tally import Tally
from hybridkv.tiers.disk.types import DiskRef, DiskState, ReadOutcome
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.points import point

MOST_ERRORS = 3
_LOOKAHEAD_BLOCKS = 16


@dataclass(slots=True)
class ReadTask:
    """One block to read: what is asked, where to, and what came of it."""

    ref: DiskRef
    into: memoryview
    outcome: ReadOutcome = ReadOutcome.MISSING


class Reader:
    """Reads from the segments of a shelf, from any number of threads."""

    def __init__(self, shelf: Shelf, tally: Tally, health: Health) -> None:
        self._shelf = shelf
        self._tally = tally
        self._health = health
        self._errors = 0  # of the device, in a row
        self.condemned: set[int] = set()  # segments in which LMDB met damage: for the writer to set aside

    def read(self, items: Sequence[DiskRef], into: Sequence[memoryview]) -> list[ReadOutcome]:
        """See `DiskStore.read`."""
        tasks = read_tasks(items, into)
        if self._health.state is DiskState.OFF:
            self._tally.add(blocks_failed=len(tasks))
            return [ReadOutcome.FAILED] * len(tasks)
        by_segment: dict[int, list[ReadTask]] = {}
        for task in tasks:
            by_segment.setdefault(task.ref.segment, []).append(task)
        for number, group in by_segment.items():
            self._read_group(number, group)
        self._count(tasks)
        return [task.outcome for task in tasks]

    def reset(self) -> None:
        """Forget errors and damage: everything was opened anew."""
        self._errors = 0
        self.condemned.clear()

    def _read_group(self, number: int, tasks: list[ReadTask]) -> None:
        segment = self._shelf.segments.get(number)
        if segment is None or not segment.pin():
            return
        try:
            errors = read_segment(segment, tasks)
        except lmdb.Error as error:
            if classify(error) is Trouble.DAMAGED:
                self.condemned.add(number)  # its blocks are missing
                return
            for task in tasks:
                task.outcome = ReadOutcome.FAILED
            return
        finally:
            segment.unpin()
        served = any(task.outcome is ReadOutcome.OK for task in tasks)
        self._errors = len(errors) if served else self._errors + len(errors)
        if errors and self._errors >= MOST_ERRORS:
            self._tally.add(faults=1)
            self._health.note(StorageFault(classify(errors[-1]), f"read segment {number}: {errors[-1]}"))

    def _count(self, tasks: list[ReadTask]) -> None:
        outcomes = [task.outcome for task in tasks]
        self._tally.add(
            blocks_read=outcomes.count(ReadOutcome.OK),
            blocks_missing=outcomes.count(ReadOutcome.MISSING),
            blocks_corrupt=outcomes.count(ReadOutcome.CORRUPT),
            blocks_failed=outcomes.count(ReadOutcome.FAILED),
            bytes_read=sum(task.ref.block_bytes for task in tasks if task.outcome is ReadOutcome.OK),
        )


def read_tasks(items: Sequence[DiskRef], into: Sequence[memoryview]) -> list[ReadTask]:
    """Tasks for these blocks, all destinations checked."""
    if len(items) != len(into):
        raise InvalidArgumentError("into", f"{len(into)} buffers for {len(items)} blocks")
    for ref, buffer in zip(items, into, strict=True):
        if buffer.nbytes != ref.block_bytes or buffer.readonly or not buffer.c_contiguous:
            raise InvalidArgumentError("into", f"{buffer.nbytes} bytes, must be {ref.block_bytes}, flat and writable")
    return [ReadTask(ref, buffer) for ref, buffer in zip(items, into, strict=True)]


def read_segment(segment: Segment, tasks: Sequence[ReadTask]) -> list[OSError]:
    """Read blocks of one pinned segment, in the order of their place in the file; sets each task's outcome.

    Returns the device's errors; after `MOST_ERRORS` of them the rest is not tried. Raises lmdb.Error from the lookup.
    """
    names = [lmdb_key(task.ref.fingerprint, task.ref.key) for task in tasks]
    found = zip(segment.lookup(names), names, tasks, strict=True)
    present = sorted(((page, name, task) for page, name, task in found if page is not None), key=itemgetter(0))
    errors: list[OSError] = []
    failed, corrupt = ReadOutcome.FAILED, ReadOutcome.CORRUPT
    for place, (page, name, task) in enumerate(present):
        task.outcome = failed
        if len(errors) >= MOST_ERRORS:
            continue
        try:
            if place % _LOOKAHEAD_BLOCKS == 0 and len(present) > 1:
                _announce(segment, [at for at, _, _ in present[place : place + _LOOKAHEAD_BLOCKS]])
            task.outcome = _read_or_retry(segment, name, page, task)
        except OSError as error:
            errors.append(error)
        if task.outcome is corrupt:
            segment.doom([name])
    return errors


def _announce(segment: Segment, pages: Sequence[int]) -> None:
    """Tell the kernel which blocks come next, so that the device works on several at once."""
    shape = segment.sizes.shape
    for page in pages:
        offset, length = shape.header_offset(page), HEADER_BYTES + shape.block_bytes
        os.posix_fadvise(segment.fd, offset, length, os.POSIX_FADV_WILLNEED)


def _read_or_retry(segment: Segment, name: bytes, page: int, task: ReadTask) -> ReadOutcome:
    """Read the value at `page`; if that is not the block, once more where the block lies now."""
    if _read_at(segment, name, page, task):
        return ReadOutcome.OK
    (now,) = segment.lookup([name])
    if now is None:
        return ReadOutcome.MISSING  # deleted since it was looked up
    if now != page and _read_at(segment, name, now, task):
        return ReadOutcome.OK
    return ReadOutcome.CORRUPT


def _read_at(segment: Segment, name: bytes, page: int, task: ReadTask) -> bool:
    """Fill the destination; whether it now holds exactly the block that was asked for."""
    shape, ref = segment.sizes.shape, task.ref
    header = bytearray(HEADER_BYTES)
    point("disk.read.before_pread")
    if segment.offsets_known:
        got = os.preadv(segment.fd, [header, task.into], shape.header_offset(page))
    else:
        got = _copy_mapped(segment, name, header, task.into)
    return (
        got == HEADER_BYTES + shape.block_bytes
        and ref.block_bytes == shape.block_bytes
        and header.startswith(identity(ref.fingerprint, ref.key, ref.checksum, ref.block_bytes))
        and xxhash.xxh3_64_intdigest(task.into) == ref.checksum
    )


def _copy_mapped(segment: Segment, name: bytes, header: bytearray, into: memoryview) -> int:
    value = segment.copy_value(name)
    shape = segment.sizes.shape
    if value is None or len(value) != shape.value_bytes:
        return 0
    header[:] = value[shape.lead_bytes : shape.payload_offset]
    into[:] = value[shape.payload_offset :]
    return len(value) - shape.lead_bytes
