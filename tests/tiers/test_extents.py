"""Slots of one pool: who has which, exact sums, and what happens when an extent changes its layout."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from hybridkv.tiers.errors import InternalError
from hybridkv.tiers.extents import ExtentState, ExtentTable, SlotUse

KIB = 1024
EXTENT = 64 * KIB


def table(extents: int = 4, **kwargs: object) -> ExtentTable:
    return ExtentTable(extents * EXTENT, extent_bytes=EXTENT, **kwargs)  # type: ignore[arg-type]


def carved(size: int, extents: int = 4, carve: int | None = None) -> ExtentTable:
    """A table with `carve` (all) extents carved into slots of `size`."""
    made = table(extents)
    for _ in range(extents if carve is None else carve):
        number = made.begin_carving(size)
        assert number is not None
        made.carve(number)
    return made


def rows(count: int, first: int = 0) -> NDArray[np.int64]:
    return np.arange(first, first + count, dtype=np.int64)


def test_an_uncarved_table_gives_nothing_and_is_all_free() -> None:
    made = table()
    assert made.free_slots(8 * KIB) == 0
    assert len(made.take(8 * KIB, rows(3), SlotUse.RESERVED)) == 0
    assert made.free_bytes == made.capacity_bytes
    assert made.capacity_slots(8 * KIB) == 32
    assert made.check() == []


def test_a_taken_slot_has_its_use_and_its_owner() -> None:
    made = carved(8 * KIB)
    slots = made.take(8 * KIB, rows(3, first=7), SlotUse.RESERVED)
    assert [made.use_of(slot) for slot in slots.tolist()] == [SlotUse.RESERVED] * 3
    assert [made.owner_of(slot) for slot in slots.tolist()] == [7, 8, 9]
    assert made.bytes_by_use[SlotUse.RESERVED] == 24 * KIB
    assert made.free_slots(8 * KIB) == 29
    assert made.check() == []


def test_taking_more_than_there_is_gives_what_fits_to_the_first_rows() -> None:
    made = carved(32 * KIB, extents=2)
    slots = made.take(32 * KIB, rows(9), SlotUse.INCOMING)
    assert [made.owner_of(slot) for slot in slots.tolist()] == [0, 1, 2, 3]
    assert len(made.take(32 * KIB, rows(1), SlotUse.INCOMING)) == 0
    assert made.bytes_by_use[SlotUse.INCOMING] == made.capacity_bytes
    assert made.check() == []


def test_the_fullest_extent_gives_first() -> None:
    made = carved(16 * KIB, extents=3)
    first = made.take(16 * KIB, rows(4), SlotUse.RESIDENT)
    fuller = set(made.extents_of(first).tolist())
    made.give(first[:1])
    again = made.take(16 * KIB, rows(1), SlotUse.RESIDENT)
    assert set(made.extents_of(again).tolist()) == fuller
    assert again.tolist() == first[:1].tolist()


def test_a_freed_slot_is_taken_again_and_only_once() -> None:
    made = carved(32 * KIB, extents=1)
    slots = made.take(32 * KIB, rows(2), SlotUse.RESIDENT)
    made.give(slots[1:])
    assert made.owner_of(int(slots[1])) == -1
    assert made.take(32 * KIB, rows(2, first=5), SlotUse.RESERVED).tolist() == [int(slots[1])]
    assert made.check() == []


def test_giving_a_free_slot_is_a_bug_that_is_named() -> None:
    made = carved(32 * KIB, extents=1)
    slots = made.take(32 * KIB, rows(1), SlotUse.RESIDENT)
    made.give(slots)
    with pytest.raises(AssertionError, match="free slot"):
        made.give(slots)
    with pytest.raises(AssertionError, match="free slot"):
        made.set_use(slots, SlotUse.RESIDENT)


def test_a_change_of_use_moves_the_bytes_and_the_owner() -> None:
    made = carved(8 * KIB)
    slots = made.take(8 * KIB, rows(4), SlotUse.RESERVED)
    made.set_use(slots[:2], SlotUse.RESIDENT, rows(2, first=10))
    made.set_use(slots[2:], SlotUse.QUARANTINED)
    assert made.bytes_by_use[SlotUse.RESERVED] == 0
    assert made.bytes_by_use[SlotUse.RESIDENT] == made.bytes_by_use[SlotUse.QUARANTINED] == 16 * KIB
    assert [made.owner_of(slot) for slot in slots.tolist()] == [10, 11, -1, -1]
    assert made.check() == []


def test_lane_slots_lie_outside_the_used_bytes() -> None:
    made = carved(8 * KIB)
    made.take(8 * KIB, np.full(2, -1, np.int64), SlotUse.LANE)
    made.take(8 * KIB, rows(1), SlotUse.RESIDENT)
    assert made.used_bytes == 8 * KIB
    assert made.check() == []


# ---------------------------------------------------------------------------------------------------- geometry


def test_slots_start_at_multiples_of_their_size_from_the_allocations_base() -> None:
    base = [0, 0, 2 * EXTENT, 2 * EXTENT]
    made = table(base_of=lambda extent: base[extent])
    size = 24 * KIB
    for _ in range(4):
        made.carve(made.begin_carving(size))  # type: ignore[arg-type]
    slots = made.take(size, rows(99), SlotUse.RESIDENT)
    bases = np.array(base)[made.extents_of(slots)]
    assert ((slots - bases) % size == 0).all()
    assert (made.extents_of(slots + size - 1) == made.extents_of(slots)).all(), "a slot lies in one extent"
    assert len(slots) == made.capacity_slots(size) == 8
    assert made.check() == []


def test_what_no_slot_can_use_is_remainder() -> None:
    made = ExtentTable(2 * EXTENT + 5 * KIB, extent_bytes=EXTENT)
    assert made.remainder_bytes == 5 * KIB
    made.carve(made.begin_carving(24 * KIB))  # type: ignore[arg-type]
    assert made.remainder_bytes == 5 * KIB + EXTENT - 2 * 24 * KIB
    assert made.free_bytes + made.remainder_bytes == made.capacity_bytes
    assert made.check() == []


def test_header_indices_are_distinct_and_stay_within_their_extent() -> None:
    made = carved(24 * KIB)
    slots = made.take(24 * KIB, rows(99), SlotUse.RESIDENT)
    indices = made.header_indices(slots)
    assert len(np.unique(indices)) == len(slots)
    assert (indices // made.slots_per_extent == made.extents_of(slots)).all()


# ---------------------------------------------------------------------------------------------------- extents


def test_an_extent_being_carved_gives_nothing_yet_but_is_announced() -> None:
    made = table()
    number = made.begin_carving(16 * KIB)
    assert made.carving_slots(16 * KIB) == 4
    assert made.carving_slots(8 * KIB) == made.free_slots(16 * KIB) == 0
    assert made.check() == []
    made.carve(number)  # type: ignore[arg-type]
    assert made.carving_slots(16 * KIB) == 0
    assert made.free_slots(16 * KIB) == 4


def test_a_carving_that_failed_leaves_the_extent_free_or_returned() -> None:
    made = table(2)
    made.spare(made.begin_carving(16 * KIB))  # type: ignore[arg-type]
    assert made.state_of(0) is ExtentState.FREE
    made.spare(made.begin_carving(16 * KIB), returned=True)  # type: ignore[arg-type]
    assert made.state_of(0) is ExtentState.RETURNED
    assert made.begin_carving(16 * KIB) == 1
    assert made.begin_carving(16 * KIB) is None
    assert made.check() == []


def test_an_extent_being_emptied_gives_no_slot_but_takes_slots_back() -> None:
    made = carved(16 * KIB, extents=1)
    slots = made.take(16 * KIB, rows(2), SlotUse.RESIDENT)
    made.begin_emptying(0)
    assert made.free_slots(16 * KIB) == 0
    assert len(made.take(16 * KIB, rows(1), SlotUse.RESERVED)) == 0
    assert made.slots_in(0, SlotUse.RESIDENT)[1].tolist() == [0, 1]
    made.give(slots)
    assert made.used_slots(0) == 0
    made.spare(0)
    assert made.state_of(0) is ExtentState.FREE
    assert made.begin_carving(32 * KIB) == 0
    made.carve(0)
    assert made.slot_bytes_of(0) == 32 * KIB
    assert made.free_slots(16 * KIB) == 0
    assert made.check() == []


def test_emptying_may_be_given_up() -> None:
    made = carved(16 * KIB, extents=1)
    made.begin_emptying(0)
    made.cancel_emptying(0)
    assert made.free_slots(16 * KIB) == 4


def test_an_extent_in_use_is_not_spared() -> None:
    made = carved(16 * KIB, extents=1)
    made.take(16 * KIB, rows(1), SlotUse.QUARANTINED)
    with pytest.raises(AssertionError, match="not empty"):
        made.spare(0)


# ---------------------------------------------------------------------------------------------------- check


def test_check_sees_a_slot_used_behind_its_back() -> None:
    made = carved(16 * KIB, extents=1)
    made._extents[0].use[0] = SlotUse.RESIDENT
    assert any("free stack names" in line for line in made.check())


def test_check_sees_a_free_slot_that_is_lost() -> None:
    made = carved(16 * KIB, extents=1)
    made._extents[0].free_count -= 1
    assert any("not on the free stack" in line for line in made.check())


def test_check_sees_a_sum_that_is_off() -> None:
    made = carved(16 * KIB, extents=1)
    made.bytes_by_use[SlotUse.RESIDENT] += 512
    assert any("are counted" in line for line in made.check())


class Tables(RuleBasedStateMachine):
    """Any order of calls, against a plain dictionary of slots."""

    SIZES = (4 * KIB, 12 * KIB, 20 * KIB)

    def __init__(self) -> None:
        super().__init__()
        self.table = table(3)
        self.taken: dict[int, tuple[int, SlotUse, int]] = {}

    def _some(self, mask: int) -> list[int]:
        return [slot for i, slot in enumerate(sorted(self.taken)) if mask & (1 << (i % 8))]

    @rule(size=st.sampled_from(SIZES))
    def carve(self, size: int) -> None:
        number = self.table.begin_carving(size)
        if number is not None:
            self.table.carve(number)

    @rule(size=st.sampled_from(SIZES), count=st.integers(0, 9), use=st.sampled_from(list(SlotUse)[1:]))
    def take(self, size: int, count: int, use: SlotUse) -> None:
        free = self.table.free_slots(size)
        slots = self.table.take(size, rows(count, first=100), use).tolist()
        assert len(slots) == min(count, free)
        assert not self.taken.keys() & set(slots)
        self.taken.update({slot: (size, use, 100 + i) for i, slot in enumerate(slots)})

    @rule(mask=st.integers(0, 255))
    def give(self, mask: int) -> None:
        chosen = self._some(mask)
        self.table.give(np.array(chosen, np.int64))
        for slot in chosen:
            del self.taken[slot]

    @rule(mask=st.integers(0, 255), use=st.sampled_from(list(SlotUse)[1:]))
    def set_use(self, mask: int, use: SlotUse) -> None:
        chosen = self._some(mask)
        self.table.set_use(np.array(chosen, np.int64), use)
        self.taken.update({slot: (self.taken[slot][0], use, -1) for slot in chosen})

    @rule(number=st.integers(0, 2), returned=st.booleans())
    def empty(self, number: int, returned: bool) -> None:
        if self.table.state_of(number) is not ExtentState.CARVED:
            return
        self.table.begin_emptying(number)
        if self.table.used_slots(number):
            self.table.cancel_emptying(number)
        else:
            self.table.spare(number, returned=returned)

    @invariant()
    def the_table_says_what_was_done(self) -> None:
        assert self.table.check() == []
        for slot, (_, use, owner) in self.taken.items():
            assert self.table.use_of(slot) is use
            assert self.table.owner_of(slot) == owner
        spans = sorted((slot, slot + size) for slot, (size, _, _) in self.taken.items())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "no two slots overlap"


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=30, derandomize=True, database=None, deadline=None)


@given(size=st.integers(8, 128), bases=st.lists(st.integers(0, 3), min_size=4, max_size=4))
@settings(derandomize=True, database=None)
def test_any_size_fits_without_overlap_and_sums_to_capacity(size: int, bases: list[int]) -> None:
    nbytes = size * 512
    made = table(base_of=lambda extent: min(bases[extent], extent) * EXTENT)
    while (number := made.begin_carving(nbytes)) is not None:
        made.carve(number)
    slots = np.sort(made.take(nbytes, rows(999), SlotUse.RESIDENT))
    assert len(slots) == made.capacity_slots(nbytes)
    assert (np.diff(slots) >= nbytes).all()
    assert made.check() == []


# ------------------------------------------------------------------------------------------------ runs


def _carved(extents: int, slots: int) -> ExtentTable:
    table = ExtentTable(extents * slots * 4096, extent_bytes=slots * 4096)
    for _ in range(extents):
        number = table.begin_carving(4096)
        assert number is not None
        table.carve(number)
    return table


def _rows(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64)


def test_runs_are_cut_from_free_stretches_and_cross_no_extent() -> None:
    table = _carved(2, 8)
    table.take_at(np.array([2, 7, 8]) * 4096, _rows(3), SlotUse.RESIDENT)
    starts = table.free_runs(4096, 2, 10) // 4096
    assert sorted(starts.tolist()) == [0, 3, 5, 9, 11, 13]
    assert table.free_runs(4096, 4, 10).tolist() == [3 * 4096, 9 * 4096]
    assert table.free_runs(4096, 8, 1).tolist() == []
    assert table.free_runs(4096, 2, 1).tolist() == [0], "the fullest extent first"


def test_slots_taken_by_their_place_are_taken_once() -> None:
    table = _carved(1, 8)
    table.take_at(np.array([3, 4]) * 4096, _rows(2), SlotUse.INCOMING)
    assert table.check() == []
    assert table.are_free(np.array([2, 3, 4, 5, 8, -1]) * 4096, 4096).tolist() == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    assert not table.are_free(np.array([100]), 4096).any(), "no slot begins there"
    with pytest.raises(InternalError):
        table.take_at(np.array([4, 5]) * 4096, _rows(2), SlotUse.INCOMING)
    assert table.take(4096, _rows(8), SlotUse.RESERVED).tolist() == [n * 4096 for n in (0, 1, 2, 5, 6, 7)]
    assert table.check() == []


def test_rows_in_runs_come_first_and_the_rest_goes_where_there_is_room() -> None:
    table = _carved(1, 8)
    table.take_at(np.array([2, 5]) * 4096, _rows(2), SlotUse.RESIDENT)
    slots = (table.take_in_runs(4096, _rows(6), SlotUse.RESERVED, 2) // 4096).tolist()
    assert [slots[1] - slots[0], slots[3] - slots[2]] == [1, 1]
    assert sorted(slots) == [0, 1, 3, 4, 6, 7]
    assert table.check() == []
