"""Reads: `preadv` into the caller's memory, and nothing believed that was not verified.

Small blocks that lie one behind the other are read with one call. `preadv` and the checksum run outside the GIL. Nothing
here writes; blocks found rotten are doomed in their segment.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import lmdb
import xxhash

from hybridkv.tiers.disk.codec import HEADER_BYTES, PAGE_BYTES, identity, lmdb_key
from hybridkv.tiers.disk.faults import StorageFault, Trouble, classify
from hybridkv.tiers.disk.health import Health
from hybridkv.tiers.disk.segment import Segment
from hybridkv.tiers.disk.shelf import Shelf
from hybridkv.tiers.disk.tally import Tally
from hybridkv.tiers.disk.types import DiskRef, DiskState, ReadOutcome
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.points import point

MOST_ERRORS = 3
_RUN_BYTES = 256 << 10  # stays in the processor's cache until its checksums are computed
_LOOKAHEAD_BYTES = 8 << 20


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
    runs = _runs(segment, present)
    announced = ahead = 0
    for run in runs:
        try:
            while len(present) > 1 and announced < len(runs) and ahead < _LOOKAHEAD_BYTES:
                ahead += _announce(segment, runs[announced])
                announced += 1
            ahead -= len(run) * segment.sizes.shape.run_bytes
            left = _read_run(segment, run) if len(run) > 1 else run
        except OSError:
            left = run  # one by one, so that the others come through
        for page, name, task in left:
            _read_one(segment, page, name, task, errors)
    return errors


_Found = tuple[int, bytes, ReadTask]
"""First page, LMDB key, task."""


def _runs(segment: Segment, present: list[_Found]) -> list[list[_Found]]:
    """Blocks in the order of their pages, those together that are to be read with one call."""
    shape = segment.sizes.shape
    most = max(1, _RUN_BYTES // shape.block_bytes) if segment.offsets_known else 1
    runs: list[list[_Found]] = []
    expected = -1
    for found in present:
        if found[0] != expected or len(runs[-1]) >= most or found[2].ref.block_bytes != shape.block_bytes:
            runs.append([])
        runs[-1].append(found)
        expected = found[0] + shape.pages
    return runs


def _announce(segment: Segment, run: list[_Found]) -> int:
    """Tell the kernel what comes soon, so that the device works on several blocks at once. Bytes of the file."""
    shape = segment.sizes.shape
    nbytes = len(run) * shape.run_bytes
    os.posix_fadvise(segment.fd, run[0][0] * PAGE_BYTES, nbytes, os.POSIX_FADV_WILLNEED)
    return nbytes


def _read_run(segment: Segment, run: list[_Found]) -> list[_Found]:
    """Read blocks whose values follow one another in the file; those that did not turn out to be what was asked for."""
    shape = segment.sizes.shape
    gap = shape.run_bytes - HEADER_BYTES - shape.block_bytes
    heads = [bytearray(HEADER_BYTES), *(bytearray(gap + HEADER_BYTES) for _ in run[1:])]
    into: list[bytearray | memoryview] = []
    for head, (_, _, task) in zip(heads, run, strict=True):
        into += (head, task.into)
    point("disk.read.before_pread")
    if os.preadv(segment.fd, into, shape.header_offset(run[0][0])) != len(run) * shape.run_bytes - gap:
        return run
    left, ok, start = [], ReadOutcome.OK, 0
    for head, found in zip(heads, run, strict=True):
        task = found[2]
        if _is_asked_for(head, start, task):
            task.outcome = ok
        else:
            left.append(found)
        start = gap
    return left


def _read_one(segment: Segment, page: int, name: bytes, task: ReadTask, errors: list[OSError]) -> None:
    task.outcome = ReadOutcome.FAILED
    if len(errors) >= MOST_ERRORS:
        return
    try:
        task.outcome = _read_or_retry(segment, name, page, task)
    except OSError as error:
        errors.append(error)
    if task.outcome is ReadOutcome.CORRUPT:
        segment.doom([name])


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
        and _is_asked_for(header, 0, task)
    )


def _is_asked_for(header: bytearray, start: int, task: ReadTask) -> bool:
    """The header, from `start` on, and the payload are those of exactly this block."""
    ref = task.ref
    return (
        header.startswith(identity(ref.fingerprint, ref.key, ref.checksum, ref.block_bytes), start)
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
