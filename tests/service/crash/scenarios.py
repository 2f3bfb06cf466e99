"""What brings a daemon to its points: for each scenario the points it passes, and what its clients do until the daemon dies."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hybridkv.service.client import KV
from hybridkv.service.client.sequence import Sequence
from hybridkv.tiers.keys import Keys
from tests.service.crash.stage import CALL_S, GARBAGE, Stage, emptied

Play = Callable[[Stage], None]
BLOCKS = 6
_PAUSE_S = 0.005


def write(stage: Stage) -> None:
    stage.store(stage.connect(), BLOCKS)


def abort(stage: Stage) -> None:
    kv = stage.connect()
    keys = stage.keys(kv, BLOCKS)
    stage.never.update(keys)
    with kv.reserve(keys, tier="cpu") as slots:
        slots.array(0)[:] = GARBAGE


def lapse_of_a_write(stage: Stage) -> None:
    """Its stream breaks, the process lives on: the grace ends, and the slots are put in quarantine."""
    kv = stage.connect()
    keys = stage.keys(kv, BLOCKS)
    stage.never.update(keys)
    kv.reserve(keys, tier="cpu")
    kv._attachment().transport.close(detach=False)
    _until_dead(stage)


def lease(stage: Stage) -> None:
    kv = stage.connect()
    with kv.request() as request:
        request.acquire(stage.store(kv, BLOCKS), tier="cpu").release()


def lapse_of_a_lease(stage: Stage) -> None:
    kv = stage.connect()
    kv.acquire(stage.store(kv, BLOCKS), tier="cpu")
    kv._attachment().transport.close(detach=False)
    _until_dead(stage)


def demote_from_gpu(stage: Stage) -> None:
    stage.store(stage.connect(), BLOCKS, "gpu")
    stage.config(emptied("gpu"))
    _until_dead(stage)


def demote_to_disk(stage: Stage) -> None:
    """Twice: what was told to be on disk stays there while the daemon dies over the next."""
    kv = stage.connect()
    for _ in range(2):
        stage.sink(kv, stage.store(kv, BLOCKS))


def demote_more_to_disk(stage: Stage) -> None:
    """Into a segment that is there, behind blocks that were told to be on disk."""
    kv = stage.connect()
    while True:
        stage.sink(kv, stage.store(kv, BLOCKS))


def promote_from_disk(stage: Stage) -> None:
    kv = stage.connect()
    keys = stage.store(kv, BLOCKS)
    stage.sink(kv, keys)
    kv.acquire(keys, tier="cpu", timeout_s=CALL_S).release()


def promote_to_gpu(stage: Stage) -> None:
    kv = stage.connect()
    kv.acquire(stage.store(kv, BLOCKS), tier="gpu", timeout_s=CALL_S).release()


def promote_from_disk_to_gpu(stage: Stage) -> None:
    kv = stage.connect()
    keys = stage.store(kv, BLOCKS)
    stage.sink(kv, keys)
    kv.acquire(keys, tier="gpu", timeout_s=CALL_S).release()


def copy_down(stage: Stage) -> None:
    kv = stage.connect()
    kv.acquire(stage.store(kv, BLOCKS, "gpu"), tier="cpu", timeout_s=CALL_S).release()


def drain(stage: Stage) -> None:
    stage.store(stage.connect(), BLOCKS)
    stage.admin.drain(CALL_S)


def empty_cpu_extents(stage: Stage) -> None:
    """The tier is made smaller while its extents are sparse: what stays relocates."""
    _sparse(stage, "cpu", 104)
    stage.config({"cpu.capacity_bytes": 1 << 20})
    _until_dead(stage)


def empty_gpu_extents(stage: Stage) -> None:
    _sparse(stage, "gpu", 56)
    stage.config({"gpu.capacity_bytes": 1 << 19})
    _until_dead(stage)


def remove(stage: Stage) -> None:
    kv = stage.connect()
    keys = stage.store(kv, BLOCKS)
    stage.sink(kv, keys)
    stage.durable.clear()
    kv.remove(keys[BLOCKS // 2 :])
    stage.config(emptied("disk"))
    _until_dead(stage)


def clear(stage: Stage) -> None:
    kv = stage.connect()
    stage.sink(kv, stage.store(kv, BLOCKS))
    stage.durable.clear()
    stage.admin.clear()
    _until_dead(stage)


def evict_from_disk(stage: Stage) -> None:
    kv = stage.connect()
    stage.sink(kv, stage.store(kv, BLOCKS))
    stage.durable.clear()
    stage.config(emptied("disk"))
    _until_dead(stage)


def fork_and_write(stage: Stage) -> None:
    """Copy on write, in the CPU tier and on the device."""
    kv = stage.connect()
    for tier in ("cpu", "gpu"):
        with _written(stage, kv, tier) as sequence:
            (twin,) = sequence.fork()
            twin.write_blocks([0], stage.blocks(sequence.keys[:1]))


def publish(stage: Stage) -> None:
    kv = stage.connect()
    with _written(stage, kv, "cpu") as sequence:
        stage.sealed.update(sequence.keys)
        sequence.publish()


def suspend_and_resume(stage: Stage) -> None:
    kv = stage.connect()
    with _written(stage, kv, "gpu") as sequence:
        stage.sealed.update(sequence.keys)
        sequence.publish()
        sequence.suspend(timeout_s=CALL_S)
        sequence.resume(timeout_s=CALL_S)


def stop(stage: Stage) -> None:
    stage.store(stage.connect(), BLOCKS)
    stage.daemon.terminate()
    stage.daemon.has_ended(CALL_S)


def leave_much_behind(stage: Stage) -> None:
    """For the next start to find: blocks on disk and in memory, a lease, and slots that are written to. No point kills here."""
    kv = stage.connect()
    stage.sink(kv, stage.store(kv, BLOCKS))
    kv.acquire(stage.store(kv, BLOCKS), tier="cpu")
    keys = stage.keys(kv, BLOCKS)
    stage.never.update(keys)
    kv.reserve(keys, tier="cpu").array(0)[:] = GARBAGE
    stage.daemon.kill()


def spoil_a_manifest(disk: Path) -> None:
    """The next start moves this segment aside."""
    path = next(disk.glob("seg-*")) / "manifest.json"
    path.write_text(json.dumps({"magic": "other"}))


_MOVED = ("move.decided", "move.before_copy", "move.copied", "move.committed")


def _steps(way: str, last: str) -> tuple[str, ...]:
    return tuple(f"{step}.{way}" for step in (*_MOVED, last))


SCENARIOS: dict[Play, tuple[str, ...]] = {
    write: (
        *("extent.before_carve", "extent.carved", "reserve.granted"),
        *("seal.before_publish", "headers.fields_written", "headers.published", "seal.published"),
    ),
    abort: ("reserve.aborted",),
    lapse_of_a_write: ("reserve.lapsed",),
    lease: ("lease.granted", "lease.released", "request.ended"),
    lapse_of_a_lease: ("lease.lapsed",),
    demote_from_gpu: (*_steps("gpu_to_cpu", "move.source_freed"), "headers.retired", "evict.freed"),
    demote_to_disk: (*_steps("cpu_to_disk", "move.source_freed"), "disk.segment.named", "disk.segment.created"),
    demote_more_to_disk: ("disk.put.before_commit:3", "disk.put.committed:3", "move.copied.cpu_to_disk:3"),
    promote_from_disk: (*_steps("disk_to_cpu", "move.source_kept"), "disk.read.before_pread"),
    promote_to_gpu: _steps("cpu_to_gpu", "move.source_kept"),
    promote_from_disk_to_gpu: (
        "move.decided.disk_to_gpu",
        "move.committed.disk_to_gpu",
        "move.source_kept.disk_to_gpu",
    ),
    copy_down: ("move.source_kept.gpu_to_cpu",),
    drain: ("move.source_kept.cpu_to_disk",),
    empty_cpu_extents: (
        *(
            "move.decided.cpu_to_cpu",
            "move.before_copy.cpu_to_cpu",
            "move.copied.cpu_to_cpu",
            "move.relocated.cpu_to_cpu",
        ),
        *("extent.emptied", "extent.returned"),
    ),
    empty_gpu_extents: (
        *(
            "move.decided.gpu_to_gpu",
            "move.before_copy.gpu_to_gpu",
            "move.copied.gpu_to_gpu",
            "move.relocated.gpu_to_gpu",
        ),
    ),
    remove: ("remove.unfindable", "disk.delete.before_commit", "disk.delete.committed"),
    clear: ("disk.segment.before_unlink", "disk.segment.unlinking"),
    evict_from_disk: ("disk.segment.unlinked",),
    fork_and_write: ("page.before_copy", "page.copied", "page.copied_on_device", "page.mapped", "sequence.forked"),
    publish: ("sequence.published",),
    suspend_and_resume: ("sequence.suspending", "sequence.suspended", "sequence.resumed"),
    stop: ("disk.close.before_marker", "disk.close.marker_written"),
}
"""Points by what brings a daemon there. "name:n": at the n-th passing."""

AT_START = (
    "disk.start.marker_taken",
    "disk.start.verified",
    "disk.start.listed",
    "start.restored",
    "takeover.claimed",
    "takeover.adopted",
    "takeover.frozen",
    "disk.aside.before_move",
)
"""Points of a start, which needs blocks on disk and in the memory of a daemon before; of the last one, on a disk of which a
segment is spoiled."""


def _sparse(stage: Stage, tier: str, count: int) -> Keys:
    """Extents of which every second slot is free; the blocks that are left."""
    kv = stage.connect()
    keys = stage.store(kv, count, tier)
    kv.remove(keys.at(np.arange(1, count, 2)))
    return keys.at(np.arange(0, count, 2))


def _written(stage: Stage, kv: KV, tier: str) -> Sequence:
    sequence = kv.open_sequence(stage.tokens(BLOCKS), tier=tier)
    sequence.write_blocks(list(range(BLOCKS)), stage.blocks(sequence.keys), timeout_s=CALL_S)
    return sequence


def _until_dead(stage: Stage) -> None:
    """What was begun goes on in the daemon; it is asked now and then, so that its loop is stirred."""
    until = time.monotonic() + CALL_S
    while not stage.daemon.has_ended(_PAUSE_S):
        assert time.monotonic() < until, "the point was never passed"
