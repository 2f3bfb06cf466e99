"""Acquires that wait: how they are answered, how they end, and what fails under them."""

from collections.abc import Callable

import numpy as np
import pytest

from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.errors import ForeignHoldError, InvalidArgumentError, ResourceExhaustedError, UnavailableError
from hybridkv.tiers.headers import HeaderRegion
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, HIT, MISS, PENDING, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


# ---------------------------------------------------------------------------------------------------- the lease's life


def test_a_repeated_acquire_returns_what_landed(make_host: MakeHost) -> None:
    rig = make_host(migration__batch_bytes=BLOCK)
    rig.worker.put([1, 2], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    ticket = rig.worker.acquire([1, 2], tier=Tier.CPU)
    lease = ticket.reply().lease
    assert rig.worker.again(lease).states.tolist() == [PENDING, PENDING]
    stream.release_held(1)
    rig.until(lambda: rig.worker.again(lease).states.tolist() == [HIT, PENDING])
    rig.worker.verify([1, 2], rig.worker.again(lease))
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    rig.worker.verify([1, 2], rig.worker.again(lease))
    assert rig.worker.again(lease).states.tolist() == [HIT, HIT]
    rig.worker.release(lease)


def test_release_drops_what_is_still_pending(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1])
    rig.worker.put([2], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    ticket = rig.worker.acquire([1, 2], tier=Tier.CPU)
    assert ticket.reply().states.tolist() == [HIT, PENDING]
    rig.worker.release(ticket.reply().lease)
    assert ticket.done
    assert rig.host.check() == []
    assert rig.migrator.demand.waiting == 0
    stream.release_held()
    rig.settle()
    assert not rig.directory.state.ledger.leases


def test_an_abandoned_acquire_leaves_no_hold(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    ticket = rig.worker.acquire([1], tier=Tier.CPU)
    ticket.abandon()
    assert ticket.done
    assert not rig.directory.state.ledger.leases
    stream.release_held()
    rig.settle()


def test_a_repeated_acquire_that_is_abandoned_leaves_the_lease(make_host: MakeHost) -> None:
    """Its owner knows of the lease and looks at what it holds; only the repeated call is given up."""
    rig = make_host()
    rig.worker.put([1])
    rig.worker.put([2], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    first = rig.worker.acquire([1, 2], tier=Tier.CPU)
    lease = first.reply().lease
    again = rig.host.acquire(rig.worker.session, Keys(b"", 16), lease=lease)
    assert not again.done
    again.abandon()
    assert rig.worker.again(lease).states.tolist() == [HIT, PENDING]
    told: list[bool] = []
    again.add_done_callback(lambda: told.append(True))
    stream.release_held()
    assert again.wait(PATIENCE_S)
    assert (again.done, first.done, told) == (True, True, [True])
    assert rig.worker.again(lease).states.tolist() == [HIT, HIT]
    rig.worker.release(lease)


def test_a_session_that_ends_lets_its_waiting_calls_go(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    other = rig.attach()
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    ticket = other.acquire([1], tier=Tier.CPU)
    rig.host.detach(other.session)
    assert ticket.wait(PATIENCE_S)
    assert not rig.directory.state.ledger.leases
    stream.release_held()
    rig.settle()


def test_a_lease_that_lapses_while_it_waits_answers_miss(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    ticket = rig.worker.acquire([1], tier=Tier.CPU)
    rig.clock.advance(rig.host.config.daemon.lease_s + 1)
    rig.host.tick()
    assert ticket.done
    assert ticket.reply().states.tolist() == [MISS]
    stream.release_held()
    rig.settle()


def test_a_block_removed_on_its_way_is_a_miss(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    ticket = rig.worker.acquire([1], tier=Tier.CPU)
    assert rig.host.remove(rig.worker.session, keys([1])) == 1
    assert ticket.wait(PATIENCE_S)
    assert ticket.reply().states.tolist() == [MISS]
    stream.release_held()
    rig.settle()
    assert rig.where(1) == set()
    assert rig.used("cpu") == rig.used("gpu0") == 0


def test_leases_of_others_cannot_be_repeated_or_released(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1])
    lease = rig.worker.hold([1]).lease
    other = rig.attach()
    with pytest.raises(ForeignHoldError):
        other.again(lease)
    with pytest.raises(ForeignHoldError):
        other.release(lease)
    assert rig.worker.again(lease).states.tolist() == [HIT]


# ---------------------------------------------------------------------------------------------------- the reader wins


@pytest.mark.parametrize("at", list(HoldAt))
def test_a_lease_taken_during_a_demotion_keeps_the_source(make_host: MakeHost, at: HoldAt) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold(at)
    rig.lower("gpu0", [1])
    assert stream.wait_held()
    lease = rig.worker.hold([1], tier=Tier.GPU).lease
    stream.release_held()
    rig.settle()
    assert rig.where(1) == {"gpu0", "cpu"}
    rig.worker.verify([1], rig.worker.again(lease))


def test_a_demotion_of_a_block_leased_before_it_begins_is_cancelled(make_host: MakeHost) -> None:
    rig = make_host(migration__batch_bytes=BLOCK)
    rig.worker.put([1, 2], Tier.GPU)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    rig.lower("gpu0", [1, 2])
    assert stream.wait_held()
    rig.worker.hold([2], tier=Tier.GPU)
    stream.release_held()
    rig.settle()
    assert rig.where(1) == {"cpu"}
    assert rig.where(2) == {"gpu0"}
    assert rig.moves(source="gpu0", target="cpu") == {"done": 1, "cancelled": 1}


def test_the_destination_is_unreadable_before_the_commit(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold(HoldAt.BEFORE_COMPLETION)  # the bytes are there, nobody was told
    ticket = rig.worker.acquire([1], tier=Tier.CPU)
    assert stream.wait_held()
    cpu = rig.pool("cpu")
    headers = rig.directory.state.mapped(cpu).headers
    assert headers is not None
    assert readable(headers) == 0
    assert rig.host.lookup(rig.worker.session, keys([1])).tiers.tolist() == [Tier.GPU]
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    assert readable(headers) == 1


def readable(headers: HeaderRegion) -> int:
    """Slots whose header says that they may be read; slots that never were carved have generation 0."""
    generations = headers.headers["generation"]
    return int(np.count_nonzero((generations > 0) & (generations % 2 == 0)))


# ---------------------------------------------------------------------------------------------------- limits


def test_an_acquire_gets_the_longest_prefix_that_fits(make_host: MakeHost) -> None:
    rig = make_host(gpu_blocks=16)
    rig.worker.put(range(20))
    states = rig.worker.read(range(20), tier=Tier.GPU)
    assert states == [HIT] * 16 + [MISS] * 4
    assert rig.counter("acquires_without_room") == 4


def test_an_acquire_with_room_for_nothing_says_so_at_once(make_host: MakeHost) -> None:
    rig = make_host(gpu_blocks=16)
    rig.worker.put(range(16), Tier.GPU)
    rig.worker.put([20])
    rig.worker.hold(range(16), tier=Tier.GPU)
    ticket = rig.worker.acquire([20], tier=Tier.GPU)
    assert ticket.done
    with pytest.raises(ResourceExhaustedError, match="gpu0"):
        ticket.reply()
    assert len(rig.directory.state.ledger.leases) == 1


def test_a_prefix_ends_at_the_first_key_that_is_not_there(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1, 3])
    assert rig.worker.read([1, 2, 3], independent=False) == [HIT, MISS, MISS]
    assert rig.worker.read([1, 2, 3], independent=True) == [HIT, MISS, HIT]


def test_without_a_tier_any_mapped_copy_serves(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.put_on_disk([3])
    rig.worker.put([1], Tier.GPU)
    rig.worker.put([2])
    assert rig.worker.read([1, 2, 3]) == [HIT, HIT, HIT]
    assert rig.where(1) == {"gpu0"}
    assert rig.where(3) == {"cpu", "disk"}


def test_too_many_requests_leave_no_lease_behind(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1])
    session = rig.directory.state.ledger.session(rig.worker.session)
    reply = rig.worker.hold([1], request=1)
    session.requests.update((number, session.requests[1]) for number in range(2, 4097))
    try:
        with pytest.raises(ResourceExhaustedError, match="request_id"):
            rig.worker.acquire([1], request=5000)
        assert list(rig.directory.state.ledger.leases) == [reply.lease]
    finally:
        for number in range(2, 4097):
            del session.requests[number]


@pytest.mark.parametrize("tier", [Tier.DISK])
def test_the_disk_tier_cannot_be_acquired(make_host: MakeHost, tier: Tier) -> None:
    rig = make_host(disk_bytes=DISK)
    with pytest.raises(InvalidArgumentError, match=r"tier: .*gpu, cpu"):
        rig.worker.acquire([1], tier=tier)
    with pytest.raises(InvalidArgumentError, match="keys: must be empty"):
        rig.host.acquire(rig.worker.session, keys([1]), lease=1)
    assert len(Keys(b"", 16)) == 0


# ---------------------------------------------------------------------------------------------------- failures


def test_a_transfer_that_fails_once_is_tried_again(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    rig.stream("gpu0-cpu.demand").fail_next(UnavailableError("the device said no"))
    assert rig.worker.read([1], tier=Tier.CPU) == [HIT]
    assert rig.moves(source="gpu0", target="cpu") == {"failed": 1, "done": 1}


def test_a_transfer_that_keeps_failing_is_a_miss_and_no_loop(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    for _ in range(10):
        rig.stream("gpu0-cpu.demand").fail_next(UnavailableError("the device said no"))
    assert rig.worker.read([1], tier=Tier.CPU) == [MISS]
    assert rig.moves(source="gpu0", target="cpu") == {"failed": 2}
    assert rig.counter("acquires_given_up") == 1
    assert rig.worker.read([1], tier=Tier.GPU) == [HIT]
