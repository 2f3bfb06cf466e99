"""The feed: every copy that comes or goes is told once, in order, and whoever falls behind hears of it."""

from contextlib import nullcontext

import numpy as np

from hybridkv.tiers.directory.feed import Event, EventKind
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.states import Priority, Reason
from tests.tiers.directory.conftest import CPU, DISK, GPU, SIZE, Kit, key

SEALED, MOVED, EVICTED, REMOVED, CLEARED = EventKind


def told(kit: Kit) -> list[Event]:
    """All that the feed remembers; numbers follow one another."""
    feed = kit.directory.state.feed
    news = feed.read(feed._first, 1 << 20)
    assert [event.sequence for event in news.events] == list(range(feed._first, feed.next_sequence))
    return news.events


def watched(kit: Kit) -> Kit:
    kit.directory.state.feed.join(nullcontext())
    return kit


def numbers(event: Event) -> set[int]:
    keys = [event.keys[at : at + event.key_bytes] for at in range(0, len(event.keys), event.key_bytes)]
    return {int.from_bytes(one, "little") for one in keys}


def rows(kit: Kit, *wanted: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(kit.rows(*wanted), np.int64)


def test_a_way_through_the_tiers(kit: Kit) -> None:
    watched(kit).seal(1, 2)
    kit.move([1, 2], GPU, CPU)
    kit.move([1], CPU, DISK, keep_source=True)
    kit.directory.copies.drop(rows(kit, 1, 2), CPU, Reason.RECLAIM)
    sealed, moved, kept, *evicted = told(kit)
    assert (sealed.kind, numbers(sealed), sealed.target) == (SEALED, {1, 2}, GPU)
    assert (moved.kind, moved.source, moved.target, moved.kept) == (MOVED, GPU, CPU, False)
    assert (kept.kind, numbers(kept), kept.kept, kept.reason) == (MOVED, {1}, True, Reason.WATERMARK)
    assert [(event.kind, numbers(event), event.source, event.last) for event in evicted] == [
        (EVICTED, {1}, CPU, False),
        (EVICTED, {2}, CPU, True),
    ]
    assert {event.fingerprint for event in told(kit)} == {kit.space.fingerprint}


def test_a_lease_that_keeps_the_source_is_told(kit: Kit) -> None:
    watched(kit).seal(1, 2)
    transfers = kit.begin([1, 2], GPU, CPU)
    kit.directory.moves.start_all(transfers)
    lease = kit.directory.leases.open(kit.session, rows(kit, 1), views=True, request=None, life_s=30.0)
    kit.directory.leases.hold(lease, np.array([0]), GPU)
    kit.directory.moves.commit(transfers)
    _, *moved = told(kit)
    assert sorted((numbers(event), event.kept) for event in moved) == [({1}, True), ({2}, False)]
    kit.directory.leases.release(lease)


def test_a_removed_block_is_told_once_whoever_still_holds_it(kit: Kit) -> None:
    watched(kit).seal(1, 2)
    lease = kit.directory.leases.open(kit.session, rows(kit, 1), views=True, request=None, life_s=30.0)
    kit.directory.leases.hold(lease, np.array([0]), GPU)
    kit.directory.copies.remove(rows(kit, 1), Reason.REMOVE)
    kit.directory.leases.release(lease)
    kit.directory.copies.remove(rows(kit, 2), Reason.CLEAR)
    _, removed, cleared = told(kit)
    assert (removed.kind, numbers(removed)) == (REMOVED, {1})
    assert (cleared.kind, cleared.keys, cleared.count) == (CLEARED, b"", 1)


def test_what_only_a_sequence_has_is_not_told(kit: Kit) -> None:
    directory = watched(kit).directory
    held = directory.writes.begin_private(kit.session, [key(9)], GPU, 1)
    directory.writes.fill(held)
    directory.writes.stop_waiting(held)
    directory.writes.seal(held, np.arange(1), None)
    assert told(kit) == []
    assert directory.state.feed.content().spaces == []
    directory.copies.remove(rows(kit, 9))
    assert told(kit) == []


def test_a_move_within_a_pool_is_no_event(kit: Kit) -> None:
    watched(kit).seal(1)
    book = kit.directory.books[GPU]
    slot = book.take(SIZE, rows(kit, 1), SlotUse.INCOMING)
    transfers = kit.directory.moves.begin(
        rows(kit, 1), GPU, GPU, Reason.RECARVE, Priority.DEMAND, keep_source=False, slots=slot
    )
    kit.directory.moves.start_all(transfers)
    kit.directory.moves.commit(transfers)
    assert [event.kind for event in told(kit)] == [SEALED]


def test_nobody_watches(kit: Kit) -> None:
    """Nothing is kept, but the numbers go on: whoever comes with an old one hears of a gap."""
    feed = kit.directory.state.feed
    before = feed.next_sequence
    for happens in (
        lambda: kit.seal(1),
        lambda: kit.move([1], GPU, CPU),
        lambda: kit.move([1], CPU, DISK, keep_source=True),
        lambda: kit.directory.copies.drop(rows(kit, 1), CPU, Reason.RECLAIM),
        lambda: kit.directory.copies.remove(rows(kit, 1)),
    ):
        last = feed.next_sequence
        happens()
        assert feed.next_sequence > last
    assert feed.figures["buffered_events"] == 0
    start = feed.join(nullcontext())
    assert feed.read(before, 1 << 20).gap_before == start
    assert feed.read(start, 1 << 20).gap_before is None


def test_the_log_ends_when_it_is_full_and_nobody_watches(kit: Kit) -> None:
    feed = watched(kit).directory.state.feed
    feed.limit_bytes = 2000
    for number in range(20):
        kit.directory.copies.remove(np.array(kit.seal(number), np.int64))
    assert 0 < feed.figures["buffered_bytes"] <= 2000
    assert feed.read(1, 1 << 20).gap_before is not None
    feed.leave()
    for number in range(20):
        kit.directory.copies.remove(np.array(kit.seal(number), np.int64))
    assert feed.figures["buffered_bytes"] == 0


def test_a_read_is_bounded_and_goes_on(kit: Kit) -> None:
    feed = watched(kit).directory.state.feed
    for number in range(8):
        kit.seal(number)
    at, found = feed._first, list[int]()
    while at != feed.next_sequence:
        news = feed.read(at, 1)
        assert len(news.events) == 1
        found += numbers(news.events[0])
        at = news.next_sequence
    assert found == list(range(8))
    nothing = feed.read(feed._first, 1 << 20, kinds=[REMOVED])
    assert (nothing.events, nothing.next_sequence) == ([], feed.next_sequence)


def test_content_is_what_there_is(kit: Kit) -> None:
    watched(kit).seal(1, 2)
    kit.move([2], GPU, CPU)
    other = kit.directory.add_space_by(b"g" * 32, SIZE, 64)  # makes every row of keys wider
    kit.directory.open_session(other)
    content = kit.directory.state.feed.content(kit.space.fingerprint)
    (mine,) = content.spaces
    assert content.sequence == kit.directory.state.feed.next_sequence
    found = {mine.keys[8 * n : 8 * n + 8]: int(pools) for n, pools in enumerate(mine.pools)}
    assert found == {key(1): 1 << GPU, key(2): 1 << CPU}
    assert kit.directory.state.feed.content(b"h" * 32).spaces == []
