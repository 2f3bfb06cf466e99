"""The cap is physical: what the file system holds never exceeds it, whatever is put, deleted and read meanwhile."""

import random

import pytest

from hybridkv.tiers.disk import DiskBlock, DiskStore, ReadOutcome
from hybridkv.tiers.disk.folder import bytes_on_disk
from hybridkv.tiers.errors import DiskFullError

from .conftest import Kit

Live = dict[bytes, tuple[DiskBlock, int]]


def _put(store: DiskStore, blocks: list[DiskBlock], live: Live) -> int:
    """Store all blocks, emptying segments as the store asks; how many segments that were."""
    emptied = 0
    while blocks:
        try:
            placed: list[int | None] = list(store.put(blocks))
        except DiskFullError as full:
            placed = list(full.stored)
            if full.segment_to_empty is None:  # more than a tiny store can take at once
                blocks = [block for block, segment in zip(blocks, placed, strict=True) if segment is not None]
                placed = [segment for segment in placed if segment is not None]
            for key in [key for key, (_, segment) in live.items() if segment == full.segment_to_empty]:
                del live[key]
            if full.segment_to_empty is not None:
                store.drop_segment(full.segment_to_empty)
                emptied += 1
        for block, segment in zip(blocks, placed, strict=True):
            if segment is not None:
                live[block.key] = (block, segment)
        blocks = [block for block, segment in zip(blocks, placed, strict=True) if segment is None]
    return emptied


def _evict(store: DiskStore, live: Live, target_bytes: float, rng: random.Random) -> None:
    victims = []
    total = sum(len(block.payload) for block, _ in live.values())
    while total > target_bytes:
        key = rng.choice(list(live))
        block, segment = live.pop(key)
        total -= len(block.payload)
        victims.append((block.fingerprint, key, segment))
    store.delete(victims)


@pytest.mark.parametrize("capacity", [1 << 20, 8 << 20])
def test_ten_fold_churn_of_mixed_sizes_stays_under_the_cap(kit: Kit, capacity: int) -> None:
    rng = random.Random(7)
    store = kit.store(capacity)
    store.open()
    live: Live = {}
    written = number = 0
    largest = 0
    while written < 10 * capacity:
        size = rng.choice([8192, 16384, 65536])
        numbers = range(number, number := number + rng.randint(1, 6))
        blocks = kit.blocks(numbers, size)
        written += size * len(blocks)
        _evict(store, live, 0.6 * capacity - size * len(blocks), rng)
        _put(store, blocks, live)
        held = bytes_on_disk(kit.path)
        largest = max(largest, held)
        assert held <= capacity
        assert held <= store.usage().physical_bytes <= capacity
    assert largest > 0.6 * capacity
    assert store.usage().live_blocks == len(live)
    kit.expect(store, [block for block, _ in live.values()], [segment for _, segment in live.values()])
    store.close()
    found = kit.store(capacity).open()
    assert {block.key for block in found} == set(live)


def test_one_size_at_the_cap_reuses_pages_instead_of_emptying_segments(kit: Kit) -> None:
    store = kit.store(8 << 20)
    store.open()
    live: Live = {}
    rng = random.Random(3)
    emptied = _put(store, kit.blocks(range(store.capacity_blocks(16384)), 16384), live)
    for round_number in range(40):
        _evict(store, live, (len(live) - 16) * 16384, rng)
        first = 1000 + round_number * 16
        emptied += _put(store, kit.blocks(range(first, first + 16), 16384), live)
    assert emptied <= 4
    assert store.usage().counters.ticks > 0
    assert store.usage().live_blocks == len(live)


def test_pages_deleted_are_reusable_two_transactions_later(kit: Kit) -> None:
    store = kit.store(64 << 20)
    store.open()
    segment = store._shelf.create(65536)
    segment.apply(kit.blocks(range(40)), 0.0)
    pages = segment.file_bytes
    segment.doom([kit.space + kit.key(n) for n in range(20)])
    segment.apply((), 0.0, deletes=20)
    assert (segment.unripe_blocks, segment.reusable_blocks) == (20, 0)
    segment.apply((), 0.0)
    assert segment.unripe_blocks == 0
    assert segment.reusable_blocks >= 19
    segment.apply(kit.blocks(range(100, 118)), 0.0)
    assert segment.file_bytes - pages <= 2 * segment.sizes.shape.run_bytes
    assert segment.live_blocks == 38


def test_segments_set_aside_count_and_go_first(kit: Kit) -> None:
    store = kit.store(4 << 20)
    store.open()
    blocks = kit.blocks(range(24))
    segments = store.put(blocks)
    store.close(clean=False)
    victim = segments[0]
    (kit.data_file(victim).parent / "manifest.json").write_text("{}")
    again = kit.store(4 << 20)
    assert [item.segment for item in again.open().aside] == [victim]
    assert again.usage().aside_bytes > 65536
    with pytest.raises(DiskFullError):
        again.put(kit.blocks(range(100, 160)))
    assert again.usage().aside_bytes == 0
    assert bytes_on_disk(kit.path) <= 4 << 20
    kept = [(b, s) for b, s in zip(blocks, segments, strict=True) if s != victim]
    assert kit.read(again, [kit.ref(b, s) for b, s in kept])[0] == [ReadOutcome.OK] * len(kept)
