"""Two layouts in one pool: extents are emptied, relocated and carved again; and memory that cannot be had."""

from collections.abc import Callable

import pytest

from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.extents import ExtentState
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, HIT, NEW, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


# ---------------------------------------------------------------------------------------------------- two layouts


def in_order(rig: Rig) -> list[int]:
    """Numbers of the CPU tier's blocks, coldest first."""
    book, names = rig.directory.state.mapped(rig.pool("cpu")), rig.directory.blocks.keys
    return [int.from_bytes(names[row][:8], "little") for window in book.policy.scan() for row in window.tolist()]


def test_an_extent_is_recarved_around_a_leased_one_while_another_layout_waits(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))  # 16 extents of two blocks
    lease = rig.worker.hold([0]).lease
    wide = rig.attach(2 * BLOCK, "wide")
    with rig.gate("move.before_copy", "cpu-cpu.demand") as gate:
        ticket = wide.reserve([500], tier=Tier.CPU)
        gate.wait_held()
        assert not ticket.done
        assert rig.worker.read(range(10, 32)) == [HIT] * 22
    assert ticket.wait(PATIENCE_S)
    assert ticket.reply().outcomes.tolist() == [NEW]
    # Extent 0 holds the leased block 0. Of extent 1 (blocks 2 and 3), 2 went as the coldest but one, and 3 moved.
    assert rig.inside("cpu") == {0, *range(3, 32)}
    rig.worker.verify([0], rig.worker.again(lease))
    assert rig.worker.read([3]) == [HIT]
    rig.host.abort(wide.session, ticket.reply().reservation, None)
    rig.settle()


def test_relocation_keeps_bytes_and_the_order_of_the_policy(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))
    rig.worker.touch([3, 2])
    rig.host.remove(rig.worker.session, keys([20, 30]))  # two free slots in different extents
    order = in_order(rig)
    assert order == [0, 1, *range(4, 20), *range(21, 30), 31, 2, 3]
    wide = rig.attach(2 * BLOCK, "wide")
    assert wide.write([500], tier=Tier.CPU) == [NEW]
    rig.settle()
    assert in_order(rig) == [*order, 500]  # nobody had to leave
    assert rig.worker.read(sorted(order)) == [HIT] * 30
    assert wide.read([500]) == [HIT]
    assert rig.moves(source="cpu", target="cpu", reason="recarve") == {"done": 1}


def test_the_coldest_extent_of_the_other_layout_is_emptied(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32, disk_bytes=DISK)
    for number in range(32):
        rig.clock.advance(1)
        rig.worker.put([number])
    rig.clock.advance(1)
    rig.worker.touch([0, 1])
    wide = rig.attach(2 * BLOCK, "wide")
    assert wide.write([500], tier=Tier.CPU) == [NEW]
    rig.settle()
    assert rig.inside("cpu") == {0, 1, *range(4, 32), 500}
    assert rig.where(2) == rig.where(3) == {"disk"}


def test_a_lease_taken_while_an_extent_empties_spares_it(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))
    wide = rig.attach(2 * BLOCK, "wide")
    lease = rig.worker.hold([0]).lease
    with rig.gate("move.before_copy", "cpu-cpu.demand") as gate:
        ticket = wide.reserve([500], tier=Tier.CPU)
        gate.wait_held()
        kept = rig.worker.hold([3]).lease  # it is being relocated at this moment
    assert ticket.wait(PATIENCE_S)
    assert ticket.reply().outcomes.tolist() == [NEW]
    rig.worker.verify([3], rig.worker.again(kept))
    rig.worker.verify([0], rig.worker.again(lease))
    rig.host.abort(wide.session, ticket.reply().reservation, None)
    rig.settle()


def test_emptying_an_extent_of_clean_copies_answers_at_once(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32, disk_bytes=DISK)
    rig.worker.put(range(32))
    assert rig.host.drain(PATIENCE_S).left == 0
    rig.settle()
    wide = rig.attach(2 * BLOCK, "wide")
    ticket = wide.reserve([500], tier=Tier.CPU)
    assert ticket.wait(PATIENCE_S)  # nothing moved, so nothing but the carving can wake it
    assert ticket.reply().outcomes.tolist() == [NEW]
    assert len(rig.inside("cpu")) == 30  # one extent's worth went, no more
    rig.host.abort(wide.session, ticket.reply().reservation, None)
    rig.settle()


def test_only_as_many_extents_are_emptied_as_are_needed(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32, disk_bytes=DISK)
    wide = rig.attach(2 * BLOCK, "wide")
    wide.put([500], Tier.CPU)
    rig.clock.advance(-0.0)
    rig.worker.put(range(30))
    rig.clock.advance(10)
    wide.touch([500])
    assert wide.write([501], tier=Tier.CPU) == [NEW]
    rig.settle()
    book = rig.directory.state.mapped(0)
    sizes = [book.table.slot_bytes_of(extent) for extent in book.table.extents_in(ExtentState.CARVED)]
    assert sizes.count(2 * BLOCK) == 2
    assert sizes.count(BLOCK) == 14
    assert len(rig.inside("cpu") - {500, 501}) == 28


def test_a_layout_without_anything_to_empty_is_refused_at_once(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))
    rig.worker.hold(range(0, 32, 2))  # one leased block in each extent
    wide = rig.attach(2 * BLOCK, "wide")
    ticket = wide.reserve([500], tier=Tier.CPU)
    assert ticket.done
    with pytest.raises(ResourceExhaustedError, match="cpu"):
        ticket.reply()
    assert rig.inside("cpu") == set(range(32))


def test_two_namespaces_of_one_block_size_share_extents(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    other = rig.attach(BLOCK, "other")
    rig.worker.put(range(20))
    other.put(range(12))
    assert other.write([100]) == [NEW]
    assert rig.where(0) == set()  # the coldest, whosoever it is
    assert rig.worker.read([1]) == [HIT]
    assert other.read([0]) == [HIT]


# ---------------------------------------------------------------------------------------------------- carving fails


def test_when_memory_cannot_be_committed_the_tier_serves_on_and_recovers(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(4))
    rig.worker.hold(range(4))
    with monkeypatch.context() as patch:
        patch.setattr(rig.host.memory.cpu.region, "commit", _no_space)
        ticket = rig.worker.reserve([100, 101])
        assert ticket.wait(PATIENCE_S)
        with pytest.raises(ResourceExhaustedError, match="cpu"):
            ticket.reply()
        assert rig.counter("extents_not_committed") > 0
        assert rig.worker.read(range(4)) == [HIT] * 4
        rig.settle()
    rig.host.tick()
    assert rig.worker.write([100, 101]) == [NEW, NEW]


def test_when_memory_cannot_be_committed_what_is_there_makes_room(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(4))
    monkeypatch.setattr(rig.host.memory.cpu.region, "commit", _no_space)
    assert rig.worker.write([100, 101]) == [NEW, NEW]
    assert rig.inside("cpu") == {2, 3, 100, 101}


def _no_space(offset: int, nbytes: int) -> None:
    raise ResourceExhaustedError("shared memory", f"no {nbytes} bytes at {offset}")
