"""Leases: owned, timed, and never cut short for memory that somebody may still look at."""

import numpy as np
import pytest

from hybridkv.tiers.directory.holds import Lease, Session
from hybridkv.tiers.errors import ExpiredError, ForeignHoldError, NotFoundError
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.replacement import NO_ROW
from tests.tiers.directory.conftest import CPU, GPU, SIZE, Kit, key


def lease(kit: Kit, *numbers: int, pool: int = GPU, by: Session | None = None, views: bool = True,
          request: int | None = None) -> Lease:  # fmt: skip
    rows = np.array(kit.rows(*numbers), np.int64)
    held = kit.directory.leases.open(by or kit.session, rows, views=views, request=request, life_s=30.0)
    kit.directory.leases.hold(held, np.arange(len(numbers)), pool)
    return held


def lapse(kit: Kit) -> None:
    kit.clock.advance(30.0)
    kit.directory.expire(kit.clock.now())


def quarantined(kit: Kit, pool: int = GPU) -> int:
    return kit.directory.state.mapped(pool).table.bytes_by_use[SlotUse.QUARANTINED] // SIZE


def test_a_leased_copy_is_no_victim_until_it_is_released(kit: Kit) -> None:
    kit.seal(1)
    kit.seal(2)
    held = lease(kit, 1)
    assert kit.victims(GPU) == [key(2)]
    kit.directory.leases.release(held)
    assert set(kit.victims(GPU)) == {key(1), key(2)}


def test_a_leased_block_protects_its_ancestors(kit: Kit) -> None:
    kit.seal(1, 2, 3)
    held = lease(kit, 3)
    assert kit.victims(GPU) == []
    kit.directory.leases.release(held)
    assert kit.victims(GPU) == [key(3), key(2), key(1)]


def test_a_block_leased_twice_needs_both_releases(kit: Kit) -> None:
    kit.seal(1)
    first, second = lease(kit, 1), lease(kit, 1, by=kit.attach())
    kit.directory.leases.release(first)
    assert kit.victims(GPU) == []
    kit.directory.leases.release(second)
    assert kit.victims(GPU) == [key(1)]


def test_nobody_releases_anothers_lease_nor_one_twice(kit: Kit) -> None:
    kit.seal(1)
    held = lease(kit, 1)
    ledger = kit.directory.state.ledger
    with pytest.raises(ForeignHoldError):
        ledger.lease(kit.attach().id, held.id)
    kit.directory.leases.release(ledger.lease(kit.session.id, held.id))
    with pytest.raises(NotFoundError):
        ledger.lease(kit.session.id, held.id)


def test_a_lapsed_lease_leaves_its_copy_findable_but_not_its_slot_reusable(kit: Kit) -> None:
    kit.seal(1)
    slot = kit.place(1, GPU)
    held = lease(kit, 1)
    lapse(kit)
    assert kit.is_here(1)
    assert kit.victims(GPU) == [key(1)]
    kit.directory.copies.drop(np.array(kit.rows(1)), GPU)
    assert quarantined(kit) == 1
    other = kit.reserve(*range(10, 18))
    assert slot not in other.slots.tolist()
    with pytest.raises(ExpiredError):
        kit.directory.leases.release(held)
    assert quarantined(kit) == 0


def test_two_lapsed_holders_must_both_confirm(kit: Kit) -> None:
    kit.seal(1)
    first, second = lease(kit, 1), lease(kit, 1, by=kit.attach())
    lapse(kit)
    kit.directory.copies.remove(np.array(kit.rows(1)))
    assert quarantined(kit) == 1
    with pytest.raises(ExpiredError):
        kit.directory.leases.release(first)
    assert quarantined(kit) == 1
    kit.directory.end_session(kit.directory.state.ledger.sessions[second.session])
    assert quarantined(kit) == 0


@pytest.mark.parametrize(("maps", "views"), [(False, True), (True, False)])
def test_who_maps_nothing_or_copies_only_leaves_no_quarantine(kit: Kit, maps: bool, views: bool) -> None:
    kit.seal(1)
    lease(kit, 1, by=kit.attach(maps=maps), views=views)
    lapse(kit)
    kit.directory.copies.drop(np.array(kit.rows(1)), GPU)
    assert quarantined(kit) == 0
    assert kit.directory.state.mapped(GPU).haunted_slots == {}


def quarantined_places(held: Lease) -> int:
    return len(held.haunts)


def test_a_renewed_lease_lives_on_and_a_lapsed_one_does_not(kit: Kit) -> None:
    kit.seal(1)
    held = lease(kit, 1)
    kit.clock.advance(29.0)
    assert kit.directory.leases.renew(held, 30.0)
    kit.clock.advance(29.0)
    kit.directory.expire(kit.clock.now())
    assert kit.victims(GPU) == []
    lapse(kit)
    assert not kit.directory.leases.renew(held, 30.0)
    assert quarantined_places(held) == 1  # another thread of its owner may still be looking


def test_a_removed_block_stays_for_its_reader_only(kit: Kit) -> None:
    kit.seal(1)
    held = lease(kit, 1)
    slot = kit.place(1, GPU)
    kit.directory.copies.remove(np.array(kit.rows(1)))
    assert kit.rows(1) == [NO_ROW]
    assert kit.directory.state.mapped(GPU).table.use_of(slot) is SlotUse.RESIDENT
    assert kit.directory.check() == []
    kit.directory.leases.release(held)
    assert kit.directory.state.mapped(GPU).table.use_of(slot) is SlotUse.FREE
    assert len(kit.directory.blocks) == 0


def test_a_session_that_lapses_keeps_its_slots_in_quarantine_until_it_is_proved_gone(kit: Kit) -> None:
    kit.seal(1, pool=CPU)
    lease(kit, 1, pool=CPU)
    kit.reserve(2)
    kit.directory.lapse_session(kit.session)
    kit.directory.copies.remove(np.array(kit.rows(1)))
    assert (quarantined(kit, CPU), quarantined(kit)) == (1, 1)
    with pytest.raises(NotFoundError):
        kit.directory.state.ledger.session(kit.session.id)
    kit.directory.end_session(kit.session)
    assert (quarantined(kit, CPU), quarantined(kit)) == (0, 0)


def test_a_request_protects_its_blocks_and_touches_them_once_in_reverse(kit: Kit) -> None:
    kit.seal(1, 2)
    kit.seal(3)
    before = kit.directory.blocks.accesses[kit.rows(1, 2)].tolist()
    for _ in range(3):
        kit.directory.leases.release(lease(kit, 1, 2, request=9))
    assert kit.victims(GPU) == [key(3)]
    kit.directory.accesses.end(kit.session, 9)
    after = kit.directory.blocks.accesses[kit.rows(1, 2)].tolist()
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
    assert kit.victims(GPU) == [key(3), key(2), key(1)], "the head of the chain was used last"


def test_a_request_that_nobody_ends_is_over_after_its_time(kit: Kit) -> None:
    kit.seal(1)
    kit.directory.leases.release(lease(kit, 1, request=9))
    assert kit.victims(GPU) == []
    lapse(kit)
    assert kit.victims(GPU) == [key(1)]


@pytest.mark.parametrize("end", ["goodbye", "lapse"])
def test_the_end_of_a_session_ends_its_requests(kit: Kit, end: str) -> None:
    kit.seal(1)
    kit.directory.leases.release(lease(kit, 1, request=9))
    assert kit.victims(GPU) == []
    kit.directory.end_session(kit.session) if end == "goodbye" else kit.directory.lapse_session(kit.session)
    assert kit.victims(GPU) == [key(1)]
    assert not kit.directory.blocks.holds.any()


def test_one_block_may_be_held_more_often_than_16_bits_count(kit: Kit) -> None:
    """By one caller alone: a lease may name a block in each of its keys."""
    (row,) = kit.seal(1)
    lease = kit.directory.leases.open(kit.session, np.full(1 << 16, row), views=True, request=None, life_s=30.0)
    kit.directory.leases.hold(lease, np.arange(1 << 16), GPU)
    assert kit.directory.check() == []
    assert kit.victims(GPU) == []
    kit.directory.leases.release(lease)
    assert kit.victims(GPU) == [key(1)]
    blocks = kit.directory.blocks
    assert blocks.holds.itemsize == blocks.waiting.itemsize == 4  # likewise, by requests and calls that wait
