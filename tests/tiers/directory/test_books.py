"""Books: exact room per pool, quarantine, and the slots that belong to the lanes."""

import numpy as np
import pytest

from hybridkv.migration.policies.lru import Lru
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.states import Tier
from tests.tiers.directory.conftest import SIZE, Kit, mapped

ROWS = np.arange(8)


@pytest.fixture
def book() -> MappedBook:
    return mapped(PoolId(Tier.CPU), 0, 2)


@pytest.fixture
def disk() -> DiskBook:
    """Room for 10 blocks of one page (and a page of header each), or 5 of three."""
    return DiskBook(
        PoolId(Tier.DISK), 0, 1 << 20, Lru(), lambda size: size // 4096 + 1, lambda size: 10 if size == 4096 else 5
    )


def test_a_slot_with_a_lapsed_holder_is_quarantined_when_it_is_given(book: MappedBook) -> None:
    slots = book.take(SIZE, ROWS[:2], SlotUse.RESERVED)
    book.settle(SIZE, ROWS[:2], slots)
    book.haunt(slots[:1].tolist())
    book.give(SIZE, slots, SlotUse.RESIDENT, ROWS)
    assert [book.table.use_of(slot) for slot in slots.tolist()] == [SlotUse.QUARANTINED, SlotUse.FREE]
    assert int(slots[0]) not in book.take(SIZE, ROWS, SlotUse.RESERVED).tolist()
    book.release(slots[:1].tolist())
    assert book.table.use_of(int(slots[0])) is SlotUse.FREE
    assert book.check() == []


def test_a_release_before_the_slot_is_given_frees_nothing_yet(book: MappedBook) -> None:
    slots = book.take(SIZE, ROWS[:1], SlotUse.RESERVED)
    book.haunt(slots.tolist())
    book.release(slots.tolist())
    assert book.table.use_of(int(slots[0])) is SlotUse.RESERVED
    book.give(SIZE, slots, SlotUse.RESERVED, ROWS)
    assert book.table.use_of(int(slots[0])) is SlotUse.FREE


def test_lanes_own_what_there_is_up_to_what_they_want(book: MappedBook) -> None:
    assert book.own_lane_slots(SIZE, 3) == 3
    assert book.own_lane_slots(SIZE, 3) == 3
    assert book.own_lane_slots(SIZE, 99) == 8
    assert book.free_slots(SIZE) == 0
    assert book.capacity_slots(SIZE) == 0
    assert book.used_bytes == 0, "lane slots lie outside the watermarks"
    assert book.check() == []


def test_check_sees_lane_slots_that_are_not_there(book: MappedBook) -> None:
    book.own_lane_slots(SIZE, 2)
    book.lane_slots[SIZE].extend([0, SIZE])
    book.lane_slots_owned[SIZE] = 3
    assert len([line for line in book.check() if line.startswith("law 2")]) == 2


def test_translations_name_the_slot_and_nothing_where_there_is_none(book: MappedBook) -> None:
    slots = book.take(SIZE, ROWS[:2], SlotUse.RESERVED)
    told = book.translations(slots)
    assert told["offset"].tolist() == slots.tolist()
    assert told["extent"].tolist() == book.table.extents_of(slots).tolist()
    assert len(book.translations(slots[:0])) == 0


def test_the_disk_counts_pages_of_what_is_there_and_on_its_way(disk: DiskBook) -> None:
    assert disk.free_slots(4096) == 10
    slots = disk.take(4096, ROWS[:3], SlotUse.INCOMING)
    assert disk.free_slots(4096) == 7
    assert disk.used_bytes == 3 * 2 * 4096
    disk.settle(4096, ROWS[:2], slots[:2])
    disk.give(4096, slots[2:], SlotUse.INCOMING, ROWS)
    assert disk.used_bytes == 2 * 2 * 4096
    assert disk.free_slots(8192) == (5 * 3 - 4) // 3
    disk.give(4096, slots[:2], SlotUse.RESIDENT, ROWS)
    assert disk.used_bytes == 0
    assert disk.check() == []


def test_the_disk_gives_no_more_than_it_has_and_nothing_when_off(disk: DiskBook) -> None:
    assert len(disk.take(4096, np.arange(50), SlotUse.INCOMING)) == 10
    assert disk.free_slots(4096) == 0
    disk.give(4096, np.zeros(10, np.int64), SlotUse.INCOMING, ROWS)
    disk.on = False
    assert len(disk.take(4096, ROWS, SlotUse.INCOMING)) == 0


def test_check_sees_a_negative_use(disk: DiskBook) -> None:
    disk.settle(4096, ROWS[:1], disk.take(4096, ROWS[:1], SlotUse.INCOMING))
    disk.give(4096, np.zeros(2, np.int64), SlotUse.RESIDENT, ROWS)
    assert any("negative use" in line for line in disk.check())


def test_every_slot_of_a_pool_has_one_use_whatever_happens(kit: Kit) -> None:
    """Law 2, summed by hand over one life of everything."""
    kit.seal(1, 2, 3)
    kit.reserve(4)
    kit.begin([3], 0, 1)
    book = kit.directory.state.mapped(0)
    uses = book.table.bytes_by_use
    assert uses[SlotUse.RESIDENT] == 3 * SIZE
    assert uses[SlotUse.RESERVED] == SIZE
    assert book.table.free_bytes + sum(uses) + book.table.remainder_bytes == book.capacity_bytes
    assert kit.directory.state.mapped(1).table.bytes_by_use[SlotUse.INCOMING] == SIZE
