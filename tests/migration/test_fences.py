"""What a worker's stream has not done yet does not count: sealed blocks are not found, given-up slots not reused."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hybridkv.migration import fences
from hybridkv.tiers.device.base import Event
from hybridkv.tiers.errors import (
    ExpiredError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.states import Reason, Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import (
    ALREADY_SEALED,
    BEING_WRITTEN,
    BLOCK,
    EXPIRED,
    HIT,
    MISS,
    NEW,
    NO_ROOM,
    SEALED,
    Rig,
    content,
    keys,
)

GPU0 = 0
BLOCKS = 16


class Manual(Event):
    """An event that is done when the test says so; the kernels behind it then have run. `asked` is called before."""

    def __init__(self) -> None:
        self.reached = False
        self.asked: Callable[[], None] = lambda: None

    @property
    def done(self) -> bool:
        self.asked()
        return self.reached

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.reached


class Broken(Manual):
    @property
    def done(self) -> bool:
        raise UnavailableError("the device is lost")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, gpu_blocks=BLOCKS)
    yield made
    if not made.closed:
        assert made.host.check() == []
        made.close()


def reserved_slot(rig: Rig, number: int) -> tuple[int, np.void]:
    reply = rig.worker.reserved([number], tier=Tier.GPU)
    return reply.reservation, reply.slots[0]


def granted(rig: Rig, numbers: range) -> int:
    """How many slots a reservation gets; it is given back."""
    try:
        reply = rig.worker.reserved(numbers, tier=Tier.GPU)
    except ResourceExhaustedError:
        return 0
    rig.host.abort(rig.worker.session, reply.reservation, None)
    return int(np.count_nonzero(reply.outcomes == NEW))


def lease_of(rig: Rig, number: int) -> int:
    return rig.worker.hold([number], tier=Tier.GPU).lease


# ---------------------------------------------------------------------------------------------------------- seal


def test_a_block_is_found_and_copied_only_when_its_writer_s_stream_is_done(rig: Rig) -> None:
    kernel, other = Manual(), rig.attach()
    reservation, slot = reserved_slot(rig, 1)
    sealed = rig.host.seal(rig.worker.session, reservation, None, None, [(GPU0, kernel)])
    assert sealed.tolist() == [SEALED]
    rig.host.tick()
    assert other.read([1], tier=Tier.CPU) == [MISS]
    assert other.reserved([1], tier=Tier.GPU).outcomes.tolist() == [BEING_WRITTEN]
    rig.worker.fill(1, slot)  # the kernel runs
    kernel.reached = True
    assert other.read([1], tier=Tier.CPU) == [HIT]
    rig.settle()


def test_what_is_done_when_the_call_comes_counts_at_once(rig: Rig) -> None:
    kernel = Manual()
    kernel.reached = True
    reservation, slot = reserved_slot(rig, 1)
    rig.worker.fill(1, slot)
    assert rig.host.seal(rig.worker.session, reservation, None, None, [(GPU0, kernel)]).tolist() == [SEALED]
    assert len(rig.migrator.fences) == 0
    assert rig.where(1) == {"gpu0"}


def test_a_tick_publishes_without_anybody_asking(rig: Rig) -> None:
    kernel = Manual()
    reservation, slot = reserved_slot(rig, 1)
    rig.host.seal(rig.worker.session, reservation, None, None, [(GPU0, kernel)])
    rig.worker.fill(1, slot)
    kernel.reached = True
    rig.host.tick()
    assert rig.where(1) == {"gpu0"}
    assert rig.host.seal(rig.worker.session, reserved_slot(rig, 2)[0], None, None).tolist() == [SEALED]


def test_a_second_seal_and_a_late_one_are_told_so(rig: Rig) -> None:
    kernel = Manual()
    reply = rig.worker.reserved([1, 2], tier=Tier.GPU)
    first = np.array([0], np.int64)
    rig.worker.fill(1, reply.slots[0])
    rig.host.seal(rig.worker.session, reply.reservation, first, None)
    again = rig.host.seal(rig.worker.session, reply.reservation, first, None, [(GPU0, kernel)])
    assert again.tolist() == [ALREADY_SEALED]
    rig.clock.advance(rig.host.config.daemon.reservation_s + 1)
    rig.host.tick()
    late = rig.host.seal(rig.worker.session, reply.reservation, np.array([1], np.int64), None, [(GPU0, kernel)])
    assert late.tolist() == [EXPIRED]
    assert rig.used("gpu0") == 2 * BLOCK  # confirmed by its owner, but its stream still writes
    kernel.reached = True
    rig.host.tick()
    assert rig.used("gpu0") == BLOCK
    assert rig.where(2) == set()


def test_a_promise_lives_as_long_as_a_reservation_and_is_broken_then(rig: Rig) -> None:
    kernel = Manual()
    reservation, _ = reserved_slot(rig, 1)
    life_s = rig.host.config.daemon.reservation_s
    rig.clock.advance(life_s - 1)
    rig.host.seal(rig.worker.session, reservation, None, None, [(GPU0, kernel)])
    rig.clock.advance(life_s - 1)
    rig.host.tick()
    assert rig.counter("reservations_lapsed") == 0
    rig.clock.advance(2)
    rig.host.tick()
    kernel.reached = True
    rig.host.tick()
    assert rig.where(1) == set()
    assert rig.counter("seals_unconfirmed") == 1
    assert rig.used("gpu0") == 0


def test_blocks_of_a_process_that_dies_before_its_kernels_ran_are_never_found(rig: Rig) -> None:
    kernel, other = Manual(), rig.attach()
    reservation, _ = reserved_slot(rig, 1)
    rig.host.seal(rig.worker.session, reservation, None, None, [(GPU0, kernel)])
    kernel.reached = True  # nobody may ask the event of a process that is gone
    rig.host.on_gone(rig.worker.session)
    assert other.read([1], tier=Tier.CPU) == [MISS]
    assert rig.counter("seals_unconfirmed") == 1
    assert len(rig.migrator.fences) == 0
    assert rig.used("gpu0") == 0


def test_a_goodbye_counts_what_is_done(rig: Rig) -> None:
    kernel, other = Manual(), rig.attach()
    reservation, slot = reserved_slot(rig, 1)
    rig.host.seal(rig.worker.session, reservation, None, None, [(GPU0, kernel)])
    rig.worker.fill(1, slot)
    kernel.reached = True
    rig.host.detach(rig.worker.session)
    assert other.read([1], tier=Tier.CPU) == [HIT]


# ------------------------------------------------------------------------------------------------ release, abort


def test_a_released_slot_is_not_written_before_its_reader_s_stream_is_done(rig: Rig) -> None:
    rig.worker.put(range(BLOCKS), Tier.GPU)
    held, kernel = rig.worker.hold([3], tier=Tier.GPU), Manual()
    rig.host.release(rig.worker.session, held.lease, [(GPU0, kernel)])
    rig.host.remove(rig.worker.session, keys([3]))
    table = rig.directory.state.mapped(GPU0).table
    assert rig.worker.write([100], tier=Tier.GPU) == [NEW]  # another block goes down for it
    rig.settle()
    at = int(held.slots[0]["offset"])
    assert np.array_equal(rig.host.pool_array(GPU0)[at : at + BLOCK], content(3))
    assert table.bytes_by_use[SlotUse.QUARANTINED] == BLOCK
    kernel.reached = True
    rig.host.tick()
    assert table.bytes_by_use[SlotUse.QUARANTINED] == 0


def test_no_lane_copies_into_a_released_slot_before_its_reader_s_stream_is_done(rig: Rig) -> None:
    rig.worker.put([50])
    rig.worker.put(range(BLOCKS), Tier.GPU)
    held = rig.worker.hold(range(1, BLOCKS), tier=Tier.GPU)  # only the slot of 0 may come free
    lease, kernel = lease_of(rig, 0), Manual()
    rig.host.release(rig.worker.session, lease, [(GPU0, kernel)])
    rig.host.remove(rig.worker.session, keys([0]))
    with pytest.raises(ResourceExhaustedError, match="gpu0"):
        rig.worker.hold([50], tier=Tier.GPU)
    kernel.reached = True
    assert rig.worker.read([50], tier=Tier.GPU) == [HIT]
    rig.worker.release(held.lease)
    rig.settle()


def test_an_aborted_slot_is_not_given_away_before_its_writer_s_stream_is_done(rig: Rig) -> None:
    kernel = Manual()
    reply = rig.worker.reserved(range(BLOCKS), tier=Tier.GPU)
    rig.host.abort(rig.worker.session, reply.reservation, None, [(GPU0, kernel)])
    assert granted(rig, range(BLOCKS)) == 0
    kernel.reached = True
    assert granted(rig, range(BLOCKS)) == BLOCKS


def test_an_extent_is_not_carved_anew_while_a_stream_may_touch_it(rig: Rig) -> None:
    kernel = Manual()
    reply = rig.worker.reserved(range(BLOCKS), tier=Tier.GPU)
    rig.host.abort(rig.worker.session, reply.reservation, None, [(GPU0, kernel)])
    small = rig.attach(block=BLOCK // 2, model="small")
    with pytest.raises(ResourceExhaustedError, match="quarantined"):
        small.reserved([1], tier=Tier.GPU)
    kernel.reached = True
    assert small.reserved([1], tier=Tier.GPU).outcomes.tolist() == [NEW]
    rig.settle()


def test_a_lapsed_lease_s_slots_wait_for_its_reader_s_stream(rig: Rig) -> None:
    rig.worker.put([1], Tier.GPU)
    lease, kernel = lease_of(rig, 1), Manual()
    rig.clock.advance(rig.host.config.daemon.lease_s + 1)
    rig.host.tick()
    rig.host.remove(rig.worker.session, keys([1]))
    with pytest.raises(ExpiredError):
        rig.host.release(rig.worker.session, lease, [(GPU0, kernel)])
    assert rig.used("gpu0") == BLOCK
    kernel.reached = True
    rig.host.tick()
    assert rig.used("gpu0") == 0


def test_a_block_that_is_still_read_by_a_stream_may_move_on(rig: Rig) -> None:
    rig.worker.put([1], Tier.GPU)
    lease, kernel = lease_of(rig, 1), Manual()
    rig.host.release(rig.worker.session, lease, [(GPU0, kernel)])
    rig.lower("gpu0", [1], Reason.RECLAIM)
    rig.settle()
    assert rig.where(1) == {"cpu"}
    assert rig.used("gpu0") == BLOCK
    rig.host.on_gone(rig.worker.session)
    assert rig.used("gpu0") == 0


# ------------------------------------------------------------------------------------------------ events


def test_an_event_recorded_again_does_not_end_the_later_call(rig: Rig) -> None:
    """Between the question and the answer the owner saw it done, recorded it again and made another call."""
    kernel = Manual()
    first, second = reserved_slot(rig, 1)[0], reserved_slot(rig, 2)[0]
    rig.host.abort(rig.worker.session, first, None, [(GPU0, kernel)])

    def overtake() -> None:
        kernel.asked = lambda: None
        kernel.reached = False
        rig.host.abort(rig.worker.session, second, None, [(GPU0, kernel)])
        kernel.reached = True

    kernel.asked = overtake
    assert rig.migrator.fences.settle()
    assert len(rig.migrator.fences) == 1
    assert rig.used("gpu0") == BLOCK
    assert rig.migrator.fences.settle()
    assert rig.used("gpu0") == 0


def test_an_event_that_cannot_be_asked_keeps_its_slots_until_the_process_is_gone(rig: Rig) -> None:
    rig.host.abort(rig.worker.session, reserved_slot(rig, 1)[0], None, [(GPU0, Broken())])
    rig.host.tick()
    assert rig.used("gpu0") == BLOCK
    rig.host.on_gone(rig.worker.session)
    assert rig.used("gpu0") == 0


@pytest.mark.parametrize(
    "events",
    [[(1, b"")], [(7, b"")], [(GPU0, b"junk")], [(GPU0, Manual()), (GPU0, Manual())]],
    ids=["no device", "no pool", "junk", "two for one pool"],
)
def test_what_is_no_event_of_a_device_is_refused_and_nothing_changes(
    rig: Rig, events: list[tuple[int, bytes | Event]]
) -> None:
    reservation, _ = reserved_slot(rig, 1)
    with pytest.raises(InvalidArgumentError, match="event"):
        rig.host.abort(rig.worker.session, reservation, None, events)
    assert rig.used("gpu0") == BLOCK
    assert rig.worker.reserved([1], tier=Tier.GPU).outcomes.tolist() == [BEING_WRITTEN]


def test_events_and_calls_of_a_session_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "MAX_FENCES", 1)
    monkeypatch.setattr(fences, "MAX_EVENTS", 0)
    rig.host.abort(rig.worker.session, reserved_slot(rig, 1)[0], None, [(GPU0, Manual())])
    second, _ = reserved_slot(rig, 2)
    with pytest.raises(ResourceExhaustedError, match="the limit"):
        rig.host.abort(rig.worker.session, second, None, [(GPU0, Manual())])
    with pytest.raises(ResourceExhaustedError, match="the limit"):
        rig.host.abort(rig.worker.session, second, None, [(GPU0, b"x")])
    assert rig.attach().reserved([2], tier=Tier.GPU).outcomes.tolist() == [BEING_WRITTEN]
    with pytest.raises(NotFoundError):
        rig.migrator.fences.open(12345, [(GPU0, b"x")])


def test_reservations_do_not_wait_for_others_streams(rig: Rig) -> None:
    reply = rig.worker.reserved(range(BLOCKS - 1), tier=Tier.GPU)
    rig.host.abort(rig.worker.session, reply.reservation, None, [(GPU0, Manual())])
    answer = rig.worker.reserve(range(2), tier=Tier.GPU)
    assert answer.wait(PATIENCE_S)
    assert answer.reply().outcomes.tolist() == [NEW, NO_ROOM]
