"""Transfers: the source stays readable until the copy is committed, and whoever holds the block wins."""

import numpy as np

from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.moves import Stage
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import Reason, Tier
from tests.tiers.directory.conftest import CPU, DISK, GPU, SIZE, Kit, key


def incoming(kit: Kit, pool: int) -> int:
    return kit.directory.state.mapped(pool).table.bytes_by_use[SlotUse.INCOMING] // SIZE


def hold(kit: Kit, number: int, pool: int) -> None:
    held = kit.directory.leases.open(kit.session, np.array(kit.rows(number)), views=True, request=None, life_s=30.0)
    kit.directory.leases.hold(held, np.array([0]), pool)


def test_the_destination_is_unreadable_and_the_source_readable_until_the_commit(kit: Kit) -> None:
    kit.seal(1)
    (transfer,) = kit.begin([1], GPU, CPU)
    assert kit.directory.moves.start(transfer)
    assert kit.place(1, CPU) == NO_SLOT
    assert kit.place(1, GPU) == transfer.source_slot
    assert incoming(kit, CPU) == 1
    assert kit.directory.check() == []
    kit.directory.moves.commit([transfer])
    assert kit.place(1, CPU) == transfer.target_slot
    assert kit.place(1, GPU) == NO_SLOT
    assert transfer.stage is Stage.DONE


def test_a_copy_that_keeps_its_source_leaves_two(kit: Kit) -> None:
    kit.seal(1)
    kit.move([1], GPU, CPU, keep_source=True)
    assert kit.directory.blocks.copies(np.array(kit.rows(1))).tolist() == [2]
    assert kit.directory.blocks.highest[kit.rows(1)].tolist() == [Tier.GPU]


def test_a_block_in_flight_is_no_victim(kit: Kit) -> None:
    kit.seal(1)
    (transfer,) = kit.begin([1], GPU, CPU)
    assert kit.victims(GPU) == []
    kit.directory.moves.fail([transfer])
    assert kit.victims(GPU) == [key(1)]


def test_a_failed_move_leaves_everything_as_it_was(kit: Kit) -> None:
    kit.seal(1)
    slot = kit.place(1, GPU)
    (transfer,) = kit.begin([1], GPU, CPU)
    kit.directory.moves.start(transfer)
    kit.directory.moves.fail([transfer])
    assert kit.place(1, GPU) == slot
    assert incoming(kit, CPU) == 0
    assert transfer.stage is Stage.FAILED


def test_a_source_that_cannot_be_read_is_lost_and_only_that_copy(kit: Kit) -> None:
    kit.seal(1, 2)
    kit.move([1], GPU, CPU, keep_source=True)
    kit.move([1], CPU, DISK, keep_source=True)
    (transfer,) = kit.begin([2], GPU, CPU)
    kit.directory.moves.fail([transfer], source_lost=True)
    assert not kit.is_here(2)
    kit.directory.copies.drop(np.array(kit.rows(1)), GPU)
    kit.directory.copies.drop(np.array(kit.rows(1)), CPU)
    (transfer,) = kit.begin([1], DISK, CPU, keep_source=True)
    kit.directory.moves.fail([transfer], source_lost=True)
    assert kit.rows(1) == [NO_ROW]


def test_a_lease_taken_during_a_demotion_wins(kit: Kit) -> None:
    kit.seal(1)
    (transfer,) = kit.begin([1], GPU, CPU)
    kit.directory.moves.start(transfer)
    hold(kit, 1, GPU)
    kit.directory.moves.commit([transfer])
    assert kit.place(1, GPU) == transfer.source_slot
    assert kit.place(1, CPU) == transfer.target_slot


def test_a_demotion_that_has_not_begun_gives_way_to_a_lease(kit: Kit) -> None:
    kit.seal(1)
    (transfer,) = kit.begin([1], GPU, CPU)
    hold(kit, 1, GPU)
    assert not kit.directory.moves.start(transfer)
    assert transfer.stage is Stage.CANCELLED
    assert incoming(kit, CPU) == 0


def test_a_copy_to_disk_at_a_drain_asks_nobody(kit: Kit) -> None:
    kit.seal(1, pool=CPU)
    hold(kit, 1, CPU)
    (transfer,) = kit.begin([1], CPU, DISK, keep_source=True, reason=Reason.DRAIN)
    assert kit.directory.moves.start(transfer)
    kit.directory.moves.commit([transfer], [3])
    assert (kit.place(1, DISK), kit.place(1, CPU)) == (3, transfer.source_slot)


def test_a_block_removed_while_it_waits_is_not_moved(kit: Kit) -> None:
    kit.seal(1)
    (transfer,) = kit.begin([1], GPU, CPU)
    kit.directory.copies.remove(np.array(kit.rows(1)))
    assert kit.rows(1) == [NO_ROW]
    assert not kit.directory.moves.start(transfer)
    assert len(kit.directory.blocks) == 0


def test_a_block_removed_in_flight_leaves_no_copy_anywhere(kit: Kit) -> None:
    kit.seal(1)
    (transfer,) = kit.begin([1], GPU, CPU)
    kit.directory.moves.start(transfer)
    kit.directory.copies.remove(np.array(kit.rows(1)))
    assert kit.directory.state.mapped(GPU).table.used_bytes == SIZE, "the lane still reads the source"
    kit.directory.moves.commit([transfer])
    assert kit.directory.state.mapped(GPU).table.used_bytes == 0
    assert incoming(kit, CPU) == 0
    assert len(kit.directory.blocks) == 0


def test_a_block_removed_while_it_is_written_to_disk_is_deleted_there(kit: Kit) -> None:
    """Else the next start would find it."""
    kit.seal(1, pool=CPU)
    (transfer,) = kit.begin([1], CPU, DISK)
    kit.directory.moves.start(transfer)
    kit.directory.copies.remove(np.array(kit.rows(1)))
    kit.directory.moves.commit([transfer], [5])
    disk = kit.directory.state.disk
    assert disk is not None
    assert disk.to_remove == [(kit.space.fingerprint, key(1), 5)]
    assert disk.used_bytes == 0


def test_a_removed_key_can_be_sealed_again_while_the_old_one_is_in_flight(kit: Kit) -> None:
    kit.seal(1)
    (transfer,) = kit.begin([1], GPU, CPU)
    kit.directory.moves.start(transfer)
    kit.directory.copies.remove(np.array(kit.rows(1)))
    (again,) = kit.seal(1)
    assert again != transfer.row
    kit.directory.moves.commit([transfer])
    assert kit.rows(1) == [again]
    assert kit.place(1, CPU) == NO_SLOT


def test_a_relocation_keeps_the_order_and_frees_the_old_slot(kit: Kit) -> None:
    kit.seal(1)
    kit.seal(2)
    slot = kit.place(1, GPU)
    kit.move([1], GPU, GPU)
    table = kit.directory.state.mapped(GPU).table
    assert kit.place(1, GPU) != slot
    assert table.use_of(slot) is SlotUse.FREE
    assert kit.victims(GPU) == [key(1), key(2)]


def test_a_lease_undoes_a_relocation(kit: Kit) -> None:
    kit.seal(1)
    (transfer,) = kit.begin([1], GPU, GPU)
    kit.directory.moves.start(transfer)
    hold(kit, 1, GPU)
    kit.directory.moves.commit([transfer])
    assert transfer.stage is Stage.CANCELLED
    assert kit.place(1, GPU) == transfer.source_slot
    assert incoming(kit, GPU) == 0


def test_a_relocated_slot_that_a_lapsed_reader_may_look_at_goes_to_quarantine(kit: Kit) -> None:
    kit.seal(1)
    hold(kit, 1, GPU)
    kit.clock.advance(30.0)
    kit.directory.expire(kit.clock.now())
    slot = kit.place(1, GPU)
    kit.move([1], GPU, GPU)
    assert kit.directory.state.mapped(GPU).table.use_of(slot) is SlotUse.QUARANTINED
    kit.directory.end_session(kit.session)
    assert kit.directory.state.mapped(GPU).table.use_of(slot) is SlotUse.FREE


def test_only_what_finds_room_is_begun() -> None:
    kit = Kit(cpu_extents=1)
    kit.seal(1, 2, 3, 4, 5, 6)
    transfers = kit.begin([6, 5, 4, 3, 2, 1], GPU, CPU)
    assert [transfer.row for transfer in transfers] == kit.rows(6, 5, 4, 3)
    assert kit.directory.check() == []
