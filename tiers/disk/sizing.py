"""Room, as figures: how large segments and batches are, and what a transaction may add to a file at worst.

The cap is kept by three checks, each made before its transaction (used = bytes on disk, see DESIGN of the disk tier):

    grow a file     used + cost(batch) + largest batch + slack <= capacity
    reuse pages     used + cost(batch) + slack                 <= capacity
    delete          used + cost(deletes)                       <= capacity, deletes chosen so that cost <= slack

A batch that is to reuse freed pages may still grow its file when they are not contiguous: that is what the second
batch is kept for. Deletes copy tree pages before they free anything: that is what the slack is kept for.
"""

from dataclasses import dataclass

from hybridkv.tiers.disk.codec import PAGE_BYTES, ValueShape, shape_of

MAX_BATCH_BYTES = 16 << 20  # of payload: what a lane carries at once by default, so that its batch is one transaction
MAX_SEGMENT_BYTES = 1 << 30
SEGMENT_OVERHEAD_BYTES = 3 * PAGE_BYTES  # directory, lock file, manifest
STORE_OVERHEAD_BYTES = 4 * PAGE_BYTES  # lock, marker, the directories themselves
EMPTY_SEGMENT_PAGES = 5  # two meta pages, the main root, two roots of sub-databases
_FIXED_PAGES = 10  # roots and branches of both trees, main root, free list
_TREE_PAGES_PER_BLOCK = 3  # a leaf in each tree and the share of a split
_MAX_SLACK_BYTES = 4 << 20
_META_PER_PAGE = 12  # `meta` entries in a leaf about two thirds full, with keys of 64 bytes
_DATA_PER_PAGE = 30


@dataclass(frozen=True, slots=True)
class Sizes:
    """Limits for one block size in a store of one capacity."""

    capacity_bytes: int
    shape: ValueShape
    segment_bytes: int
    batch_blocks: int
    slack_bytes: int

    def batch_cost(self, blocks: int) -> int:
        """Bytes a put of `blocks` adds to a file at worst."""
        return (blocks * (self.shape.pages + _TREE_PAGES_PER_BLOCK) + _FIXED_PAGES) * PAGE_BYTES

    def delete_cost(self, blocks: int) -> int:
        """Bytes a deletion of `blocks` adds to a file at worst: copied leaves, and the list of freed pages."""
        listed = blocks * self.shape.pages * 8 // PAGE_BYTES + 1
        return (blocks * 2 + listed + _FIXED_PAGES) * PAGE_BYTES

    @property
    def largest_batch_cost(self) -> int:
        return self.batch_cost(self.batch_blocks)

    @property
    def delete_blocks(self) -> int:
        """Most blocks that one transaction may delete."""
        per_block = 2 * PAGE_BYTES + self.shape.pages * 8
        return max(1, min(self.batch_blocks, (self.slack_bytes - (_FIXED_PAGES + 1) * PAGE_BYTES) // per_block))

    @property
    def map_bytes(self) -> int:
        """Address space of a segment's map: far more than the file will reach, never changed."""
        return 2 * self.segment_bytes + 4 * MAX_BATCH_BYTES + 4 * self.shape.run_bytes + (64 << 20)


def sizes_for(capacity_bytes: int, block_bytes: int) -> Sizes:
    """Limits for `block_bytes` in a store of `capacity_bytes`. In a tiny store a segment still holds some blocks."""
    shape = shape_of(block_bytes)
    wanted = max(capacity_bytes // 64, min(MAX_SEGMENT_BYTES, capacity_bytes // 16))
    at_least = 8 * shape.run_bytes + 16 * PAGE_BYTES
    segment_bytes = max(wanted, min(capacity_bytes // 4, at_least))
    per_block = (shape.pages + _TREE_PAGES_PER_BLOCK) * PAGE_BYTES
    reserved = capacity_bytes // 32  # so that the two batches kept free are less than the tenth that stays unused
    batch_blocks = max(1, min(MAX_BATCH_BYTES // block_bytes, (reserved - _FIXED_PAGES * PAGE_BYTES) // per_block))
    floor = (2 + _FIXED_PAGES + 1) * PAGE_BYTES + shape.pages * 8
    slack_bytes = max(floor, min(_MAX_SLACK_BYTES, capacity_bytes // 64))
    return Sizes(capacity_bytes, shape, segment_bytes, batch_blocks, slack_bytes)


def capacity_blocks(capacity_bytes: int, block_bytes: int, sizes: Sizes | None = None) -> int:
    """Blocks of one size that a store holds without running into its cap, trees and reserves taken off. `sizes` are
    those its segments were made with, where that was for another capacity."""
    sizes = sizes or sizes_for(capacity_bytes, block_bytes)
    kept = 2 * sizes.largest_batch_cost + sizes.slack_bytes + STORE_OVERHEAD_BYTES
    room = min(capacity_bytes - kept, capacity_bytes * 9 // 10)
    per_segment = SEGMENT_OVERHEAD_BYTES + EMPTY_SEGMENT_PAGES * PAGE_BYTES
    room -= per_segment * -(-capacity_bytes // sizes.segment_bytes)
    tree_bytes = PAGE_BYTES // _META_PER_PAGE + PAGE_BYTES // _DATA_PER_PAGE
    return max(0, room // (sizes.shape.run_bytes + tree_bytes))
