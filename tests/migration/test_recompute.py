"""Acquires whose caller could compute: what they are answered, and what the answer was worth."""

from collections.abc import Callable

import numpy as np
import pytest

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.states import Outcome, Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, HIT, MISS, PENDING, Rig, key

MakeHost = Callable[..., Rig]
RECOMPUTE = int(Outcome.RECOMPUTE)
LANE = "cpu-gpu0.demand"


def lane_of(rig: Rig, block_s: float) -> None:
    """The lane up takes `block_s` for a block, as measured lately."""
    rig.lane(LANE).speed.note(BLOCK, block_s, rig.clock.now())


def chain_on_cpu(rig: Rig, count: int) -> list[int]:
    numbers = list(range(1, count + 1))
    rig.worker.write(numbers, tier=Tier.CPU)
    rig.worker.put([99], Tier.GPU)
    with rig.directory.lock:  # the device has slots for all of them: nothing waits for memory
        rig.migrator.reclaim.carve_for(rig.directory.state.mapped(rig.pool("gpu0")), BLOCK, count)
    rig.migrator.carver.idle()
    return numbers


def figures(rig: Rig) -> dict[str, float]:
    found = rig.host.stats()["recompute"]
    assert isinstance(found, dict)
    return found


def test_what_lands_later_than_it_is_computed_is_not_loaded(make_host: MakeHost) -> None:
    rig = make_host()
    numbers = chain_on_cpu(rig, 4)
    lane_of(rig, block_s=1.0)
    ticket = rig.worker.acquire(numbers, tier=Tier.GPU, independent=False, recompute_s=0.25)
    assert ticket.done
    assert ticket.reply().states.tolist() == [RECOMPUTE] * 4
    rig.settle()
    assert all(rig.where(number) == {"cpu"} for number in numbers)
    assert figures(rig) == {
        "asked_blocks": 4,
        "declined_blocks": 4,
        "saved_by_computing_s": pytest.approx(4.0 - 1.0),
        "saved_by_loading_s": 0.0,
        "lost_by_loading_s": 0.0,
    }
    rig.worker.release(ticket.reply().lease)
    assert rig.host.check() == []


def test_what_is_there_is_leased_and_only_the_rest_is_computed(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.write([1, 2], tier=Tier.GPU)
    rig.worker.write([3, 4], tier=Tier.CPU, parent=key(2))
    lane_of(rig, block_s=1.0)
    reply = rig.worker.hold([1, 2, 3, 4, 5], tier=Tier.GPU, independent=False, recompute_s=0.1)
    assert reply.states.tolist() == [HIT, HIT, RECOMPUTE, RECOMPUTE, MISS]
    stats = rig.host.stats()["outcomes"]
    assert stats == {"hit": 2, "miss": 1, "recompute": 2}
    rig.worker.release(reply.lease)


def test_a_fast_lane_or_one_that_is_not_known_loads(make_host: MakeHost) -> None:
    rig = make_host()
    numbers = chain_on_cpu(rig, 3)
    assert rig.worker.read(numbers, tier=Tier.GPU, independent=False, recompute_s=0.0001) == [HIT] * 3
    more = [11, 12]
    rig.worker.write(more, tier=Tier.CPU)
    lane_of(rig, block_s=0.01)
    assert rig.worker.read(more, tier=Tier.GPU, independent=False, recompute_s=1.0) == [HIT] * 2


def test_without_recompute_s_everything_is_loaded(make_host: MakeHost) -> None:
    rig = make_host()
    numbers = chain_on_cpu(rig, 2)
    lane_of(rig, block_s=50.0)
    assert rig.worker.read(numbers, tier=Tier.GPU, independent=False) == [HIT] * 2
    assert figures(rig)["asked_blocks"] == 0


def test_the_queue_of_the_lane_counts(make_host: MakeHost) -> None:
    rig = make_host(migration__batch_bytes=BLOCK)
    numbers = chain_on_cpu(rig, 6)
    stream = rig.stream(LANE)
    stream.hold()
    first = rig.worker.acquire(numbers[:4], tier=Tier.GPU, independent=False)
    lane_of(rig, block_s=1.0)
    reply = rig.worker.acquire(numbers[4:], tier=Tier.GPU, recompute_s=2.5).reply()
    assert reply.states.tolist() == [RECOMPUTE] * 2, "four blocks are ahead: 6 s against 5 s"
    later = rig.worker.acquire(numbers[4:], tier=Tier.GPU, recompute_s=3.5)
    assert later.reply().states.tolist() == [PENDING] * 2
    stream.release_held()
    assert first.wait(PATIENCE_S)
    assert later.wait(PATIENCE_S)


def test_a_load_is_judged_by_the_time_it_took(make_host: MakeHost) -> None:
    rig = make_host()
    numbers = chain_on_cpu(rig, 2)
    stream = rig.stream(LANE)
    stream.hold()
    ticket = rig.worker.acquire(numbers, tier=Tier.GPU, independent=False, recompute_s=2.0)
    rig.clock.advance(1.0)
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    assert figures(rig)["saved_by_loading_s"] == pytest.approx(2 * 2.0 - 1.0)
    assert figures(rig)["lost_by_loading_s"] == 0.0


def test_a_load_that_took_longer_than_computing_is_counted_as_lost(make_host: MakeHost) -> None:
    rig = make_host()
    numbers = chain_on_cpu(rig, 2)
    stream = rig.stream(LANE)
    stream.hold()
    ticket = rig.worker.acquire(numbers, tier=Tier.GPU, independent=False, recompute_s=2.0)
    rig.clock.advance(10.0)
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    assert figures(rig)["lost_by_loading_s"] == pytest.approx(10.0 - 4.0)


def test_lanes_measure_what_they_carry(make_host: MakeHost) -> None:
    rig = make_host()
    numbers = chain_on_cpu(rig, 2)
    stream = rig.stream(LANE)
    stream.hold()
    ticket = rig.worker.acquire(numbers, tier=Tier.GPU, independent=False)
    assert stream.wait_held(PATIENCE_S)
    rig.clock.advance(2.0)
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    assert rig.lane(LANE).speed.bytes_per_s(rig.clock.now()) == BLOCK
    assert rig.host.stats()["lanes"]["cpu-gpu0.background"]["bytes_per_s"] == BLOCK  # type: ignore[index]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_time_that_is_none_is_refused(make_host: MakeHost, seconds: float) -> None:
    rig = make_host()
    with pytest.raises(InvalidArgumentError, match="recompute_s"):
        rig.worker.acquire([1], recompute_s=seconds)
    assert np.array_equal(rig.directory.blocks.holds, np.zeros_like(rig.directory.blocks.holds))
