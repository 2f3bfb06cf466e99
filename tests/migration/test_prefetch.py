"""Prefetch: up without a caller that waits."""

from collections.abc import Callable
from typing import Any

import pytest

from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, NEW, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def test_a_prefetch_of_the_same_key_twice_moves_it_once(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1])
    rig.worker.put([9], Tier.GPU)
    assert rig.host.prefetch(rig.worker.session, keys([1, 1]), tier=Tier.GPU) == 1
    rig.settle()
    assert rig.where(1) == {"cpu", "gpu0"}


def test_a_prefetch_waits_for_a_pool_that_was_never_used(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1, 2])
    assert rig.host.prefetch(rig.worker.session, keys([1, 2]), tier=Tier.GPU) == 2
    rig.settle()
    assert rig.where(1) == rig.where(2) == {"cpu", "gpu0"}


def test_a_prefetch_larger_than_the_tier_brings_what_fits_and_ends(make_host: MakeHost) -> None:
    rig = make_host(gpu_blocks=16)
    rig.worker.put(range(20))
    rig.host.prefetch(rig.worker.session, keys(range(20)), tier=Tier.GPU)
    rig.settle()
    assert len(rig.inside("gpu0")) == 16
    assert rig.moves(source="cpu", target="gpu0") == {"done": 16}


# ------------------------------------------------------------------------------------------------------ the deadline

UP = "cpu-gpu0.background"


def slots_on_gpu(rig: Rig, count: int) -> None:
    """The device has free slots for so many blocks, so that nothing waits for memory."""
    with rig.directory.lock:
        rig.migrator.reclaim.carve_for(rig.directory.state.mapped(rig.pool("gpu0")), BLOCK, count)
    rig.migrator.carver.idle()


def prefetch(rig: Rig, *numbers: int, deadline_s: float | None = None) -> int:
    return rig.host.prefetch(rig.worker.session, keys(numbers), tier=Tier.GPU, deadline_s=deadline_s)


def held_prefetch(make_host: MakeHost, **how: Any) -> tuple[Rig, HostStream]:
    """Blocks 1, 2, 3 prefetched with a deadline of 5 s: the first has begun and is held, the others are queued."""
    rig = make_host(migration__batch_bytes=BLOCK, **how)
    rig.worker.put([1, 2, 3, 4])
    slots_on_gpu(rig, 3)
    stream = rig.stream(UP)
    stream.hold()
    assert prefetch(rig, 1, 2, 3, deadline_s=5.0) == 3
    assert stream.wait_held(PATIENCE_S)
    return rig, stream


def test_what_has_not_begun_by_the_deadline_is_given_up(make_host: MakeHost) -> None:
    rig, stream = held_prefetch(make_host)
    rig.clock.advance(4.0)
    rig.host.tick()
    assert rig.lane(UP).queued == 2
    rig.clock.advance(1.0)
    rig.host.tick()
    assert rig.lane(UP).queued == 0
    assert rig.counter("prefetches_given_up") == 2
    stream.release_held()
    rig.settle()
    assert rig.inside("gpu0") == {1}, "what had begun goes on"
    assert rig.moves(reason="prefetch") == {"done": 1, "cancelled": 2}


def test_a_lane_begins_nothing_that_is_overdue(make_host: MakeHost) -> None:
    rig, stream = held_prefetch(make_host)
    rig.clock.advance(6.0)
    stream.release_held()
    rig.settle()
    assert rig.inside("gpu0") == {1}


def test_a_prefetch_that_waits_for_room_is_given_up_at_its_deadline(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1, 2])
    rig.worker.put([9], Tier.GPU)  # takes the slot that was carved ahead
    with rig.gate("extent.before_carve", "carver") as gate:
        assert prefetch(rig, 1, 2, deadline_s=5.0) == 2
        gate.wait_held()
        rig.clock.advance(6.0)
        rig.host.tick()
        assert rig.migrator.prefetches.waiting == 0
    rig.settle()
    assert rig.inside("gpu0") == {9}


def test_what_somebody_waits_for_is_not_given_up(make_host: MakeHost) -> None:
    rig, stream = held_prefetch(make_host)
    ticket = rig.worker.acquire([2], tier=Tier.GPU)
    assert ticket.wait(PATIENCE_S), "it joined the prefetch and overtook it on the lane for demand"
    rig.clock.advance(6.0)
    rig.host.tick()
    assert rig.inside("gpu0") == {2}
    stream.release_held()
    rig.settle()
    assert rig.inside("gpu0") == {1, 2}
    assert rig.moves(source="cpu", target="gpu0")["done"] == 2, "joined, not moved twice"


def test_demand_for_other_blocks_does_not_wait_for_a_prefetch(make_host: MakeHost) -> None:
    rig, stream = held_prefetch(make_host)
    assert rig.worker.acquire([4], tier=Tier.GPU).wait(PATIENCE_S)
    stream.release_held()
    rig.settle()


def test_demand_that_lacks_room_displaces_what_is_only_queued(make_host: MakeHost) -> None:
    rig = make_host(migration__batch_bytes=BLOCK)
    rig.worker.put([1, 2, 3, 4])
    rig.worker.put(range(10, 23), Tier.GPU)
    held = rig.worker.hold(range(10, 23), tier=Tier.GPU)
    slots_on_gpu(rig, 3)
    stream = rig.stream(UP)
    stream.hold()
    assert prefetch(rig, 1, 2, 3) == 3
    assert stream.wait_held(PATIENCE_S)
    assert rig.worker.acquire([4], tier=Tier.GPU).wait(PATIENCE_S), "all other room is leased"
    assert rig.worker.write([5], tier=Tier.GPU) == [NEW]
    stream.release_held()
    rig.settle()
    assert {1, 4, 5} < rig.inside("gpu0")
    assert rig.moves(reason="prefetch") == {"done": 1, "cancelled": 2}
    rig.worker.release(held.lease)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), 1e9])
def test_a_deadline_that_is_none_is_refused(make_host: MakeHost, seconds: float) -> None:
    rig = make_host()
    with pytest.raises(InvalidArgumentError, match="deadline_s"):
        prefetch(rig, 1, deadline_s=seconds)
