"""Law 11 at its edge: when nothing can be freed the answer comes at once, and when something can, it is used."""

from collections.abc import Iterator

import numpy as np
import pytest

from hybridkv.migration.reserves import ReserveReply
from hybridkv.migration.tickets import Ticket
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.extents import ExtentState
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, ReserveOutcome, Tier
from tests.service.model.records import key_of
from tests.service.model.world import SPACES, World

SMALL, LARGE = 0, 1


@pytest.fixture
def world() -> Iterator[World]:
    made = World(gpus=1)
    yield made
    for observer in made.observers:
        made.host.detach(observer)
    made.observers = [made.host.attach(space).session for space in SPACES]
    made.end()


def chain(space: int, number: int, count: int) -> Keys:
    return Keys.of([key_of(space, number, depth) for depth in range(count)])


def reserve(world: World, space: int, keys: Keys) -> Ticket[ReserveReply]:
    ticket = world.host.reserve(world.observers[space], keys, tier=Tier.GPU)
    world.settle()
    assert ticket.done
    return ticket


def fill_device(world: World) -> None:
    """32 small blocks, all a device holds, in three chains."""
    for number, count in ((0, 14), (1, 14), (2, 4)):
        keys = chain(SMALL, number, count)
        reply = reserve(world, SMALL, keys).reply()
        assert (reply.outcomes == ReserveOutcome.NEW).all()
        for key, slot in zip(keys, reply.slots, strict=True):
            world.write(SMALL, key, (int(slot["pool"]), int(slot["offset"])))
        world.host.seal(world.observers[SMALL], reply.reservation, None, None)
        world.sealed |= {(SMALL, key) for key in keys}


def lease_tails(world: World) -> list[int]:
    leases = []
    for number, count in ((0, 14), (1, 14), (2, 4)):
        tail = Keys.of([key_of(SMALL, number, count - 1)])
        reply = world.host.acquire(world.observers[SMALL], tail, tier=Tier.GPU).reply()
        assert reply.states.tolist() == [Outcome.HIT]
        leases.append(reply.lease)
    return leases


def test_refused_at_once_when_every_chain_is_pinned_by_a_leased_tail(world: World) -> None:
    """No extent can be emptied then, although none of their blocks is leased: nobody is to wait for it."""
    fill_device(world)
    leases = lease_tails(world)
    with pytest.raises(ResourceExhaustedError, match="gpu0"):
        reserve(world, LARGE, chain(LARGE, 0, 1)).reply()
    assert world.host.directory.state.mapped(0).table.extents_in(ExtentState.EMPTYING) == []
    world.verify()
    for lease in leases:
        world.host.release(world.observers[SMALL], lease)
    assert reserve(world, LARGE, chain(LARGE, 0, 1)).reply().outcomes.tolist() == [ReserveOutcome.NEW]
    world.verify()


def test_a_slot_in_quarantine_keeps_its_extent_and_nobody_waits_for_it(world: World) -> None:
    """The extent is being emptied when a lapsed lease turns one of its slots into a place that may not be reused."""
    fill_device(world)
    head = chain(SMALL, 2, 1)
    world.host.on_mapped(world.observers[SMALL], 0)
    lease = world.host.acquire(world.observers[SMALL], head, tier=Tier.GPU).reply()
    world.clock.advance(31.0)
    world.tick()
    world.host.remove(world.observers[SMALL], head)
    world.sealed.discard((SMALL, head[0]))
    extent = int(lease.slots["extent"][0])
    table = world.host.directory.state.mapped(0).table
    table.begin_emptying(extent)
    world.host.migrator.stir()
    world.settle()
    assert table.state_of(extent) is not ExtentState.EMPTYING
    world.verify()


def test_blocks_of_another_layout_make_room_for_a_whole_chain(world: World) -> None:
    fill_device(world)
    reply = reserve(world, LARGE, chain(LARGE, 0, 10)).reply()
    assert (reply.outcomes == ReserveOutcome.NEW).all()
    world.verify()
    found = world.host.lookup(world.observers[SMALL], chain(SMALL, 0, 14)).states
    assert (found == Outcome.HIT).all(), "what made room went down, not away"
    assert np.count_nonzero(reply.slots["pool"] == 0) == 10
