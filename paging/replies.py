"""What callers ask of sequences and are answered: plain values that a servicer packs."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hybridkv.paging.backing import Blocks


@dataclass(frozen=True, slots=True)
class Want:
    """Blocks of one sequence (int64 [n], any order) that are to be read, or written."""

    sequence: int
    blocks: Blocks
    write: bool = False


@dataclass(frozen=True, slots=True)
class OpenReply:
    """A sequence of `tokens` positions in `pool`; its first `cached_blocks` blocks are sealed ones that were found."""

    sequence: int
    cached_blocks: int
    cached_tokens: int
    tokens: int
    page_blocks: int
    pool: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class TranslateReply:
    """PageState (uint8 [n]) and, where READABLE or WRITABLE, the slot (SLOT_DTYPE [n]; all zero elsewhere)."""

    states: NDArray[np.uint8]
    slots: NDArray[np.void]
    page_blocks: int


@dataclass(frozen=True, slots=True)
class FaultReply:
    """States and slots as in `TranslateReply`, of all wants' blocks one after another. `leases`: per want, 0 where nothing
    is leased. `page_blocks` per want. `minor` and `major` count pages: mapped without, and with, bytes brought up."""

    states: NDArray[np.uint8]
    slots: NDArray[np.void]
    leases: tuple[int, ...]
    expires_in_s: float
    minor: int
    major: int
    page_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SuspendReply:
    """Blocks of the sequences that left their pools, and those that stayed: shared, held, or without room below."""

    left: int
    stayed: int


@dataclass(frozen=True, slots=True)
class ResumeReply:
    """Blocks that are resident now, and blocks that no tier has any more."""

    blocks: int
    lost: int


@dataclass(frozen=True, slots=True)
class ResizeReply:
    """A change of the page size. `split_pages` could not become one entry; they do when their blocks may move."""

    page_blocks: int
    entries_before: int
    entries_after: int
    copied_bytes: int
    split_pages: int


@dataclass(frozen=True, slots=True)
class StickyReply:
    """Bytes of the pool's sticky blocks, and the most they may have."""

    sticky_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class AdvanceReply:
    """Blocks on their way because of the window, prefetches that were given up, and blocks it protects."""

    prefetched: int
    cancelled: int
    kept: int


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """A sequence in figures. `table_bytes`: page table and backing; nodes it shares with forks are counted in full."""

    sequence: int
    tokens: int
    blocks: int
    mapped_blocks: int
    resident_blocks: int
    writable_blocks: int
    lost_blocks: int
    sticky_blocks: int
    suspended: bool
    page_blocks: int
    entries: int
    split_pages: int
    table_bytes: int
    pool: int


@dataclass(slots=True)
class Figures:
    """What happened, counted since the start."""

    minor_faults: int = 0
    major_faults: int = 0
    faults_without_room: int = 0
    fault_s: float = 0.0
    major_fault_s: float = 0.0
    copied_on_write: int = 0
    copied_on_write_bytes: int = 0
    resize_copied_bytes: int = 0
    forks: int = 0
    suspends: int = 0
    idle_suspends: int = 0
    resumes: int = 0
    prefetched_blocks: int = 0
    prefetches_cancelled: int = 0
    tlb: dict[str, int] = field(default_factory=lambda: {"hits": 0, "misses": 0, "invalidations": 0})
