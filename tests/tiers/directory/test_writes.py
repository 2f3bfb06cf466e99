"""Reservations: published once, undone wholly, and fenced when they come too late."""

import numpy as np
import pytest

from hybridkv.tiers.directory.holds import Part
from hybridkv.tiers.errors import ForeignHoldError, NotFoundError
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import ReserveOutcome, SealOutcome
from tests.tiers.directory.conftest import CPU, GPU, SIZE, Kit, key


def used(kit: Kit, use: SlotUse, pool: int = GPU) -> int:
    return kit.directory.state.mapped(pool).table.bytes_by_use[use] // SIZE


def lapse(kit: Kit) -> None:
    kit.clock.advance(30.0)
    kit.directory.expire(kit.clock.now())


def test_reserved_blocks_are_unfindable_and_unmovable(kit: Kit) -> None:
    kit.reserve(1, 2)
    assert kit.rows(1, 2) == [NO_ROW, NO_ROW]
    assert kit.victims(GPU) == []
    assert used(kit, SlotUse.RESERVED) == 2


def test_others_are_told_of_what_is_being_written_and_what_is_there(kit: Kit) -> None:
    kit.seal(1)
    kit.reserve(2, parent=key(1))
    _, outcomes = kit.directory.writes.begin(kit.attach(), [key(1), key(2), key(3)], b"", CPU, None, 30.0)
    assert outcomes.tolist() == [ReserveOutcome.PRESENT, ReserveOutcome.BEING_WRITTEN, ReserveOutcome.NO_ROOM]


def test_a_part_is_sealed_and_the_rest_stays_ours(kit: Kit) -> None:
    held = kit.reserve(1, 2, 3)
    outcomes = kit.directory.writes.seal(held, np.array([1]), np.array([77], np.uint64))
    assert outcomes.tolist() == [SealOutcome.SEALED]
    assert [kit.is_here(n) for n in (1, 2, 3)] == [False, True, False]
    assert kit.directory.blocks.checksum[kit.rows(2)].tolist() == [77]
    assert held.parts.tolist() == [Part.OPEN, Part.SEALED, Part.OPEN]
    assert kit.directory.check() == []
    kit.directory.writes.abort(held, np.array([0, 2]))
    assert used(kit, SlotUse.RESERVED) == 0
    assert used(kit, SlotUse.RESIDENT) == 1


def test_a_second_seal_changes_nothing_and_is_counted(kit: Kit) -> None:
    held = kit.reserve(1, 2)
    kit.directory.writes.seal(held, np.array([0]), np.array([5], np.uint64))
    outcomes = kit.directory.writes.seal(held, np.array([0]), np.array([6], np.uint64))
    assert outcomes.tolist() == [SealOutcome.ALREADY_SEALED]
    assert kit.directory.blocks.checksum[kit.rows(1)].tolist() == [5]
    assert kit.directory.state.counters["second_seals"] == 1
    kit.directory.writes.abort(held, np.array([1]))


def test_checksums_follow_their_blocks(kit: Kit) -> None:
    held = kit.reserve(1, 2, 3)
    kit.directory.writes.seal(held, np.array([2, 0, 1]), np.array([30, 10, 20], np.uint64))
    assert kit.directory.blocks.checksum[kit.rows(1, 2, 3)].tolist() == [10, 20, 30]


def test_abort_frees_slots_and_keys_at_once(kit: Kit) -> None:
    held = kit.reserve(1, 2)
    kit.directory.writes.abort(held, np.arange(2))
    assert used(kit, SlotUse.RESERVED) == used(kit, SlotUse.QUARANTINED) == 0
    with pytest.raises(NotFoundError):
        kit.directory.state.ledger.reservation(kit.session.id, held.id)
    kit.seal(1, 2)


def test_room_for_a_part_gives_the_longest_prefix() -> None:
    kit = Kit(gpu_extents=1)
    held = kit.reserve(1, 2, 3, 4, 5, 6)
    assert held.parts.tolist() == [Part.OPEN] * 4 + [Part.NOT_OURS] * 2
    assert kit.directory.check() == []
    kit.reserve(5, parent=key(4), pool=CPU)  # nobody else owns the keys that found no room
    assert kit.directory.check() == []


def test_a_lapsed_reservation_frees_no_slot_until_its_owner_confirms(kit: Kit) -> None:
    held = kit.reserve(1, 2)
    slots = held.slots.tolist()
    lapse(kit)
    assert used(kit, SlotUse.QUARANTINED) == 2
    assert set(kit.directory.state.mapped(GPU).haunted_slots) == set(slots)
    other = kit.reserve(*range(10, 16), by=kit.attach())
    assert not set(other.slots.tolist()) & set(slots), "a slot in quarantine was given to another writer"
    assert kit.directory.writes.seal(held, np.array([0]), None).tolist() == [SealOutcome.EXPIRED]
    assert used(kit, SlotUse.QUARANTINED) == 1
    kit.directory.writes.abort(held, np.array([1]))
    assert used(kit, SlotUse.QUARANTINED) == 0
    assert kit.rows(1, 2) == [NO_ROW, NO_ROW]


def test_a_late_seal_of_a_key_that_another_sealed_is_told_so(kit: Kit) -> None:
    held = kit.reserve(1, 2)
    lapse(kit)
    kit.seal(1)
    place = kit.place(1, GPU)
    outcomes = kit.directory.writes.seal(held, np.array([0, 1]), np.array([1, 2], np.uint64))
    assert outcomes.tolist() == [SealOutcome.ALREADY_SEALED, SealOutcome.EXPIRED]
    assert kit.place(1, GPU) == place
    assert kit.directory.blocks.checksum[kit.rows(1)].tolist() == [0]
    assert kit.directory.state.counters["late_seals"] == 2


def test_a_session_without_a_mapping_leaves_nothing_in_quarantine(kit: Kit) -> None:
    held = kit.reserve(1, by=kit.attach(maps=False))
    lapse(kit)
    assert used(kit, SlotUse.QUARANTINED) == used(kit, SlotUse.RESERVED) == 0
    assert kit.directory.writes.seal(held, np.array([0]), None).tolist() == [SealOutcome.EXPIRED]


def test_a_renewal_is_no_confirmation(kit: Kit) -> None:
    held = kit.reserve(1)
    lapse(kit)
    assert not kit.directory.writes.renew(held, 30.0)
    assert used(kit, SlotUse.QUARANTINED) == 1
    kit.directory.end_session(kit.session)
    assert used(kit, SlotUse.QUARANTINED) == 0


def test_a_renewed_reservation_lives_on(kit: Kit) -> None:
    held = kit.reserve(1)
    kit.clock.advance(29.0)
    assert kit.directory.writes.renew(held, 30.0)
    kit.clock.advance(29.0)
    kit.directory.expire(kit.clock.now())
    assert kit.directory.writes.seal(held, np.array([0]), None).tolist() == [SealOutcome.SEALED]


def test_nobody_ends_anothers_reservation(kit: Kit) -> None:
    held = kit.reserve(1)
    with pytest.raises(ForeignHoldError):
        kit.directory.state.ledger.reservation(kit.attach().id, held.id)
    assert kit.directory.writes.seal(held, np.array([0]), None).tolist() == [SealOutcome.SEALED]


def test_the_end_of_a_session_ends_its_reservations(kit: Kit) -> None:
    kit.reserve(1, 2)
    kit.directory.end_session(kit.session)
    assert used(kit, SlotUse.RESERVED) == used(kit, SlotUse.QUARANTINED) == 0
    assert kit.directory.state.ledger.reservations == {}
