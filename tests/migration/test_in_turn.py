"""Lanes in turn: on a clock that is set by hand they move when told to, in one order, and what they move is as real as ever."""

from collections.abc import Callable

from hybridkv.service.probes import health
from hybridkv.tiers.states import Tier
from tests.migration.hosts import BLOCK, HIT, Rig

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def test_nothing_moves_before_it_is_told_to(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1, 2], Tier.GPU)
    rig.migrator.go_in_turn()
    rig.lower("gpu0", [1, 2])
    assert rig.where(1) == rig.where(2) == {"gpu0"}
    assert not any(lane.thread.is_alive() for lane in rig.migrator.lanes.workers)
    assert rig.migrator.quiesce()
    assert rig.where(1) == rig.where(2) == {"cpu"}
    assert rig.worker.read([1, 2], tier=Tier.CPU) == [HIT, HIT]


def test_what_stays_in_memory_goes_first(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.worker.put([1], Tier.CPU)
    rig.worker.put([2], Tier.GPU)
    rig.migrator.go_in_turn()
    rig.lower("cpu", [1])
    rig.lower("gpu0", [2])
    assert rig.migrator.lanes.carry()
    assert (rig.where(1), rig.where(2)) == ({"cpu"}, {"cpu"})
    assert rig.migrator.lanes.carry()
    assert (rig.where(1), rig.where(2)) == ({"disk"}, {"cpu"})
    assert not rig.migrator.lanes.carry()


def test_room_that_a_caller_waits_for_comes_within_one_quiesce(make_host: MakeHost) -> None:
    """Two legs, more blocks than the lanes have slots, extents to be carved: all of it without a thread."""
    rig = make_host(gpu_blocks=16, cpu_blocks=32, disk_bytes=DISK, migration__lane_slots_count=2)
    rig.worker.put(range(12), Tier.GPU)
    rig.migrator.go_in_turn()
    for source in ("gpu0", "cpu"):
        rig.lower(source, list(range(12)))
        assert rig.migrator.quiesce()
    assert all(rig.where(number) == {"disk"} for number in range(12))
    ticket = rig.worker.acquire(range(12), tier=Tier.GPU)
    assert not ticket.done
    assert rig.migrator.quiesce()
    reply = ticket.reply()
    assert (reply.states == HIT).all()
    rig.worker.verify(list(range(12)), reply)
    assert rig.moves(source="disk", target="gpu0") == {"done": 12}


def test_a_failure_fails_its_batch_and_the_next_one_moves(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    rig.migrator.go_in_turn()
    rig.stream("gpu0-cpu.background").fail_next(RuntimeError("no"))
    for found in ({"gpu0"}, {"cpu"}):
        rig.lower("gpu0", [1])
        assert rig.migrator.quiesce()
        assert rig.where(1) == found
    assert rig.lane("gpu0-cpu.background").pulse.errors == 1


def test_a_cap_on_background_bytes_holds_nobody_up_on_a_clock_that_stands(make_host: MakeHost) -> None:
    rig = make_host(gpu_blocks=16, migration__background_bytes_per_s=BLOCK)
    rig.worker.put(range(8), Tier.GPU)
    rig.migrator.go_in_turn()
    for number in range(8):
        rig.lower("gpu0", [number])
        assert rig.migrator.quiesce()
    assert rig.used("cpu") == 8 * BLOCK


def test_lanes_without_threads_are_well(make_host: MakeHost) -> None:
    rig = make_host()
    rig.migrator.go_in_turn()
    assert health(rig.host)["lanes"] == (True, "")
