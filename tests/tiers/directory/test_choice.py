"""Victims: the coldest that may go, never a parent before its children, and first of all what nobody misses."""

import numpy as np

from hybridkv.migration.policies.lru import Lru
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.states import Reason, Tier
from tests.tiers.directory.conftest import CPU, DISK, GPU, Kit, key, mapped


def test_the_coldest_goes_first(kit: Kit) -> None:
    for number in (1, 2, 3):
        kit.seal(number)
        kit.clock.advance(1)
    kit.directory.accesses.touch(np.array(kit.rows(1)))
    assert kit.victims(GPU) == [key(2), key(3), key(1)]
    assert kit.victims(GPU, want=1) == [key(2)]


def test_a_chain_goes_tail_first_whatever_was_used_last(kit: Kit) -> None:
    kit.seal(1, 2, 3)
    kit.directory.accesses.touch(np.array(kit.rows(1)))
    kit.clock.advance(1)
    kit.directory.accesses.touch(np.array(kit.rows(3)))
    assert kit.victims(GPU) == [key(3), key(2), key(1)]


def test_a_parent_stays_while_its_child_lies_as_high(kit: Kit) -> None:
    kit.seal(1)
    kit.reserve(2, parent=key(1))
    assert kit.victims(GPU) == [], "a reserved child protects its parent"


def test_a_parent_stays_on_cpu_while_its_child_lies_on_the_device(kit: Kit) -> None:
    kit.seal(1, pool=CPU)
    kit.seal(2, parent=key(1), pool=GPU)
    kit.seal(3, pool=CPU)
    assert kit.victims(CPU) == [key(3)]
    kit.move([2], GPU, CPU)
    assert set(kit.victims(CPU)) == {key(1), key(2), key(3)}


def test_a_copy_of_a_block_that_also_lies_higher_may_always_go_and_goes_first(kit: Kit) -> None:
    kit.seal(3, pool=CPU)
    kit.clock.advance(1)
    kit.seal(1, 2)
    kit.move([1], GPU, CPU, keep_source=True)
    assert kit.victims(CPU) == [key(1), key(3)]
    assert kit.victims(GPU) == [key(2), key(1)]


def test_orphans_go_before_what_is_colder(kit: Kit) -> None:
    kit.seal(1)
    kit.clock.advance(1)
    kit.seal(3, parent=key(2))
    assert kit.victims(GPU) == [key(3), key(1)]


def test_what_is_reserved_held_or_on_its_way_stays(kit: Kit) -> None:
    kit.seal(1)
    kit.seal(2)
    kit.seal(3, request=5)
    kit.reserve(4)
    kit.begin([1], GPU, CPU, keep_source=True, reason=Reason.DEMAND)
    assert kit.victims(GPU) == [key(2)]


def test_on_disk_the_last_copy_goes_and_the_block_with_it(kit: Kit) -> None:
    kit.seal(1, pool=CPU)
    kit.move([1], CPU, DISK)
    assert kit.victims(DISK) == [key(1)]
    kit.directory.copies.drop(np.array(kit.rows(1)), DISK)
    assert not kit.is_here(1)


def test_a_second_copy_on_another_device_may_go_although_children_lie_there() -> None:
    kit = Kit()
    books = [mapped(PoolId(Tier.GPU, 0), 0, 2), mapped(PoolId(Tier.GPU, 1), 1, 2), mapped(PoolId(Tier.CPU), 2, 2)]
    kit.directory = Directory(books, kit.clock)
    kit.space = kit.directory.add_space_by(b"f" * 32, 4096, 8)
    kit.session = kit.attach()
    kit.seal(1, 2, pool=0)
    assert kit.victims(0) == [key(2), key(1)]
    kit.move([1], 0, 1, keep_source=True)
    assert kit.victims(1) == [key(1)]
    kit.directory.leases.hold(
        kit.directory.leases.open(kit.session, np.array(kit.rows(2)), views=True, request=None, life_s=9.0),
        np.array([0]),
        0,
    )
    assert kit.victims(0) == [key(1)], "another device has it too"
    assert kit.directory.check() == []


def test_a_pick_against_the_laws_is_witnessed(kit: Kit) -> None:
    kit.seal(1, 2)
    parent, child = kit.rows(1, 2)
    state = kit.directory.state
    kit.directory.choice._witness(GPU, [child, parent])
    assert state.broken == []
    kit.directory.choice._witness(GPU, [parent])
    state.blocks.busy[child] = 1
    kit.directory.choice._witness(GPU, [child])
    state.blocks.busy[child] = 0
    assert [line[:6] for line in kit.directory.check()] == ["law 7:", "law 4:"]
    state.broken.clear()


def test_the_policy_is_not_asked_for_more_than_is_wanted() -> None:
    asked = []

    class Counting(Lru):
        def scan(self):  # type: ignore[no-untyped-def]
            for window in super().scan():
                asked.append(len(window))
                yield window

    kit = Kit(gpu_extents=300)
    kit.directory.books[GPU].policy = Counting()
    for number in range(1200):
        kit.seal(number)
    assert len(kit.victims(GPU, want=1)) == 1
    assert sum(asked) < 1200
