"""What the disk tier takes and gives: blocks, references, outcomes, usage, and what a start found."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class DiskBlock:
    """A block to be stored. `payload` is flat, `block_bytes` long; `checksum` is xxh3_64 (seed 0) over all of it."""

    fingerprint: bytes
    key: bytes
    parent: bytes  # empty: a root
    checksum: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class DiskRef:
    """A block to be read: what the directory knows of it. Nothing that differs from this is ever served."""

    fingerprint: bytes
    key: bytes
    segment: int
    checksum: int
    block_bytes: int


class ReadOutcome(IntEnum):
    """Answer of a read, per block. Only OK makes the destination's bytes mean anything."""

    OK = 1
    MISSING = 2  # the store has no such block (any more)
    CORRUPT = 3  # rotten, truncated or foreign bytes; the block is deleted with the segment's next write
    FAILED = 4  # the store is off or its device fails; the block may come back


class DiskState(StrEnum):
    """What the store does at present."""

    ON = "on"
    READ_ONLY = "read_only"  # writes fail (no space, read-only file system); reads are served
    OFF = "off"  # nothing is served: closed, vanished, or the device fails


class Exit(Enum):
    """Exit status of the verifier process. Any other means that it could not run; a signal means damage."""

    SOUND = 0
    DAMAGED = 10
    UNREADABLE = 11


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """What happened since the store was made."""

    blocks_put: int = 0
    blocks_deleted: int = 0
    blocks_read: int = 0
    blocks_missing: int = 0
    blocks_corrupt: int = 0
    blocks_failed: int = 0
    bytes_put: int = 0
    bytes_read: int = 0
    batches: int = 0
    ticks: int = 0  # empty transactions committed only to make freed pages usable
    segments_created: int = 0
    segments_unlinked: int = 0
    segments_aside: int = 0
    faults: int = 0


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Room on disk. `physical_bytes` is what the file system holds for us, segments set aside included."""

    physical_bytes: int
    capacity_bytes: int
    live_bytes: int  # payload bytes of live blocks
    live_blocks: int
    segments: int
    aside_bytes: int
    state: DiskState
    reason: str
    counters: DiskCounters


@dataclass(frozen=True, slots=True)
class RecoveredBlock:
    """One block a start found."""

    fingerprint: bytes
    key: bytes
    parent: bytes
    block_bytes: int
    checksum: int
    segment: int
    stored_at: float  # wall clock, seconds


@dataclass(frozen=True, slots=True)
class RecoveredRun:
    """Blocks of one segment and one namespace, as columns of equal length, ordered by key."""

    segment: int
    block_bytes: int
    fingerprint: bytes
    keys: list[bytes]
    parents: list[bytes]
    checksums: npt.NDArray[np.uint64]
    stored_at: npt.NDArray[np.float64]  # wall clock, seconds

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A segment that was moved to `aside/`: its number (None if its name has none) and why."""

    name: str
    segment: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found. A key may be listed in two segments (after a failed write): keep one, delete the other."""

    runs: list[RecoveredRun] = field(default_factory=list)
    aside: list[SetAside] = field(default_factory=list)
    clean: bool = True  # the last stop was a clean one and no file changed since
    dropped_records: int = 0  # records that were damaged, half present or of an unknown version

    def __len__(self) -> int:
        return sum(len(run) for run in self.runs)

    def __iter__(self) -> Iterator[RecoveredBlock]:
        for run in self.runs:
            columns = zip(run.keys, run.parents, run.checksums.tolist(), run.stored_at.tolist(), strict=True)
            for key, parent, checksum, stored_at in columns:
                yield RecoveredBlock(run.fingerprint, key, parent, run.block_bytes, checksum, run.segment, stored_at)


@dataclass(frozen=True, slots=True)
class Probe:
    """Answer of a probe. Blocks in `lost` segments are gone: drop their copies."""

    state: DiskState
    reason: str
    lost: tuple[int, ...] = ()
