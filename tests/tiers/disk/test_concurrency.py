"""Readers beside the writer: ordered by events, never by sleeps."""

import threading
from collections.abc import Callable

from hybridkv.tiers import points
from hybridkv.tiers.disk import ReadOutcome

from .conftest import Kit


def _hold_at(name: str, thread_name: str) -> tuple[Callable[[str], None], threading.Event, threading.Event]:
    """A handler that holds the named thread at a point: (handler, reached, go on)."""
    reached, go_on = threading.Event(), threading.Event()

    def handler(passed: str) -> None:
        if passed == name and threading.current_thread().name == thread_name and not reached.is_set():
            reached.set()
            assert go_on.wait(30)

    return handler, reached, go_on


def test_a_held_commit_holds_no_reader(kit: Kit) -> None:
    store = kit.store()
    store.open()
    old, new = kit.blocks(range(4)), kit.blocks(range(10, 14))
    segments = store.put(old)
    handler, reached, go_on = _hold_at("disk.put.before_commit", "writer")
    with points.listening(handler):
        writer = threading.Thread(target=store.put, args=(new,), name="writer")
        writer.start()
        assert reached.wait(30)
        kit.expect(store, old, segments)
        assert kit.read(store, kit.refs(new, segments))[0] == [ReadOutcome.MISSING] * 4
        assert store.usage().live_blocks == 4
        go_on.set()
        writer.join(30)
    kit.expect(store, new, segments)


def test_block_deleted_and_its_pages_reused_during_a_read_is_missing_never_wrong(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(4))
    segments = [*store.put(blocks[:2]), *store.put(blocks[2:])]  # the second leaves single pages free, for trees
    segment = store._shelf.segments[segments[0]]
    handler, reached, go_on = _hold_at("disk.read.before_pread", "reader")
    answers: list[ReadOutcome] = []
    with points.listening(handler):
        refs = kit.refs(blocks[:1], segments[:1])
        reader = threading.Thread(target=lambda: answers.extend(kit.read(store, refs)[0]), name="reader")
        reader.start()
        assert reached.wait(30)
        pages = segment.file_bytes
        store.delete([(kit.space, blocks[0].key, segments[0])], durable=True)
        segment.apply((), 0.0)
        segment.apply([kit.block(50)], 0.0)
        assert segment.file_bytes <= pages + 4 * 4096  # the freed run was taken again
        go_on.set()
        reader.join(30)
    assert answers == [ReadOutcome.MISSING]
    assert store.usage().counters.blocks_corrupt == 0


def test_block_rewritten_elsewhere_during_a_read_is_served(kit: Kit) -> None:
    store = kit.store()
    store.open()
    block = kit.block(1)
    (number,) = store.put([block])
    segment = store._shelf.segments[number]
    handler, reached, go_on = _hold_at("disk.read.before_pread", "reader")
    answers: list[tuple[list[ReadOutcome], list[bytes]]] = []
    with points.listening(handler):
        refs = [kit.ref(block, number)]
        reader = threading.Thread(target=lambda: answers.append(kit.read(store, refs)), name="reader")
        reader.start()
        assert reached.wait(30)
        segment.apply([block], 0.0)  # the value moves, its old run becomes free
        segment.apply((), 0.0)
        segment.apply([kit.block(50)], 0.0)  # and is taken by another
        go_on.set()
        reader.join(30)
    assert answers == [([ReadOutcome.OK], [bytes(block.payload)])]


def test_drop_waits_for_the_read_and_the_read_is_right(kit: Kit) -> None:
    store = kit.store()
    store.open()
    block = kit.block(1)
    (number,) = store.put([block])
    segment = store._shelf.segments[number]
    hold, reached, go_on = _hold_at("disk.read.before_pread", "reader")
    unlinking = threading.Event()

    def handler(passed: str) -> None:
        hold(passed)
        if passed == "disk.segment.before_unlink":
            unlinking.set()

    answers: list[tuple[list[ReadOutcome], list[bytes]]] = []
    with points.listening(handler):
        refs = [kit.ref(block, number)]
        reader = threading.Thread(target=lambda: answers.append(kit.read(store, refs)), name="reader")
        reader.start()
        assert reached.wait(30)
        dropper = threading.Thread(target=store.drop_segment, args=(number,))
        dropper.start()
        while segment.pin():  # until the drop has begun
            segment.unpin()
        assert not unlinking.wait(0.2)
        go_on.set()
        reader.join(30)
        dropper.join(30)
    assert answers == [([ReadOutcome.OK], [bytes(block.payload)])]
    assert unlinking.is_set()
    assert kit.read(store, [kit.ref(block, number)])[0] == [ReadOutcome.MISSING]
    assert not list(kit.path.glob("seg-*"))


def test_readers_beside_churn_get_their_bytes_or_missing(kit: Kit) -> None:
    store = kit.store(8 << 20)
    store.open()
    fixed = kit.blocks(range(10), 16384)
    fixed_segments = store.put(fixed)
    stop = threading.Event()
    wrong: list[object] = []
    rounds = [0, 0, 0]

    def read_on(reader: int) -> None:
        while not stop.is_set() or not rounds[reader]:
            outcomes, found = kit.read(store, kit.refs(fixed, fixed_segments))
            if outcomes != [ReadOutcome.OK] * 10 or found != [bytes(block.payload) for block in fixed]:
                wrong.append(outcomes)
            rounds[reader] += 1

    readers = [threading.Thread(target=read_on, args=(number,)) for number in range(3)]
    for reader in readers:
        reader.start()
    for first in range(100, 1600, 15):
        blocks = kit.blocks(range(first, first + 15), 16384)
        segments = store.put(blocks)
        store.delete([(b.fingerprint, b.key, s) for b, s in zip(blocks, segments, strict=True)])
    stop.set()
    for reader in readers:
        reader.join(30)
    assert wrong == []
    assert min(rounds) > 0
    assert store.usage().live_blocks == 10
