"""Where a batch goes, with figures only."""

from dataclasses import dataclass

import pytest

from hybridkv.tiers.disk.placement import Placement, place
from hybridkv.tiers.disk.sizing import STORE_OVERHEAD_BYTES, capacity_blocks, sizes_for

CAPACITY = 1 << 30
SIZES = sizes_for(CAPACITY, 65536)
FULL = CAPACITY - SIZES.slack_bytes - SIZES.batch_cost(4)


@dataclass
class Figures:
    file_bytes: int = 0
    reusable_blocks: int = 0


def test_first_batch_makes_a_segment() -> None:
    assert place([], SIZES, 10, STORE_OVERHEAD_BYTES) == Placement(None, 10)


def test_batch_is_bounded() -> None:
    chosen = place([], SIZES, 10_000, STORE_OVERHEAD_BYTES)
    assert chosen == Placement(None, SIZES.batch_blocks)
    assert SIZES.batch_blocks * 65536 <= 16 << 20
    assert SIZES.batch_cost(SIZES.batch_blocks) <= CAPACITY // 32


def test_fullest_segment_below_its_size_grows() -> None:
    segments = [Figures(1 << 20), Figures(8 << 20), Figures(SIZES.segment_bytes)]
    assert place(segments, SIZES, 10, 100 << 20) == Placement(1, 10)


def test_freed_pages_are_reused_before_files_grow() -> None:
    segments = [Figures(1 << 20), Figures(SIZES.segment_bytes, reusable_blocks=50)]
    assert place(segments, SIZES, 10, 100 << 20) == Placement(1, 10)


def test_a_few_freed_pages_are_not_worth_a_transaction_while_there_is_room() -> None:
    segments = [Figures(1 << 20), Figures(SIZES.segment_bytes, reusable_blocks=1)]
    assert place(segments, SIZES, 100, 100 << 20) == Placement(0, 100)
    assert place(segments, SIZES, 100, FULL) == Placement(1, 1)


def test_at_the_cap_nothing_grows_and_reuse_keeps_the_reserve() -> None:
    assert place([Figures(1 << 20)], SIZES, 1, FULL) is None
    assert place([Figures(1 << 20, reusable_blocks=90)], SIZES, 90, FULL) == Placement(0, 4)
    assert place([Figures(1 << 20, reusable_blocks=90)], SIZES, 90, CAPACITY - SIZES.slack_bytes) is None


@pytest.mark.parametrize("capacity", [1 << 20, 16 << 20, 1 << 30, 1 << 40])
@pytest.mark.parametrize("block_bytes", [4096, 65536])
def test_limits_make_sense_at_every_capacity(capacity: int, block_bytes: int) -> None:
    sizes = sizes_for(capacity, block_bytes)
    assert sizes.batch_blocks >= 1
    assert sizes.delete_cost(sizes.delete_blocks) <= sizes.slack_bytes
    assert sizes.segment_bytes >= sizes.batch_cost(1)
    assert sizes.segment_bytes <= max(capacity // 4, capacity // 16)
    blocks = capacity_blocks(capacity, block_bytes)
    assert blocks * sizes.shape.run_bytes <= 0.9 * capacity
    assert blocks >= (6 if capacity == 1 << 20 else 1)
    assert blocks * block_bytes > 0.4 * capacity or block_bytes == 4096 or capacity < 16 << 20


def test_segment_sizes_follow_the_rule() -> None:
    assert sizes_for(1 << 30, 65536).segment_bytes == 64 << 20  # a sixteenth
    assert sizes_for(64 << 30, 65536).segment_bytes == 1 << 30  # at most 1 GiB
    assert sizes_for(256 << 30, 65536).segment_bytes == 4 << 30  # unless that made more than 64
