"""Rot, truncation, damaged trees, foreign formats: nothing wrong is served, and what is sound is kept."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridkv.tiers import points
from hybridkv.tiers.disk import DiskBlock, DiskStore, ReadOutcome
from hybridkv.tiers.disk.codec import PAGE_BYTES, MetaRecord, pack_meta
from hybridkv.tiers.disk.verifier import verify_segments

from .conftest import Kit


def _filled(kit: Kit) -> tuple[DiskStore, list[DiskBlock], list[int]]:
    """A store with blocks of two sizes, so with two segments."""
    store = kit.store()
    store.open()
    blocks = [*kit.blocks(range(8)), *kit.blocks(range(100, 140), 8192)]
    segments = store.put(blocks)
    assert len(set(segments)) == 2
    return store, blocks, segments


def _overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def _place_of(path: Path, block: DiskBlock) -> int:
    return path.read_bytes().index(bytes(block.payload[:64]))


@pytest.mark.parametrize("where", [0, 65535, -256, -1, -100])
def test_rotten_block_is_corrupt_then_repaired(kit: Kit, where: int) -> None:
    """A byte of payload (where >= 0) or header (< 0, from the payload's start) rots."""
    store, blocks, segments = _filled(kit)
    path = kit.data_file(segments[3])
    at = _place_of(path, blocks[3]) + where
    _overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x20]))
    identity_rots = where != -100 and where != -1  # padding of the header and its own sum are not part of a block
    expected = ReadOutcome.CORRUPT if identity_rots else ReadOutcome.OK
    assert kit.read(store, [kit.ref(blocks[3], segments[3])])[0] == [expected]
    others = [i for i in range(len(blocks)) if i != 3]
    kit.expect(store, [blocks[i] for i in others], [segments[i] for i in others])
    if not identity_rots:
        return
    assert kit.read(store, [kit.ref(blocks[3], segments[3])])[0] == [ReadOutcome.MISSING]
    assert store.usage().counters.blocks_corrupt == 1
    assert store.usage().live_blocks == len(blocks) - 1
    store.close()
    again = kit.store()
    assert blocks[3].key not in {block.key for block in again.open()}


def test_a_rotten_block_among_those_read_with_one_call_spoils_no_other(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(8), 8192)
    segments = store.put(blocks)
    reads: list[str] = []
    with points.listening(lambda name: reads.append(name) if name == "disk.read.before_pread" else None):
        kit.expect(store, blocks, segments)
        assert len(reads) <= 2  # a page of the trees may lie between
        path = kit.data_file(segments[3])
        at = _place_of(path, blocks[3]) + 100
        _overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x20]))
        outcomes, found = kit.read(store, kit.refs(blocks, segments))
    assert [number for number, outcome in enumerate(outcomes) if outcome is ReadOutcome.CORRUPT] == [3]
    assert outcomes.count(ReadOutcome.OK) == 7
    assert [found[n] == bytes(blocks[n].payload) for n in range(8)] == [n != 3 for n in range(8)]


def test_truncated_payload_is_a_miss_not_short_bytes(kit: Kit) -> None:
    store, blocks, segments = _filled(kit)
    path = kit.data_file(segments[0])
    places = {i: _place_of(path, blocks[i]) for i in range(8)}
    last = max(places, key=lambda i: places[i])
    os.truncate(path, places[last] + 30000)
    before = memoryview(bytearray(blocks[last].payload))  # what lay in the destination hides no short read
    assert store.read([kit.ref(blocks[last], segments[last])], [before]) == [ReadOutcome.CORRUPT]
    others = [i for i in range(len(blocks)) if i != last]
    kit.expect(store, [blocks[i] for i in others], [segments[i] for i in others])


def test_swapped_payloads_are_not_served_under_each_others_key(kit: Kit) -> None:
    store, blocks, segments = _filled(kit)
    path = kit.data_file(segments[0])
    first, second = _place_of(path, blocks[0]) - 256, _place_of(path, blocks[1]) - 256
    content = path.read_bytes()
    _overwrite(path, first, content[second : second + 256 + 65536])
    _overwrite(path, second, content[first : first + 256 + 65536])
    assert kit.read(store, kit.refs(blocks[:2], segments[:2]))[0] == [ReadOutcome.CORRUPT] * 2


def _scribble_roots(path: Path) -> None:
    content = path.read_bytes()
    for page in range(2, len(content) // PAGE_BYTES):
        header = content[page * PAGE_BYTES :][:16]
        if header[10] & 0x03 and header[:8] == page.to_bytes(8, "little"):  # a branch or leaf page
            _overwrite(path, page * PAGE_BYTES, b"\xa5" * PAGE_BYTES)


def _scribble_metas(path: Path) -> None:
    _overwrite(path, 0, b"\x5a" * 2 * PAGE_BYTES)


def _cut(path: Path) -> None:
    os.truncate(path, 6 * PAGE_BYTES)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [_scribble_roots, _scribble_metas, _cut, _empty])
def test_damaged_tree_is_set_aside_at_the_next_start_and_the_rest_served(
    kit: Kit, damage: Callable[[Path], None]
) -> None:
    store, blocks, segments = _filled(kit)
    store.close(clean=False)
    damage(kit.data_file(segments[0]))
    again = kit.store()
    found = again.open()
    assert [item.segment for item in found.aside] == [segments[0]]
    assert found.aside[0].reason
    assert (kit.path / "aside" / found.aside[0].name / "reason.txt").read_text().strip() == found.aside[0].reason
    assert {block.key for block in found} == {block.key for block in blocks[8:]}
    kit.expect(again, blocks[8:], segments[8:])
    assert kit.read(again, kit.refs(blocks[:8], segments[:8]))[0] == [ReadOutcome.MISSING] * 8
    assert again.usage().counters.segments_aside == 1
    assert not set(again.put(blocks[:8])) & set(segments)


def test_a_file_changed_after_a_clean_stop_is_verified_all_the_same(kit: Kit) -> None:
    store, blocks, segments = _filled(kit)
    store.close(clean=True)
    path = kit.data_file(segments[0])
    page = _place_of(path, blocks[0]) - PAGE_BYTES
    _overwrite(path, page, b"\xff" * 8)  # the number of a value's first page: only a walk of the pages sees it
    found = kit.store().open()
    assert [item.segment for item in found.aside] == [segments[0]]
    assert not found.clean


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[1]",
        b"\xff\xfe",
        json.dumps({"magic": "hybridkv-segment", "version": 2, "block_bytes": 65536}).encode(),
        json.dumps({"magic": "another", "version": 1, "block_bytes": 65536}).encode(),
        json.dumps({"magic": "hybridkv-segment", "version": 1, "block_bytes": 8192}).encode(),
    ],
)
def test_unknown_format_is_set_aside_untouched(kit: Kit, manifest: bytes) -> None:
    store, blocks, segments = _filled(kit)
    store.close()
    path = kit.data_file(segments[0])
    content = path.read_bytes()
    (path.parent / "manifest.json").write_bytes(manifest)
    again = kit.store()
    (aside,) = again.open().aside
    assert (kit.path / "aside" / aside.name / "data.mdb").read_bytes() == content
    kit.expect(again, blocks[8:], segments[8:])


def test_records_of_another_version_are_misses(kit: Kit) -> None:
    store, blocks, segments = _filled(kit)
    segment = store._shelf.segments[segments[0]]
    name = kit.space + blocks[0].key
    record = bytearray(pack_meta(name, MetaRecord(9, 1, 65536, 0.0, b"")))
    record[0] = 2
    with segment._env.begin(write=True) as txn:
        txn.put(name, bytes(record), db=segment._meta)
    assert kit.read(store, [kit.ref(blocks[0], segments[0])])[0] == [ReadOutcome.MISSING]
    store.close()
    found = kit.store().open()
    assert found.dropped_records == 1
    assert len(found) == len(blocks) - 1


@pytest.mark.parametrize("database", ["_meta", "_data"])
def test_half_present_blocks_are_dropped_and_cleaned_up(kit: Kit, database: str) -> None:
    store, blocks, segments = _filled(kit)
    segment = store._shelf.segments[segments[0]]
    with segment._env.begin(write=True) as txn:
        txn.delete(kit.space + blocks[2].key, db=getattr(segment, database))
    store.close(clean=False)
    again = kit.store()
    found = again.open()
    assert found.dropped_records == 1
    assert blocks[2].key not in {block.key for block in found}
    assert again.usage().live_blocks == len(blocks) - 1
    again.close()
    last = kit.store()
    assert last.open().dropped_records == 0


def test_verifier_that_does_not_end_in_time_speaks_against_the_segment(kit: Kit) -> None:
    store, _, segments = _filled(kit)
    store.close(clean=False)
    paths = [kit.data_file(segment).parent for segment in sorted(set(segments))]
    assert verify_segments(paths) == dict.fromkeys(paths)
    slow = verify_segments(paths, base_timeout_s=-10.0)
    assert all(problem and "did not end" in problem for problem in slow.values())


def test_what_a_crash_left_half_made_is_cleared_away(kit: Kit) -> None:
    store, blocks, segments = _filled(kit)
    store.close()
    (kit.path / "new-77").mkdir()
    (kit.path / "old-seg-3-65536").mkdir()
    (kit.path / "old-seg-3-65536" / "data.mdb").write_bytes(b"x")
    (kit.path / "seg-78-65536").mkdir()
    (kit.path / "seg-78-65536" / "manifest.json").write_text(
        json.dumps({"magic": "hybridkv-segment", "version": 1, "block_bytes": 65536})
    )
    again = kit.store()
    assert again.open().aside == []
    assert sorted(path.name for path in kit.path.iterdir() if path.is_dir()) == sorted(
        {kit.data_file(segment).parent.name for segment in segments}
    )
    kit.expect(again, blocks, segments)


def test_what_is_not_ours_stays(kit: Kit) -> None:
    """Somebody pointed the tier at a directory that has other things in it."""
    kit.path.mkdir()
    for name in ("old-photos", "new-project", "seg-of-a-film", "aside-notes"):
        (kit.path / name).mkdir()
        (kit.path / name / "precious").write_text("mine")
    (kit.path / "new-letter.txt").write_text("mine")
    store = kit.store()
    assert len(store.open()) == 0
    kit.expect(store, [kit.block(1)], store.put([kit.block(1)]))
    store.clear()
    store.close()
    assert len(kit.store().open()) == 0
    assert len(list(kit.path.glob("*/precious"))) == 4
    assert (kit.path / "new-letter.txt").read_text() == "mine"
