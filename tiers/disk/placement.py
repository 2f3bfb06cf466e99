"""Which segment takes the next batch, and how many blocks of it: a pure function of figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hybridkv.tiers.disk.codec import PAGE_BYTES
from hybridkv.tiers.disk.sizing import EMPTY_SEGMENT_PAGES, SEGMENT_OVERHEAD_BYTES, Sizes

_WORTH_A_TRANSACTION = 4  # a quarter of the wanted batch


class Fill(Protocol):
    """What placement asks of a segment."""

    @property
    def file_bytes(self) -> int: ...

    @property
    def reusable_blocks(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Put `blocks` into `segments[index]`; None: into a new segment."""

    index: int | None
    blocks: int


def place(segments: Sequence[Fill], sizes: Sizes, wanted: int, used_bytes: int) -> Placement | None:
    """Where the next batch of `wanted` blocks goes; None if no transaction is allowed at present.

    Freed pages are reused first where that takes a fair part of the batch (every transaction costs a sync), else files
    grow while the cap allows it, else whatever can be reused is.
    """
    wanted = min(wanted, sizes.batch_blocks)
    reuse = _reuse(segments, sizes, wanted, used_bytes)
    if reuse and reuse.blocks * _WORTH_A_TRANSACTION >= wanted:
        return reuse
    return _grow(segments, sizes, wanted, used_bytes) or reuse


def _reuse(segments: Sequence[Fill], sizes: Sizes, wanted: int, used_bytes: int) -> Placement | None:
    if not segments:
        return None
    index = max(range(len(segments)), key=lambda i: segments[i].reusable_blocks)
    allowed = _blocks_for(sizes, sizes.capacity_bytes - used_bytes - sizes.slack_bytes)
    blocks = min(wanted, segments[index].reusable_blocks, allowed)
    return Placement(index, blocks) if blocks > 0 else None


def _grow(segments: Sequence[Fill], sizes: Sizes, wanted: int, used_bytes: int) -> Placement | None:
    room = sizes.capacity_bytes - used_bytes - sizes.slack_bytes - sizes.largest_batch_cost
    blocks = min(wanted, _blocks_for(sizes, room))
    if blocks <= 0:
        return None
    below = [
        i for i, segment in enumerate(segments) if _blocks_for(sizes, sizes.segment_bytes - segment.file_bytes) > 0
    ]
    if below:
        index = max(below, key=lambda i: segments[i].file_bytes)
        left = _blocks_for(sizes, sizes.segment_bytes - segments[index].file_bytes)
        return Placement(index, min(blocks, left))
    new_segment = SEGMENT_OVERHEAD_BYTES + EMPTY_SEGMENT_PAGES * PAGE_BYTES
    blocks = min(blocks, _blocks_for(sizes, room - new_segment), max(1, _blocks_for(sizes, sizes.segment_bytes)))
    return Placement(None, blocks) if blocks > 0 else None


def _blocks_for(sizes: Sizes, room_bytes: int) -> int:
    """Most blocks whose batch costs at most `room_bytes`."""
    per_block = sizes.batch_cost(1) - sizes.batch_cost(0)
    return max(0, (room_bytes - sizes.batch_cost(0)) // per_block)
