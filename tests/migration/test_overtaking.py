"""Held transfers delay no other key; transfers of one block are shared; who is waited for goes first."""

from collections.abc import Callable

from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, HIT, PENDING, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


# ---------------------------------------------------------------------------------------------------- held transfers


def test_a_held_demand_copy_down_delays_no_other_key(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1, 2], Tier.GPU)
    rig.worker.put([10, 11])
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    held = rig.worker.acquire([1], tier=Tier.CPU)
    assert stream.wait_held()

    assert held.reply().states.tolist() == [PENDING]
    assert rig.worker.acquire([2, 10]).done  # resident
    assert rig.worker.read([11], tier=Tier.GPU) == [HIT]  # moving in the other channel
    assert not held.done
    stream.release_held()
    assert held.wait(PATIENCE_S)
    assert rig.worker.again(held.reply().lease).states.tolist() == [HIT]


def test_a_held_background_copy_down_delays_no_demand(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1, 2], Tier.GPU)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    assert rig.lower("gpu0", [1]) == (0, 1)
    assert stream.wait_held()

    assert rig.worker.read([2], tier=Tier.CPU) == [HIT]
    assert rig.worker.read([1], tier=Tier.GPU) == [HIT]
    stream.release_held()
    rig.settle()


def test_a_held_read_from_disk_delays_no_other_key(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.put([2], Tier.GPU)
    with rig.gate("disk.read.before_pread", "disk-cpu.demand") as gate:
        held = rig.worker.acquire([1], tier=Tier.CPU)
        gate.wait_held()
        assert held.reply().states.tolist() == [PENDING]
        assert rig.worker.read([2], tier=Tier.CPU) == [HIT]
        assert rig.worker.read([2], tier=Tier.GPU) == [HIT]
        assert rig.worker.write([3]) == [1]
        assert not held.done
    assert held.wait(PATIENCE_S)
    rig.worker.verify([1], held.reply())


def test_a_held_write_to_disk_delays_no_read_from_it(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.put([2])
    with rig.gate("disk.put.before_commit", "cpu-disk") as gate:
        rig.lower("cpu", [2])
        gate.wait_held()
        assert rig.worker.read([1], tier=Tier.CPU) == [HIT]
        assert rig.worker.read([2], tier=Tier.CPU) == [HIT]
    rig.settle()


# ---------------------------------------------------------------------------------------------------- merging, overtaking


def test_two_acquires_of_a_block_share_one_transfer(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    other = rig.attach()
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    first = rig.worker.acquire([1], tier=Tier.CPU)
    second = other.acquire([1], tier=Tier.CPU)
    assert [t.reply().states.tolist() for t in (first, second)] == [[PENDING], [PENDING]]
    stream.release_held()
    assert first.wait(PATIENCE_S)
    assert second.wait(PATIENCE_S)
    other.verify([1], second.reply())
    assert rig.moves(source="gpu0", target="cpu") == {"done": 1}


def test_one_of_two_waiting_acquires_may_leave(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    other = rig.attach()
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    first = rig.worker.acquire([1], tier=Tier.CPU)
    second = other.acquire([1], tier=Tier.CPU)
    rig.worker.release(first.reply().lease)
    assert not second.done
    stream.release_held()
    assert second.wait(PATIENCE_S)
    assert second.reply().states.tolist() == [HIT]


def test_a_key_named_twice_is_leased_twice_and_moved_once(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    assert rig.worker.read([1, 1], tier=Tier.CPU) == [HIT, HIT]
    assert rig.moves(source="gpu0", target="cpu") == {"done": 1}


def test_a_demand_overtakes_a_demotion_queued_for_the_same_block(make_host: MakeHost) -> None:
    rig = make_host(migration__batch_bytes=BLOCK)
    rig.worker.put([1, 2], Tier.GPU)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    assert rig.lower("gpu0", [1, 2]) == (0, 2)
    assert stream.wait_held()
    assert rig.worker.read([2], tier=Tier.CPU) == [HIT]
    assert rig.where(2) == {"gpu0", "cpu"}  # asked for a lower tier: the upper copy stays
    stream.release_held()
    rig.settle()


def test_a_demand_overtakes_a_prefetch_queued_for_the_same_block(make_host: MakeHost) -> None:
    rig = make_host(migration__batch_bytes=BLOCK)
    rig.worker.put([1, 2])
    rig.worker.put([9], Tier.GPU)  # so that the pool has carved slots
    stream = rig.stream("cpu-gpu0.background")
    stream.hold()
    assert rig.host.prefetch(rig.worker.session, keys([1, 2]), tier=Tier.GPU) == 2
    assert stream.wait_held()
    assert rig.worker.read([2], tier=Tier.GPU) == [HIT]
    assert rig.where(1) == {"cpu"}
    stream.release_held()
    rig.settle()
    assert rig.where(1) == {"cpu", "gpu0"}


def test_a_demand_overtakes_on_the_second_leg_too(make_host: MakeHost) -> None:
    rig = make_host(migration__batch_bytes=BLOCK, disk_bytes=DISK)
    rig.put_on_disk([1, 2])
    stream = rig.stream("cpu-gpu0.background")
    stream.hold()
    assert rig.host.prefetch(rig.worker.session, keys([1, 2]), tier=Tier.GPU) == 2
    assert stream.wait_held()
    rig.until(lambda: rig.lane("cpu-gpu0.background").queued == 1)
    assert rig.worker.read([2], tier=Tier.GPU) == [HIT]
    stream.release_held()
    rig.settle()
