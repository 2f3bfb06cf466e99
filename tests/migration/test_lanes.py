"""Lanes: batches, bounds, and what a failure inside one leaves behind."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hybridkv.migration.inflight import InFlight
from hybridkv.migration.lanes import LaneWorker
from hybridkv.tiers import points
from hybridkv.tiers.device.base import Direction, Offsets
from hybridkv.tiers.device.completion import Completion
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.disk import DiskBlock
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S, failing_at
from tests.migration.hosts import BLOCK, HIT, PENDING, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


# ---------------------------------------------------------------------------------------------------- failures


def test_an_unexpected_error_in_a_mover_fails_the_batch_and_the_lane_lives_on(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1, 2], Tier.GPU)
    rig.stream("gpu0-cpu.demand").fail_next(RuntimeError("a bug in a mover"))
    assert rig.worker.read([1, 2], tier=Tier.CPU) == [HIT, HIT]
    lane = rig.lane("gpu0-cpu.demand")
    assert lane.pulse.errors == 1
    assert lane.thread.is_alive()
    assert rig.moves(source="gpu0", target="cpu") == {"failed": 2, "done": 2}


@pytest.mark.parametrize("point", ["move.before_copy", "move.copied", "move.committed", "move.source_freed"])
def test_an_error_at_any_step_of_a_move_leaves_the_accounts_exact(make_host: MakeHost, point: str) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    with points.listening(failing_at(point, RuntimeError(point), thread="hybridkv-gpu0-cpu")):
        rig.lower("gpu0", [1])
        rig.until(lambda: rig.lane("gpu0-cpu.background").pulse.errors == 1)
    rig.settle()
    assert rig.where(1)
    assert rig.worker.read([1]) == [HIT]
    rig.worker.put([2], Tier.GPU)
    rig.lower("gpu0", [2])
    rig.settle()
    assert rig.where(2) == {"cpu"}


def test_a_failed_transfer_leaves_its_source_and_frees_its_destination(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    rig.stream("gpu0-cpu.background").fail_next(RuntimeError("no"))
    rig.lower("gpu0", [1])
    rig.until(lambda: rig.moves(source="gpu0", target="cpu") == {"failed": 1})
    rig.settle()
    assert rig.where(1) == {"gpu0"}
    assert rig.used("cpu") == 0
    assert rig.lane("gpu0-cpu.background").bytes_in_flight == 0
    assert rig.migrator.inflight.nbytes == 0


# ---------------------------------------------------------------------------------------------------- batches


def test_transfers_queued_together_travel_in_one_batch(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(migration__batch_bytes=4 * BLOCK)
    rig.worker.put(range(9), Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    sizes: list[int] = []
    copy = stream.copy

    def counted(direction: Direction, pool: DevicePool, offsets: Offsets, *rest: Any) -> Completion:
        sizes.append(len(offsets))
        return copy(direction, pool, offsets, *rest)

    monkeypatch.setattr(stream, "copy", counted)
    stream.hold()
    ticket = rig.worker.acquire(range(9), tier=Tier.CPU)
    assert stream.wait_held()
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    assert max(sizes) <= 4
    assert len(sizes) <= 4  # the first may have left before all were queued
    assert sum(sizes) == 9


@pytest.mark.parametrize(("blocks", "in_hand"), [(64, 2), (32, 1)])
def test_the_next_batch_begins_before_a_large_one_has_landed(make_host: MakeHost, blocks: int, in_hand: int) -> None:
    rig = make_host(gpu_blocks=256, cpu_blocks=256, migration__batch_bytes=blocks * BLOCK)
    rig.worker.put(range(3 * blocks), Tier.GPU)
    stream, lane = rig.stream("gpu0-cpu.background"), rig.lane("gpu0-cpu.background")
    stream.hold()
    rig.lower("gpu0", range(3 * blocks))
    assert stream.wait_held()
    rig.until(lambda: lane.bytes_in_flight >= in_hand * blocks * BLOCK)
    assert lane.bytes_in_flight == in_hand * blocks * BLOCK  # the rest is queued, where it can be withdrawn
    assert lane.queued == (3 - in_hand) * blocks
    stream.release_held()
    rig.settle()
    assert rig.moves(source="gpu0", target="cpu") == {"done": 3 * blocks}
    assert rig.migrator.inflight.nbytes == 0


def test_an_error_in_one_of_two_batches_in_hand_fails_that_one_alone(make_host: MakeHost) -> None:
    rig = make_host(gpu_blocks=256, cpu_blocks=256, migration__batch_bytes=64 * BLOCK)
    rig.worker.put(range(128), Tier.GPU)
    stream, lane = rig.stream("gpu0-cpu.background"), rig.lane("gpu0-cpu.background")
    stream.hold()
    stream.fail_next(RuntimeError("no"))
    rig.lower("gpu0", range(128))
    assert stream.wait_held()
    rig.until(lambda: lane.bytes_in_flight == 128 * BLOCK)
    stream.release_held()
    rig.settle()
    assert rig.moves(source="gpu0", target="cpu") == {"failed": 64, "done": 64}
    assert lane.thread.is_alive()
    assert lane.bytes_in_flight == rig.migrator.inflight.nbytes == 0


def test_a_batch_holds_blocks_of_one_size(make_host: MakeHost) -> None:
    rig = make_host()
    half = rig.attach(BLOCK // 2, "half")
    rig.worker.put([1, 2, 3], Tier.GPU)
    half.put([1, 2, 3], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    first = rig.worker.acquire([1], tier=Tier.CPU)
    assert stream.wait_held()
    rest = [half.acquire([1, 2], tier=Tier.CPU), rig.worker.acquire([2, 3], tier=Tier.CPU)]
    stream.release_held()
    assert all(ticket.wait(PATIENCE_S) for ticket in (first, *rest))
    half.verify([1, 2], rest[0].reply())
    rig.worker.verify([2, 3], rest[1].reply())


def test_blocks_of_two_namespaces_in_one_batch_keep_their_headers_apart(make_host: MakeHost) -> None:
    rig = make_host()
    other = rig.attach(BLOCK, "other")
    rig.worker.put([1], Tier.GPU)
    other.put([1], Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    plug = rig.worker.acquire([1], tier=Tier.CPU)
    assert stream.wait_held()
    ticket = other.acquire([1], tier=Tier.CPU)
    stream.release_held()
    assert plug.wait(PATIENCE_S)
    assert ticket.wait(PATIENCE_S)
    cpu = rig.directory.state.mapped(rig.pool("cpu"))
    assert cpu.headers is not None
    for worker, reply in ((rig.worker, plug.reply()), (other, ticket.reply())):
        header = cpu.headers.headers[int(reply.slots[0]["header"])]
        assert header["fingerprint"].tobytes() == worker.attached.fingerprint


# ---------------------------------------------------------------------------------------------------- lane slots


def test_lanes_wait_for_a_lane_slot_and_give_it_back(make_host: MakeHost) -> None:
    rig = make_host(gpus=2, migration__lane_slots_count=1)
    rig.worker.put(range(5), Tier.GPU, device=0)
    assert rig.worker.read(range(5), tier=Tier.GPU, device=1) == [HIT] * 5
    cpu = rig.directory.state.mapped(rig.pool("cpu"))
    assert len(cpu.lane_slots[BLOCK]) == cpu.lane_slots_owned[BLOCK] == 1


def test_a_failed_second_leg_gives_its_lane_slot_back(make_host: MakeHost) -> None:
    rig = make_host(gpus=2, migration__lane_slots_count=1)
    rig.worker.put([1], Tier.GPU, device=0)
    rig.stream("cpu-gpu1.demand", device=1).fail_next(RuntimeError("no"))
    assert rig.worker.read([1], tier=Tier.GPU, device=1) == [HIT]
    assert rig.moves(source="gpu0", target="gpu1") == {"failed": 1, "done": 1}
    cpu = rig.directory.state.mapped(rig.pool("cpu"))
    assert len(cpu.lane_slots[BLOCK]) == 1


# ---------------------------------------------------------------------------------------------------- bytes in flight


def test_background_batches_wait_while_too_many_bytes_are_in_flight(make_host: MakeHost) -> None:
    rig = make_host(migration__inflight_bytes=2 * BLOCK, migration__batch_bytes=2 * BLOCK)
    rig.worker.put(range(8), Tier.GPU)
    rig.carve_cpu(8)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    demand = rig.worker.acquire([0, 1], tier=Tier.CPU)
    assert stream.wait_held()
    assert rig.migrator.inflight.nbytes == 2 * BLOCK
    rig.lower("gpu0", [6, 7])
    background = rig.lane("gpu0-cpu.background")
    rig.until(lambda: background.idle)
    assert background.queued == 2
    assert background.bytes_in_flight == 0
    more = rig.worker.acquire([10], tier=Tier.GPU)  # a miss: nothing waits
    assert more.done
    stream.release_held()
    assert demand.wait(PATIENCE_S)
    rig.settle()
    assert rig.where(6) == rig.where(7) == {"cpu"}
    assert rig.migrator.inflight.nbytes == 0


def test_the_bound_on_bytes_in_flight_never_delays_demand(make_host: MakeHost) -> None:
    rig = make_host(migration__inflight_bytes=BLOCK, migration__batch_bytes=BLOCK)
    rig.worker.put(range(4), Tier.GPU)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    rig.lower("gpu0", [0])
    assert stream.wait_held()
    assert rig.worker.read([1, 2], tier=Tier.CPU) == [HIT, HIT]
    stream.release_held()
    rig.settle()


def test_a_block_over_the_bound_moves_when_nothing_else_does() -> None:
    woken: list[str] = []
    bound = InFlight(100)
    assert bound.fits(500, lambda: woken.append("first"))
    bound.add(500)
    assert not bound.fits(1, lambda: woken.append("second"))
    bound.remove(500)
    assert woken == ["second"]
    assert bound.nbytes == 0
    bound.add(60)
    assert bound.fits(40, lambda: None)
    assert not bound.fits(41, lambda: None)
    assert InFlight(None).fits(1 << 60, lambda: None)


def test_a_cap_that_is_taken_off_meanwhile_is_no_error(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look whether there is one and the question to it, somebody changed the config."""
    rig = make_host(migration__background_bytes_per_s=1)
    lane = rig.lane("gpu0-cpu.background")
    answers = [lane.pacing]
    monkeypatch.setattr(LaneWorker, "pacing", property(lambda _: answers.pop() if answers else None))
    monkeypatch.setattr(LaneWorker, "queued", property(lambda _: 1))
    lane._pace()
    assert not answers


def test_a_background_cap_in_bytes_per_second_delays_no_demand(make_host: MakeHost) -> None:
    rig = make_host(migration__background_bytes_per_s=1, migration__batch_bytes=BLOCK)
    rig.worker.put(range(4), Tier.GPU)
    lane = rig.lane("gpu0-cpu.background")
    assert lane.pacing is not None
    lane.pacing.take(64 << 20, rig.clock.now())  # in debt for ever
    rig.lower("gpu0", [0, 1])
    rig.until(lambda: lane.queued == 2)
    assert rig.worker.read([1], tier=Tier.CPU) == [HIT]  # it was queued, and went another way
    assert rig.worker.read([2], tier=Tier.CPU) == [HIT]
    assert rig.where(0) == {"gpu0"}
    assert rig.worker.read([0], tier=Tier.CPU) == [HIT]
    rig.settle()


# ---------------------------------------------------------------------------------------------------- the disk writer


def test_the_disk_writer_deletes_before_it_writes(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    store = rig.host.memory.store
    assert store is not None
    rig.put_on_disk([1])
    done: list[str] = []
    put, delete = store.put, store.delete

    def noted_put(blocks: Sequence[DiskBlock]) -> list[int]:
        done.append("put")
        return put(blocks)

    def noted_delete(items: Sequence[tuple[bytes, bytes, int]], **how: bool) -> None:
        done.append("delete")
        delete(items, **how)

    monkeypatch.setattr(store, "put", noted_put)
    monkeypatch.setattr(store, "delete", noted_delete)
    rig.worker.put([2])
    with rig.gate("move.before_copy", "cpu-disk") as gate:
        rig.lower("cpu", [2])
        gate.wait_held()
        rig.host.remove(rig.worker.session, keys([1]))
        assert done == []
    rig.settle()
    assert "delete" in done[: done.index("put")]
    assert store.usage().live_blocks == 1


def test_a_block_removed_while_it_is_written_does_not_come_back(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1, 2])
    with rig.gate("disk.put.committed", "cpu-disk") as gate:
        rig.lower("cpu", [1, 2])
        gate.wait_held()
        assert rig.host.remove(rig.worker.session, keys([1])) == 1
    rig.settle()
    rig.close()
    again = make_host(gpus=0, disk_bytes=DISK, clock=rig.clock)
    assert again.where(1) == set()
    assert again.worker.read([2], tier=Tier.CPU) == [HIT]


def test_a_block_removed_and_written_again_while_it_is_written_is_the_new_one(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1])
    with rig.gate("disk.put.committed", "cpu-disk") as gate:
        rig.lower("cpu", [1])
        gate.wait_held()
        rig.host.remove(rig.worker.session, keys([1]))
        rig.worker.put([1])
    rig.settle()
    assert rig.where(1) == {"cpu"}
    assert rig.host.drain(PATIENCE_S).left == 0
    rig.settle()
    assert rig.lower("cpu", [1]) == (1, 0)
    assert rig.worker.read([1], tier=Tier.CPU) == [HIT]


def test_what_was_removed_last_is_deleted_before_the_daemon_ends(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1, 2])
    with rig.gate("move.before_copy", "cpu-disk"):
        rig.worker.put([3])
        rig.lower("cpu", [3])
        rig.host.remove(rig.worker.session, keys([1]))
    rig.close()
    again = make_host(gpus=0, disk_bytes=DISK, clock=rig.clock)
    assert again.where(1) == set()
    assert again.where(2) == {"disk"}


def test_pending_is_an_answer_while_the_source_of_a_copy_is_read(make_host: MakeHost) -> None:
    rig = make_host(gpus=2)
    rig.worker.put([1], Tier.GPU, device=0)
    stream = rig.stream("cpu-gpu1.demand", device=1)
    stream.hold()
    ticket = rig.worker.acquire([1], tier=Tier.GPU, device=1)
    assert stream.wait_held()
    assert ticket.reply().states.tolist() == [PENDING]
    assert rig.worker.read([1], tier=Tier.GPU, device=0) == [HIT]
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
