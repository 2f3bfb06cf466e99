"""Leases over a scripted session."""

import time

import numpy as np
import pytest

from hybridkv.service.client.core import Budget, Wish
from hybridkv.service.client.lease import MappedLease, ask
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import ExpiredError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from hybridkv.tiers.states import Outcome
from tests.service.client.scripted import BLOCK_BYTES, Scripted, numbered

HIT, PENDING, MISS = Outcome.HIT, Outcome.PENDING, Outcome.MISS


def taken(transport: Scripted, *numbers: int, views: bool = True) -> MappedLease:
    attachment = Attachment(transport)
    wish = Wish(numbered(*numbers), views=views)
    return MappedLease(attachment, wish, ask(attachment, wish, Budget(0.0, 5.0)), 5.0)


def test_blocks_are_read_only_and_not_copied() -> None:
    transport = Scripted()
    lease = taken(transport, 3, 5)
    block = lease.array(1)
    assert block.tolist() == [5] * BLOCK_BYTES
    assert np.shares_memory(block, transport.mapped.memory)
    with pytest.raises(ValueError, match="read-only"):
        block[0] = 1
    assert lease.view(0).tolist() == [3] * BLOCK_BYTES


def test_prefix_ends_at_the_first_that_is_no_hit() -> None:
    transport = Scripted()
    transport.states = [[HIT, HIT, MISS, HIT]]
    lease = taken(transport, 0, 1, 2, 3)
    assert lease.prefix == 2
    assert len(lease) == 4
    with pytest.raises(FailedPreconditionError, match="MISS"):
        lease.array(2)
    assert lease.array(3)[0] == 3
    assert lease.array(-1)[0] == 3


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_outside_is_named(index: int) -> None:
    with pytest.raises(InvalidArgumentError, match="2 keys"):
        taken(Scripted(), 0, 1).array(index)


def test_waiting_asks_again_with_the_lease() -> None:
    transport = Scripted()
    transport.states = [[HIT, PENDING], [HIT, HIT]]
    lease = taken(transport, 1, 2)
    assert lease.prefix == 1
    assert lease.wait(0.5).tolist() == [HIT, HIT]
    assert lease.array(1)[0] == 2
    first, second = transport.asked("acquire")
    assert (first["lease"], second["lease"]) == (None, lease.hold_id)
    assert 0 < second["wait_s"] <= 0.5


@pytest.mark.parametrize("error", [NotFoundError("lease"), ExpiredError("lease"), LostError("gone")])
def test_waiting_on_a_lease_that_is_gone_says_so(error: Exception) -> None:
    transport = Scripted()
    lease = taken(transport, 1)
    transport.failure = error
    with pytest.raises(ExpiredError):
        lease.wait(0.0)
    assert not lease.valid


def test_release_happens_once_and_ends_the_lease() -> None:
    transport = Scripted()
    with taken(transport, 1) as lease:
        number = lease.hold_id
    lease.release()
    assert transport.asked("release") == [number]
    assert not lease.valid
    with pytest.raises(FailedPreconditionError, match="given back"):
        lease.array(0)


def test_release_of_what_lapsed_is_no_error() -> None:
    transport = Scripted()
    lease = taken(transport, 1)
    transport.failure = ExpiredError("lapsed")
    lease.release()
    assert transport.asked("release") == [lease.hold_id]


def test_lease_dies_with_its_session_but_its_views_stay_readable() -> None:
    transport = Scripted()
    lease = taken(transport, 4)
    view = lease.array(0)
    transport.lost = True
    assert not lease.valid
    with pytest.raises(ExpiredError, match="daemon"):
        lease.array(0)
    assert view[0] == 4
    lease.release()
    assert transport.asked("release") == []


def test_lease_that_nobody_renewed_in_time_lapses_by_its_own_clock() -> None:
    transport = Scripted(lease_s=0.001)
    transport.alive = [False]
    lease = taken(transport, 1)
    deadline = time.monotonic() + 10
    while lease.valid and time.monotonic() < deadline:
        pass
    with pytest.raises(ExpiredError, match="lapsed"):
        lease.array(0)


def test_read_into_takes_chosen_rows_and_leaves_others() -> None:
    transport = Scripted()
    transport.states = [[HIT, MISS, HIT]]
    lease = taken(transport, 5, 6, 7)
    out = np.full((3, BLOCK_BYTES), 9, np.uint8)
    assert lease.read_into(out).tolist() == [HIT, MISS, HIT]
    assert out[:, 0].tolist() == [5, 9, 7]
    assert lease.read_into(out[:2], [2, 0]).tolist() == [HIT, HIT]
    assert out[:, -1].tolist() == [7, 5, 7]
    with pytest.raises(InvalidArgumentError, match="rows"):
        lease.read_into(out, [0, 1, 3])


def test_copying_lease_shows_nothing_and_tells_what_was_revoked() -> None:
    transport = Scripted()
    lease = taken(transport, 5, 6, views=False)
    with pytest.raises(FailedPreconditionError, match="views=False"):
        lease.array(0)
    transport.mapped.header.generations[6] += 1
    out = np.zeros((2, BLOCK_BYTES), np.uint8)
    assert lease.read_into(out).tolist() == [HIT, MISS]
    assert out[0, 0] == 5
