"""Faults that were found by attack, each provoked again and held to the right behaviour."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hybridkv.tiers.errors import InternalError, ResourceExhaustedError
from hybridkv.tiers.states import Reason, Tier
from tests.migration.hosts import BLOCK, HIT, NEW, Rig, keys

MakeHost = Callable[..., Rig]


def test_a_block_leased_twice_in_one_call_and_removed_frees_its_slot_once(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(4))
    twice = rig.worker.hold([0, 1, 2, 3, 0, 1, 2, 3])
    assert rig.host.remove(rig.worker.session, keys(range(4))) == 4
    rig.worker.release(twice.lease)
    assert rig.host.check() == []
    rig.worker.put(range(100, 132))
    assert rig.worker.read(range(100, 132)) == [HIT] * 32


def test_slots_given_back_twice_in_one_call_are_refused_and_nothing_changes(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put([1])
    table = rig.directory.state.mapped(rig.pool("cpu")).table
    slot = int(rig.directory.blocks.slot[rig.pool("cpu")][rig.row(1)])
    with pytest.raises(InternalError, match="twice"):
        table.give(np.array([slot, slot]))
    assert rig.worker.read([1]) == [HIT]


def test_a_gpu_block_that_lies_on_disk_goes_for_free_past_a_cpu_tier_full_of_leases(make_host: MakeHost) -> None:
    rig = make_host(gpus=1, gpu_blocks=16, cpu_blocks=32, disk_bytes=8 << 20)
    rig.worker.put(range(16), tier=Tier.GPU)
    assert rig.host.drain(10).left == 0
    room = rig.directory.books[rig.pool("cpu")].capacity_slots(BLOCK)
    rig.worker.put(range(100, 100 + room), tier=Tier.CPU)
    rig.worker.hold(range(100, 100 + room), tier=Tier.CPU)
    assert rig.worker.write([200, 201], tier=Tier.GPU) == [NEW, NEW]
    assert rig.moves(reason=Reason.RECLAIM)["free"] >= 2
    assert not rig.moves(reason=Reason.RECLAIM, target="disk")
    assert rig.host.check() == []


def test_a_commit_that_fails_by_a_bug_strands_nobody_and_shows_in_health(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=1, disk_bytes=8 << 20)
    rig.put_on_disk([1, 2])
    commit = rig.directory.moves.commit

    def broken(transfers: Sequence[object], places: Sequence[int] | None = None) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(rig.directory.moves, "commit", broken)
    for _ in range(3):
        rig.worker.acquire([1, 2], tier=Tier.CPU).wait(10)
        rig.settle()
    assert rig.host.check() == []
    assert not rig.directory.state.transfers
    ok, reason = rig.host.health()["lanes"]
    assert not ok
    assert "KeyError" in reason
    monkeypatch.setattr(rig.directory.moves, "commit", commit)
    assert rig.worker.read([1, 2], tier=Tier.CPU) == [HIT, HIT]
    assert rig.host.health()["lanes"] == (True, "")


def _lane_bytes(rig: Rig) -> int:
    cpu = rig.directory.state.mapped(rig.pool("cpu"))
    return sum(size * count for size, count in cpu.lane_slots_owned.items())


def test_the_lanes_slots_of_a_block_size_go_with_its_last_session(make_host: MakeHost) -> None:
    rig = make_host(gpus=1, cpu_blocks=64, disk_bytes=8 << 20)
    before = _lane_bytes(rig)
    for step in range(1, 24):
        visitor = rig.attach(BLOCK - step * 512, model=f"visitor {step}")
        rig.host.detach(visitor.session)
    assert _lane_bytes(rig) == before
    assert rig.worker.write([1], tier=Tier.CPU) == [NEW]


def test_lane_slots_stay_while_a_block_of_their_size_lies_in_a_gpu_pool(make_host: MakeHost) -> None:
    rig = make_host(gpus=1, cpu_blocks=64, disk_bytes=8 << 20)
    visitor = rig.attach(BLOCK // 2, model="visitor")
    before = _lane_bytes(rig)
    visitor.put([1], tier=Tier.GPU)
    rig.host.detach(visitor.session)
    assert _lane_bytes(rig) == before


def test_a_namespace_without_sessions_and_blocks_makes_place_for_another(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, limits__namespaces_count=4)
    for number in range(12):
        rig.host.detach(rig.attach(model=f"short-lived {number}").session)
    kept = [rig.attach(model=f"kept {number}") for number in range(2)]
    rig.attach(model="with a block").put([5])
    with pytest.raises(ResourceExhaustedError, match="namespaces_count"):
        rig.attach(model="one too many")
    assert rig.host.check() == []
    assert kept[0].write([1]) == [NEW]


def test_what_was_removed_does_not_come_back_with_a_crash(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=8 << 20)
    rig.put_on_disk([1, 2, 3])
    assert rig.host.remove(rig.worker.session, keys([1, 2])) == 2
    assert rig.host.removals().wait(10)
    store = rig.host.memory.store
    assert store is not None
    store.close(clean=False)  # a crash: nothing is written any more
    listed = {block.key for block in store.open()}
    assert listed == {keys([3])[0]}


def test_removals_do_not_wait_for_a_disk_that_is_off(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=8 << 20)
    disk = rig.directory.state.disk
    assert disk is not None
    disk.on = False
    assert rig.host.removals().done
