"""The background pass on a real host: what each rule moves, where it stops, and that it does nothing when it is off."""

from collections.abc import Callable

import pytest

from hybridkv.migration.planner import Move
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, NEW, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def pass_once(rig: Rig) -> None:
    rig.host.tick()
    rig.settle()


def pass_twice(rig: Rig) -> None:
    """The first pass may find that the pool below or above has to be carved first."""
    pass_once(rig)
    pass_once(rig)


def committed(rig: Rig) -> int:
    """Bytes of memory behind the CPU tier, without what the file system adds for itself."""
    return rig.host.memory.cpu.region.committed_bytes() // BLOCK * BLOCK


# ---------------------------------------------------------------------------------------------------- inert


def test_with_every_rule_off_nothing_moves(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.worker.put(range(16), Tier.GPU)
    rig.worker.put(range(20, 50))
    for _ in range(3):
        rig.clock.advance(100_000)
        pass_once(rig)
    assert rig.moves() == {}
    assert rig.inside("gpu0") == set(range(16))
    assert rig.inside("cpu") == set(range(20, 50))


# ---------------------------------------------------------------------------------------------------- watermarks


def test_above_high_the_coldest_go_down_until_low(make_host: MakeHost) -> None:
    rig = make_host(gpu__high_watermark=0.75, gpu__low_watermark=0.5)
    rig.worker.put(range(12), Tier.GPU)
    pass_once(rig)
    assert rig.moves() == {}  # at high, not above it
    rig.worker.put([12], Tier.GPU)
    pass_twice(rig)
    assert rig.inside("gpu0") == set(range(5, 13))  # 8 of 16: at low, and no further
    assert rig.inside("cpu") == set(range(5))
    assert rig.moves(source="gpu0", target="cpu", reason="watermark") == {"done": 5}
    pass_once(rig)
    assert len(rig.inside("gpu0")) == 8


def test_a_chain_goes_in_one_pass_although_the_lock_is_let_go_in_between(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridkv.migration.background.CARRIED_ROWS", 2)
    rig = make_host(gpu__idle_timeout_s=60)
    rig.worker.put(range(50, 62))
    rig.host.remove(rig.worker.session, keys(range(50, 62)))  # host memory is carved
    assert rig.worker.write(range(9), tier=Tier.GPU) == [NEW] * 9
    rig.clock.advance(100)
    pass_once(rig)
    assert rig.inside("gpu0") == set()
    assert rig.moves(source="gpu0", target="cpu", reason="idle") == {"done": 9}


def test_leased_blocks_are_passed_over(make_host: MakeHost) -> None:
    rig = make_host(gpu__high_watermark=0.75, gpu__low_watermark=0.5)
    rig.worker.put(range(14), Tier.GPU)
    rig.worker.hold([0, 1], tier=Tier.GPU)
    pass_twice(rig)
    assert rig.inside("gpu0") == {0, 1, *range(8, 14)}


def test_what_is_on_its_way_counts_as_gone(make_host: MakeHost) -> None:
    rig = make_host(gpu__high_watermark=0.75, gpu__low_watermark=0.5)
    rig.worker.put(range(14), Tier.GPU)
    rig.carve_cpu(16)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    rig.host.tick()
    assert stream.wait_held()
    rig.host.tick()
    rig.host.tick()
    stream.release_held()
    rig.settle()
    assert len(rig.inside("gpu0")) == 8


def test_the_lowest_tier_evicts_down_to_low(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu__high_watermark=0.75, cpu__low_watermark=0.5)
    rig.worker.put(range(28))
    pass_once(rig)
    assert rig.inside("cpu") == set(range(12, 28))
    assert rig.moves(source="cpu", target="none", reason="watermark") == {"evicted": 12}


# ---------------------------------------------------------------------------------------------------- idle, few accesses


def test_idle_blocks_go_down(make_host: MakeHost) -> None:
    rig = make_host(gpu__idle_timeout_s=10)
    rig.worker.put([1, 2], Tier.GPU)
    rig.carve_cpu(4)
    rig.clock.advance(9)
    rig.worker.touch([2])
    rig.clock.advance(2)
    pass_once(rig)
    assert rig.where(1) == {"cpu"}
    assert rig.where(2) == {"gpu0"}
    assert rig.moves(reason="idle") == {"done": 1}


def test_idleness_never_costs_the_last_copy(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu__idle_timeout_s=10)
    rig.worker.put([1, 2])
    rig.clock.advance(11)
    pass_once(rig)
    assert rig.inside("cpu") == {1, 2}


def test_idleness_never_costs_the_last_copy_when_the_disk_is_off(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu__idle_timeout_s=10, disk_bytes=DISK)
    rig.worker.put([1, 2])
    disk = rig.directory.state.disk
    assert disk is not None
    disk.on = False
    rig.clock.advance(11)
    pass_once(rig)
    assert rig.inside("cpu") == {1, 2}
    disk.on = True
    pass_once(rig)
    assert rig.inside("disk") == {1, 2}


def test_idleness_never_costs_the_last_copy_when_nothing_below_has_room(make_host: MakeHost) -> None:
    rig = make_host(gpu__idle_timeout_s=10)
    rig.worker.put([100], Tier.GPU)
    rig.worker.put(range(32))
    rig.worker.hold(range(32), tier=Tier.CPU)
    rig.clock.advance(11)
    pass_once(rig)
    assert rig.where(100) == {"gpu0"}


def test_an_idle_tail_goes_before_its_head(make_host: MakeHost) -> None:
    rig = make_host(gpu__idle_timeout_s=10)
    assert rig.worker.write([1, 2, 3], tier=Tier.GPU) == [NEW] * 3
    rig.carve_cpu(4)
    rig.clock.advance(11)
    rig.worker.touch([2])
    pass_once(rig)
    assert rig.where(1) == {"gpu0"}  # idle, but its child is not and stays
    assert rig.where(2) == {"gpu0"}
    assert rig.where(3) == {"cpu"}


def test_little_used_blocks_go_down_after_their_residency(make_host: MakeHost) -> None:
    rig = make_host(gpu__demote_below_accesses=2, gpu__min_residency_s=5)
    rig.worker.put([1, 2], Tier.GPU)
    rig.carve_cpu(4)
    rig.clock.advance(4)
    rig.worker.touch([2])
    rig.worker.touch([2])
    pass_once(rig)
    assert rig.moves() == {}
    rig.clock.advance(1)
    pass_once(rig)
    assert rig.where(1) == {"cpu"}
    assert rig.where(2) == {"gpu0"}
    assert rig.moves(reason="demote_below_accesses") == {"done": 1}


# ---------------------------------------------------------------------------------------------------- promotion


def test_the_kth_access_within_the_window_promotes(make_host: MakeHost) -> None:
    rig = make_host(migration__promote_at_accesses=3)
    rig.worker.put([9], Tier.GPU)
    rig.worker.put([1, 2])
    for _ in range(2):
        rig.worker.touch([1])
        pass_once(rig)
    assert rig.where(1) == {"cpu"}
    rig.worker.touch([1])
    pass_twice(rig)
    assert rig.where(1) == {"cpu", "gpu0"}
    assert rig.where(2) == {"cpu"}
    assert rig.moves(reason="promote_at_accesses") == {"done": 1}


def test_accesses_outside_the_window_do_not_add_up(make_host: MakeHost) -> None:
    rig = make_host(migration__promote_at_accesses=2, migration__promote_window_s=10)
    rig.worker.put([9], Tier.GPU)
    rig.worker.put([1])
    for _ in range(5):
        rig.worker.touch([1])
        rig.clock.advance(11)
        pass_once(rig)
    assert rig.where(1) == {"cpu"}


def test_a_block_is_promoted_into_a_pool_that_was_never_used(make_host: MakeHost) -> None:
    rig = make_host(migration__promote_at_accesses=1)
    rig.worker.put(range(5))
    rig.worker.touch(range(5))
    for _ in range(2):
        pass_once(rig)
    assert rig.inside("gpu0") == set(range(5))


def test_a_promotion_never_begins_a_demotion(make_host: MakeHost) -> None:
    rig = make_host(migration__promote_at_accesses=1, gpu__high_watermark=0.75, gpu__low_watermark=0.5)
    rig.worker.put(range(6), Tier.GPU)
    rig.worker.put(range(20, 30))
    rig.worker.touch(range(20, 30))
    for _ in range(3):
        pass_once(rig)
    assert len(rig.inside("gpu0")) == 8  # two more, up to the low mark
    assert rig.moves(source="gpu0", target="cpu") == {}


def test_a_disk_block_is_promoted_one_tier(make_host: MakeHost) -> None:
    rig = make_host(migration__promote_at_accesses=2, disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.touch([1])
    rig.worker.touch([1])
    pass_once(rig)
    assert rig.where(1) == {"cpu", "disk"}


# ---------------------------------------------------------------------------------------------------- no thrashing


def test_a_block_that_moved_rests_for_the_cooldown(make_host: MakeHost) -> None:
    rig = make_host(gpu__idle_timeout_s=10, migration__promote_at_accesses=1, migration__cooldown_s=30)
    rig.worker.put([1, 2], Tier.GPU)
    rig.carve_cpu(4)
    rig.clock.advance(11)
    pass_once(rig)
    assert rig.where(1) == {"cpu"}
    for _ in range(10):  # used again and again: it would go up and down with each pass
        rig.clock.advance(2)
        rig.worker.touch([1])
        pass_once(rig)
    assert rig.where(1) == {"cpu"}
    rig.clock.advance(30)
    rig.worker.touch([1])
    pass_once(rig)
    assert rig.where(1) == {"cpu", "gpu0"}


def test_use_just_below_high_neither_starts_nor_stops_a_drain(make_host: MakeHost) -> None:
    rig = make_host(gpu__high_watermark=0.75, gpu__low_watermark=0.25)
    rig.worker.put(range(10), Tier.GPU)
    for _ in range(3):
        pass_once(rig)
    assert rig.moves() == {}


# ---------------------------------------------------------------------------------------------------- races


def test_a_plan_is_checked_again_when_it_is_carried_out(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpu__idle_timeout_s=10)
    rig.worker.put([1, 2, 3], Tier.GPU)
    rig.carve_cpu(4)
    rig.clock.advance(11)
    background = rig.migrator.background
    carry_out = background._carry_out

    def late(pool: int, moves: list[Move]) -> int:
        if moves:
            rig.worker.hold([1], tier=Tier.GPU)
            rig.host.remove(rig.worker.session, keys([2]))
        return carry_out(pool, moves)

    monkeypatch.setattr(background, "_carry_out", late)
    pass_once(rig)
    assert rig.where(1) == {"gpu0"}
    assert rig.where(2) == set()
    assert rig.where(3) == {"cpu"}


def test_a_held_background_move_does_not_stop_the_pass(make_host: MakeHost) -> None:
    rig = make_host(gpu__idle_timeout_s=10, cpu__idle_timeout_s=10, disk_bytes=DISK)
    rig.worker.put([1], Tier.GPU)
    rig.worker.put([2])
    rig.clock.advance(11)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    rig.host.tick()
    assert stream.wait_held()
    rig.until(lambda: rig.where(2) == {"disk"})
    rig.host.tick()
    assert rig.migrator.pulse.rounds == 2
    stream.release_held()
    assert rig.migrator.quiesce(PATIENCE_S)
