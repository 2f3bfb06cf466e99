"""A block whose move always fails: it is left alone, the others go on, and no loop spins on it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hybridkv.migration.lanes import LaneWorker
from hybridkv.migration.movers import Cargo, Landing
from hybridkv.tiers.directory.setbacks import LONG_REST_S, MOST_ROWS, TRIES, Setbacks
from hybridkv.tiers.states import Tier
from tests.migration.hosts import HIT, NEW, Rig

MakeHost = Callable[..., Rig]
POISON = 3


@contextmanager
def poisoned(rig: Rig, lanes: list[LaneWorker], number: int = POISON) -> Iterator[list[list[int]]]:
    """Batches that hold the block fail; gives the batches that failed, by rows."""
    row, failed = rig.row(number), list[list[int]]()
    patch = pytest.MonkeyPatch()
    for lane in lanes:
        start = lane.mover.start

        def begin(batch: Cargo, start: Callable[[Cargo], Landing] = start) -> Landing:
            if row in batch.rows:
                failed.append(batch.rows.tolist())
                raise RuntimeError("poison")
            return start(batch)

        patch.setattr(lane.mover, "start", begin)
    with patch.context():
        yield failed
    patch.undo()


def tick(rig: Rig, seconds: float) -> None:
    rig.clock.advance(seconds)
    rig.host.tick()
    rig.settle()


def test_background_leaves_it_alone_and_moves_the_others(make_host: MakeHost) -> None:
    rig = make_host(gpu__idle_timeout_s=10)
    rig.worker.put(range(8), Tier.GPU)
    rig.carve_cpu(16)
    lane = rig.lane("gpu0-cpu.background")
    with poisoned(rig, [lane]) as failed:
        tick(rig, 11)
        assert [len(batch) for batch in failed] == [8]  # it took the others with it, once
        tick(rig, 1)
        assert rig.inside("gpu0") == {POISON}
        assert rig.inside("cpu") == set(range(8)) - {POISON}
        for _ in range(40):
            tick(rig, 3)
        assert all(len(batch) == 1 for batch in failed[1:])  # alone
        assert TRIES <= len(failed) <= TRIES + 120 / LONG_REST_S + 1
        assert rig.host.stats()["setbacks"] == {"blocks": 1, "resting": 1, "given_up": 1}
        rig.worker.put(range(20, 24), Tier.GPU)
        tick(rig, 11)
        assert rig.inside("gpu0") == {POISON}
        assert rig.worker.read([POISON], tier=Tier.GPU) == [HIT]  # it is served as ever
    tick(rig, LONG_REST_S + 11)
    assert rig.inside("gpu0") == set()  # mended, it moves
    assert len(rig.directory.state.setbacks) == 0
    assert lane.pulse.alive()


def test_room_is_made_of_the_others(make_host: MakeHost) -> None:
    rig = make_host(gpu_blocks=16)
    rig.worker.put(range(16), Tier.GPU)
    rig.worker.touch(range(4, 16))
    rig.worker.touch([0, 1, 2])  # the poisoned one is the coldest
    with poisoned(rig, [rig.lane("gpu0-cpu.demand"), rig.lane("gpu0-cpu.background")]) as failed:
        for number in range(100, 110):
            assert rig.worker.write([number], tier=Tier.GPU) == [NEW]
            rig.settle()
        assert 1 <= len(failed) <= TRIES
        assert rig.where(POISON) == {"gpu0"}


def test_one_that_is_removed_is_forgotten(make_host: MakeHost) -> None:
    rig = make_host(gpu__idle_timeout_s=10)
    rig.worker.put([POISON], Tier.GPU)
    with poisoned(rig, [rig.lane("gpu0-cpu.background")]):
        tick(rig, 11)
        assert len(rig.directory.state.setbacks) == 1
    rig.host.clear()
    rig.settle()
    assert len(rig.directory.state.setbacks) == 0


def test_setbacks_are_bounded() -> None:
    setbacks = Setbacks()
    for row in range(2 * MOST_ROWS):
        setbacks.failed(row, 0.0)
    assert len(setbacks) == MOST_ROWS
    assert setbacks.failures_of(0) == 0
    assert setbacks.failures_of(2 * MOST_ROWS - 1) == 1
