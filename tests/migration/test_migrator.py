"""The migrator as a whole: passes, drain, close, and figures."""

import errno
import threading
from collections.abc import Callable

import pytest

from hybridkv.tiers import points
from hybridkv.tiers.clock import SystemClock
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S, failing_at
from tests.migration.hosts import HIT, MISS, NEW, PRESENT, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20
EIO = OSError(errno.EIO, "injected")


# ---------------------------------------------------------------------------------------------------- drain


def test_drain_writes_everything_volatile(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.worker.put(range(4), Tier.GPU)
    rig.worker.put(range(10, 14))
    report = rig.host.drain(PATIENCE_S)
    assert (report.written, report.left) == (8, 0)
    assert rig.inside("disk") == {*range(4), *range(10, 14)}
    assert rig.where(0) == {"gpu0", "disk"}  # the volatile copies stay
    again = rig.host.drain(PATIENCE_S)
    assert (again.written, again.left) == (0, 0)


def test_drain_writes_leased_and_protected_blocks_too(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.worker.put([1], Tier.GPU)
    rig.worker.put([2])
    rig.worker.hold([1], tier=Tier.GPU)
    rig.worker.read([2], request=5)
    assert rig.host.drain(PATIENCE_S).left == 0
    assert rig.inside("disk") == {1, 2}


def test_drain_with_the_disk_off_reports_what_is_left(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.put([2, 3])
    disk = rig.directory.state.disk
    assert disk is not None
    disk.on = False
    report = rig.host.drain(PATIENCE_S)
    assert (report.written, report.left) == (0, 2)
    disk.on = True


def test_drain_without_a_disk_reports_every_block(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put([2, 3])
    reservation = rig.worker.reserved([4]).reservation
    report = rig.host.drain(PATIENCE_S)
    assert (report.written, report.left) == (0, 2)
    rig.host.abort(rig.worker.session, reservation, None)


def test_drain_on_a_failing_disk_ends(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1, 2, 3])
    with points.listening(failing_at("disk.put.before_commit", EIO, times=1000)):
        report = rig.host.drain(PATIENCE_S)
    assert (report.written, report.left) == (0, 3)
    assert rig.worker.read([1, 2, 3]) == [HIT] * 3


def test_drain_of_more_than_the_disk_holds_writes_the_most_recent(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=96, disk_bytes=1 << 20)
    for chain in range(0, 96, 8):
        rig.clock.advance(1)
        assert rig.worker.write(range(chain, chain + 8)) == [NEW] * 8
    report = rig.host.drain(PATIENCE_S)
    assert report.written + report.left == 96
    assert report.written > 0
    assert rig.inside("disk") <= set(range(96 - rig.directory.books[-1].capacity_slots(16384) - 8, 96))
    rig.settle()


def test_drain_keeps_to_its_deadline(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1])
    clock = SystemClock()
    rig.directory.state.clock = clock
    with rig.gate("disk.put.before_commit", "cpu-disk"):
        report = rig.host.drain(0.05)
        assert (report.written, report.left) == (0, 1)
    rig.settle()


def test_drain_does_not_wait_for_blocks_that_move_elsewhere_for_ever(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.worker.put([1, 2], Tier.GPU)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    rig.lower("gpu0", [1])
    assert stream.wait_held()
    reports: list[int] = []
    draining = threading.Thread(target=lambda: reports.append(rig.host.drain(PATIENCE_S).left))
    draining.start()
    rig.until(lambda: rig.where(2) == {"gpu0", "disk"})
    stream.release_held()
    draining.join(PATIENCE_S)
    assert reports == [0]
    assert rig.inside("disk") == {1, 2}


# ---------------------------------------------------------------------------------------------------- removal


def test_clear_goes_through_every_tier_and_moves_in_flight(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.put([2, 4])
    rig.worker.put([3], Tier.GPU)
    other = rig.attach(16384, "other")
    other.put([1])
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    rig.lower("gpu0", [3])
    assert stream.wait_held()
    assert rig.host.clear(rig.worker.attached.fingerprint) == 4
    assert rig.worker.read([1, 2, 3, 4]) == [MISS] * 4
    stream.release_held()
    rig.settle()
    assert other.read([1]) == [HIT]
    store = rig.host.memory.store
    assert store is not None
    rig.until(lambda: store.usage().live_blocks == 0)
    assert rig.host.clear() == 1
    assert rig.used("cpu") == rig.used("gpu0") == 0


def test_a_block_removed_under_a_lease_stays_readable_to_its_holder(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put([1])
    reply = rig.worker.hold([1])
    assert rig.host.remove(rig.worker.session, keys([1])) == 1
    rig.worker.verify([1], rig.worker.again(reply.lease))
    assert rig.worker.read([1]) == [MISS]
    assert rig.worker.write([1]) == [NEW]
    assert rig.worker.write([1]) == [PRESENT]
    rig.worker.verify([1], rig.worker.again(reply.lease))
    rig.worker.release(reply.lease)


# ---------------------------------------------------------------------------------------------------- loop, close, figures


def test_a_pass_that_fails_is_followed_by_the_next(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_host(gpus=0, migration__interval_s=0.01)
    passes: list[int] = []

    def fail_twice() -> None:
        passes.append(1)
        if len(passes) <= 2:
            raise RuntimeError("injected")

    monkeypatch.setattr(rig.migrator, "on_tick", fail_twice)
    rig.migrator.start_loop()
    rig.until(lambda: len(passes) > 3)
    assert rig.migrator.loop_errors == 2


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_an_error_in_the_carver_does_not_end_it(make_host: MakeHost, kind: type[BaseException]) -> None:
    rig = make_host(gpus=0)
    rig.worker.put([1, 2])
    with points.listening(failing_at("extent.before_carve", kind("injected"))):
        assert rig.worker.write([3, 4]) == [NEW, NEW]  # the next extent did it
    assert rig.migrator.loop_errors == 1
    assert rig.counter("extents_not_committed") == 1
    rig.settle()
    rig.host.tick()
    rig.worker.put(range(10, 38))
    assert len(rig.inside("cpu")) == 32  # the failed extent is in use again


def test_close_gives_up_what_has_not_begun(make_host: MakeHost) -> None:
    rig = make_host(migration__batch_bytes=16384)
    rig.worker.put(range(4), Tier.GPU)
    stream = rig.stream("gpu0-cpu.background")
    stream.hold()
    rig.lower("gpu0", range(4))
    assert stream.wait_held()
    threading.Thread(target=stream.release_held, args=(1,)).start()
    rig.close()
    assert all(not worker.thread.is_alive() for worker in rig.migrator.lanes.workers)


def test_figures_name_every_lane(make_host: MakeHost) -> None:
    rig = make_host(gpus=2, disk_bytes=DISK)
    rows = rig.migrator.lanes.rows()
    assert {"gpu0-cpu.demand", "cpu-gpu1.background", "cpu-cpu.demand", "cpu-disk", "disk-cpu.demand"} <= set(rows)
    assert all(row["alive"] and row["queued"] == row["bytes_in_flight"] == row["errors"] == 0 for row in rows.values())


def test_moves_are_counted_by_direction_reason_and_outcome(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put([1], Tier.GPU)
    rig.worker.read([1], tier=Tier.CPU)
    assert rig.migrator.moves.rows() == [
        {"from": "gpu0", "to": "cpu", "reason": "demand", "outcome": "done", "count": 1, "bytes": 16384}
    ]
