"""What the store promises while nothing fails."""

import os

import pytest

from hybridkv.tiers.disk import DiskBlock, DiskRef, DiskState, DiskStore, ReadOutcome
from hybridkv.tiers.disk.codec import PAGE_BYTES
from hybridkv.tiers.errors import DiskFullError, InvalidArgumentError, UnavailableError

from .conftest import Kit


def test_round_trip_of_two_sizes_and_two_key_widths(kit: Kit) -> None:
    store = kit.store()
    assert len(store.open()) == 0
    blocks = [
        kit.block(1, 65536),
        kit.block(2, 8192, key_bytes=8),
        kit.block(3, 65536, key_bytes=64),
        kit.block(4, 8192),
    ]
    segments = store.put(blocks)
    assert segments[0] == segments[2] != segments[1] == segments[3]
    kit.expect(store, blocks, segments)
    usage = store.usage()
    assert (usage.live_blocks, usage.segments, usage.live_bytes) == (4, 2, 2 * (65536 + 8192))
    assert usage.counters.blocks_put == usage.counters.blocks_read == 4


@pytest.mark.parametrize("clean", [True, False])
def test_restart_lists_and_serves_every_block(kit: Kit, clean: bool) -> None:
    store = kit.store()
    store.open()
    blocks = [*kit.blocks(range(20)), *kit.blocks(range(5), space=kit.other_space), kit.block(50, 4096, key_bytes=8)]
    segments = store.put(blocks)
    store.close(clean)
    again = kit.store()
    found = again.open()
    assert (found.clean, found.aside, found.dropped_records) == (clean, [], 0)
    listed = {(b.fingerprint, b.key): (b.parent, b.block_bytes, b.checksum, b.segment, b.stored_at) for b in found}
    assert listed == {
        (b.fingerprint, b.key): (b.parent, len(b.payload), b.checksum, segment, 1000.0)
        for b, segment in zip(blocks, segments, strict=True)
    }
    assert len(found.runs) == len({(run.segment, run.fingerprint) for run in found.runs})
    kit.expect(again, blocks, segments)
    assert again.usage().live_blocks == len(blocks)


def test_values_lie_where_meta_says_and_payload_is_page_aligned(kit: Kit) -> None:
    store = kit.store()
    store.open()
    block = kit.block(1)
    (segment,) = store.put([block])
    content = kit.data_file(segment).read_bytes()
    at = content.index(bytes(block.payload))
    assert at % PAGE_BYTES == 0
    assert content[at - 256 : at - 252] == b"HKVB"


def test_every_batch_is_synced_and_the_map_is_read_only(kit: Kit) -> None:
    store = kit.store()
    store.open()
    (segment,) = store.put([kit.block(1)])
    flags = store._shelf.segments[segment]._env.flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"], flags["readahead"]) == (True, True, False, False)


def test_copying_from_the_map_serves_the_same_bytes(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(3))
    segments = store.put(blocks)
    store._shelf.segments[segments[0]].offsets_known = False
    kit.expect(store, blocks, segments)


def test_unknown_blocks_are_missing_not_errors(kit: Kit) -> None:
    store = kit.store()
    store.open()
    block = kit.block(1)
    (segment,) = store.put([block])
    refs = [kit.ref(kit.block(2), segment), kit.ref(block, segment + 7)]
    assert kit.read(store, refs)[0] == [ReadOutcome.MISSING] * 2
    store.delete([(kit.space, kit.key(2), segment), (kit.space, kit.key(2), 99)])
    kit.expect(store, [block], [segment])
    assert store.put([]) == []
    assert store.read([], []) == []


def test_block_of_another_namespace_is_never_served(kit: Kit) -> None:
    store = kit.store()
    store.open()
    block = kit.block(1)
    (segment,) = store.put([block])
    foreign = DiskRef(kit.other_space, block.key, segment, block.checksum, 65536)
    assert kit.read(store, [foreign])[0] == [ReadOutcome.MISSING]


def test_another_checksum_than_the_directorys_is_corrupt(kit: Kit) -> None:
    store = kit.store()
    store.open()
    block = kit.block(1)
    (segment,) = store.put([block])
    assert kit.read(store, [DiskRef(kit.space, block.key, segment, block.checksum ^ 1, 65536)])[0] == [
        ReadOutcome.CORRUPT
    ]


def test_put_of_a_wrong_checksum_is_not_served(kit: Kit) -> None:
    store = kit.store()
    store.open()
    good = kit.block(1)
    lie = DiskBlock(good.fingerprint, good.key, good.parent, good.checksum ^ 4, good.payload)
    (segment,) = store.put([lie])
    assert kit.read(store, [kit.ref(lie, segment)])[0] == [ReadOutcome.CORRUPT]


def test_deleted_blocks_are_gone_at_once_and_after_a_clean_restart(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(6))
    segments = store.put(blocks)
    store.delete([(b.fingerprint, b.key, s) for b, s in zip(blocks[:3], segments, strict=False)])
    assert kit.read(store, kit.refs(blocks[:3], segments[:3]))[0] == [ReadOutcome.MISSING] * 3
    kit.expect(store, blocks[3:], segments[3:])
    assert store.usage().live_blocks == 3
    store.close()
    assert {b.key for b in kit.store().open()} == {b.key for b in blocks[3:]}


def test_durable_delete_holds_without_a_clean_stop(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(4))
    segments = store.put(blocks)
    store.delete([(kit.space, blocks[0].key, segments[0])], durable=True)
    store.close(clean=False)
    assert {b.key for b in kit.store().open()} == {b.key for b in blocks[1:]}


def test_a_block_put_again_after_its_deletion_is_served(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(3))
    segments = store.put(blocks)
    store.delete([(kit.space, blocks[0].key, segments[0])])
    (segment,) = store.put(blocks[:1])
    kit.expect(store, blocks, [segment, *segments[1:]])
    store.close()
    assert len(kit.store().open()) == 3


def test_a_segment_emptied_by_deletes_is_unlinked(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(4))
    segments = store.put(blocks)
    assert len(set(segments)) == 1
    before = store.usage().physical_bytes
    store.delete([(kit.space, b.key, segments[0]) for b in blocks])
    assert not list(kit.path.glob("seg-*"))
    assert store.usage().physical_bytes < before - 4 * 65536
    (fresh,) = store.put(blocks[:1])
    assert fresh not in segments


def test_drop_segment_takes_everything_in_it(kit: Kit) -> None:
    store = kit.store()
    store.open()
    small, large = kit.blocks(range(3), 4096), kit.blocks(range(10, 13))
    segments = store.put([*small, *large])
    store.drop_segment(segments[0])
    store.drop_segment(segments[0])
    assert kit.read(store, kit.refs(small, segments[:3]))[0] == [ReadOutcome.MISSING] * 3
    kit.expect(store, large, segments[3:])


def test_clear_of_one_namespace_keeps_the_other(kit: Kit) -> None:
    store = kit.store()
    store.open()
    ours, theirs = kit.blocks(range(5)), kit.blocks(range(5), space=kit.other_space)
    segments = store.put([*ours, *theirs])
    assert store.clear(kit.space) == 5
    assert kit.read(store, kit.refs(ours, segments[:5]))[0] == [ReadOutcome.MISSING] * 5
    kit.expect(store, theirs, segments[5:])
    store.close(clean=False)
    assert {b.fingerprint for b in kit.store().open()} == {kit.other_space}


def test_clear_of_all_leaves_an_empty_store(kit: Kit) -> None:
    store = kit.store()
    store.open()
    store.put([*kit.blocks(range(5)), *kit.blocks(range(9), 4096)])
    assert store.clear() == 14
    assert store.usage().live_blocks == store.usage().segments == 0
    assert not list(kit.path.glob("seg-*"))


def test_full_store_names_the_cheapest_segment_and_what_was_stored(kit: Kit) -> None:
    store = kit.store(1 << 20)
    store.open()
    small = kit.blocks(range(2), 4096)
    (home, _) = store.put(small)
    blocks = kit.blocks(range(100, 130))
    with pytest.raises(DiskFullError, match="bytes on disk") as caught:
        store.put(blocks)
    stored = [segment for segment in caught.value.stored if segment is not None]
    assert 3 <= len(stored) < len(blocks)
    assert caught.value.stored[: len(stored)] == tuple(stored)
    kit.expect(store, blocks[: len(stored)], stored)
    assert caught.value.segment_to_empty in {home, *stored}
    store.drop_segment(caught.value.segment_to_empty)
    assert len(store.put(blocks[:1])) == 1


def test_a_block_too_large_for_the_store_leaves_nothing_to_empty(kit: Kit) -> None:
    store = kit.store(1 << 20)
    store.open()
    with pytest.raises(DiskFullError) as caught:
        store.put([kit.block(1, 2 << 20)])
    assert caught.value.segment_to_empty is None
    assert store.usage().live_blocks == 0


def test_capacity_blocks_can_be_filled(kit: Kit) -> None:
    store = kit.store(16 << 20)
    store.open()
    count = store.capacity_blocks(65536)
    assert count * store.pages_per_block(65536) * PAGE_BYTES > 0.75 * (16 << 20)
    store.put(kit.blocks(range(count)))
    assert store.usage().live_blocks == count


def test_smaller_capacity_serves_what_is_there_and_shrinks_on_demand(kit: Kit) -> None:
    store = kit.store(16 << 20)
    store.open()
    blocks = kit.blocks(range(100))
    segments = store.put(blocks)
    store.close()
    small = kit.store(4 << 20)
    assert len(small.open()) == 100
    kit.expect(small, blocks, segments)
    extra, dropped = kit.block(1000), 0
    while dropped < 100:
        try:
            small.put([extra])
            break
        except DiskFullError as full:
            small.drop_segment(full.segment_to_empty or 0)
            dropped += 1
    assert 0 < dropped < 16
    assert small.usage().physical_bytes <= 4 << 20


def test_wrong_arguments_change_nothing(kit: Kit) -> None:
    store = kit.store()
    store.open()
    good = kit.block(1)
    odd = DiskBlock(kit.space, kit.key(2), b"", 0, memoryview(bytes(5000)))
    short = DiskBlock(kit.space, b"k" * 7, b"", 0, good.payload)
    for bad in (odd, short):
        with pytest.raises(InvalidArgumentError):
            store.put([good, bad])
    assert store.usage().live_blocks == 0
    ref = kit.ref(good, 1)
    for into in ([memoryview(bytearray(65535))], [memoryview(bytes(65536))], []):
        with pytest.raises(InvalidArgumentError, match="into"):
            store.read([ref], into)
    with pytest.raises(InvalidArgumentError, match="fingerprint"):
        store.clear(b"short")


def test_closed_store_answers_failed_and_refuses_writes(kit: Kit) -> None:
    store = kit.store()
    store.open()
    block = kit.block(1)
    (segment,) = store.put([block])
    store.close()
    store.close()
    assert store.state is DiskState.OFF
    assert kit.read(store, [kit.ref(block, segment)])[0] == [ReadOutcome.FAILED]
    with pytest.raises(UnavailableError, match="closed"):
        store.put([block])


def test_second_opener_is_refused_with_the_firsts_pid(kit: Kit) -> None:
    first = kit.store()
    first.open()
    second = DiskStore(kit.path, 16 << 20)
    with pytest.raises(UnavailableError, match=f"process {os.getpid()}"):
        second.open()
    block = kit.block(1)
    kit.expect(first, [block], first.put([block]))
    first.close()
    assert len(second.open()) == 1
    second.close()
