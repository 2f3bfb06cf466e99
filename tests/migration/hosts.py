"""Hosts for the tests of migration: small real tiers on the host device, blocks whose bytes follow from their number."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hybridkv.migration.acquires import AcquireReply
from hybridkv.migration.lanes import LaneWorker
from hybridkv.migration.reserves import ReserveReply
from hybridkv.migration.tickets import Ticket
from hybridkv.service.config import load_config
from hybridkv.service.facade import Host
from hybridkv.service.replies import Attached
from hybridkv.tiers import points
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import Outcome, Priority, Reason, ReserveOutcome, SealOutcome, Tier
from tests.migration.gates import PATIENCE_S, Gate

BLOCK = 16384

HIT, PENDING, MISS = int(Outcome.HIT), int(Outcome.PENDING), int(Outcome.MISS)
NEW, PRESENT, BEING_WRITTEN, NO_ROOM = (int(outcome) for outcome in ReserveOutcome)
SEALED, ALREADY_SEALED, EXPIRED = (int(outcome) for outcome in SealOutcome)

_QUIET = {
    "gpu.high_watermark": 1.0,
    "gpu.low_watermark": 1.0,
    "gpu.idle_timeout_s": 0,
    "cpu.high_watermark": 1.0,
    "cpu.low_watermark": 1.0,
    "cpu.idle_timeout_s": 0,
    "disk.high_watermark": 1.0,
    "disk.low_watermark": 1.0,
    "migration.promote_at_accesses": 0,
    "migration.chain_prefetch_max_blocks": 0,
    "migration.cooldown_s": 0,
    "migration.host_pressure_high": 1.0,
    "migration.background_bytes_per_s": 0,
    "migration.lane_slots_count": 2,
}
"""No rule moves anything by itself: a test switches on what it tests."""


def key(number: int, width: int = 16) -> bytes:
    return number.to_bytes(8, "little") * (width // 8)


def keys(numbers: Iterable[int]) -> Keys:
    return Keys.of([key(number) for number in numbers])


def content(number: int, nbytes: int = BLOCK) -> NDArray[np.uint8]:
    """Bytes of block `number`: distinct blocks differ everywhere."""
    return np.resize(np.frombuffer(np.uint64(number * 2654435761 + 97).tobytes() + b"kv", np.uint8), nbytes)


def checksums(numbers: Sequence[int], nbytes: int = BLOCK) -> NDArray[np.uint64]:
    return np.array([xxhash.xxh3_64_intdigest(content(number, nbytes).data) for number in numbers], np.uint64)


class Worker:
    """One attached session and what it does. Reading verifies every byte."""

    def __init__(self, rig: "Rig", attached: Attached) -> None:
        self.rig = rig
        self.host = rig.host
        self.attached = attached
        self.session = attached.session
        self.block = attached.block_bytes

    def reserve(self, numbers: Iterable[int], **how: Any) -> Ticket[ReserveReply]:
        return self.host.reserve(self.session, keys(numbers), **how)

    def reserved(self, numbers: Iterable[int], **how: Any) -> ReserveReply:
        """Reserve and wait until nothing more can come."""
        ticket = self.reserve(numbers, **how)
        assert ticket.wait(PATIENCE_S), "the reservation stays waiting"
        return ticket.reply()

    def fill(self, number: int, slot: np.void) -> None:
        at = int(slot["offset"])
        self.host.pool_array(int(slot["pool"]), writable=True)[at : at + self.block] = content(number, self.block)

    def write(self, numbers: Iterable[int], *, seal: bool = True, sums: bool = True, **how: Any) -> list[int]:
        """Reserve, fill and seal: ReserveOutcome of each."""
        numbers = list(numbers)
        reply = self.reserved(numbers, **how)
        new = np.flatnonzero(reply.outcomes == NEW)
        for at in new.tolist():
            self.fill(numbers[at], reply.slots[at])
        if seal and len(new):
            claimed = checksums([numbers[at] for at in new.tolist()], self.block) if sums else None
            outcomes = self.host.seal(self.session, reply.reservation, new, claimed)
            assert (outcomes == SEALED).all()
        return [int(outcome) for outcome in reply.outcomes]

    def put(self, numbers: Iterable[int], tier: Tier = Tier.CPU, **how: Any) -> None:
        """Write blocks that are no chain, one call each, so that any may go first; all find room."""
        for number in numbers:
            assert self.write([number], tier=tier, **how) == [NEW]

    def acquire(self, numbers: Iterable[int], *, independent: bool = True, **how: Any) -> Ticket[AcquireReply]:
        return self.host.acquire(self.session, keys(numbers), independent=independent, **how)

    def again(self, lease: int) -> AcquireReply:
        return self.host.acquire(self.session, Keys(b"", 16), lease=lease).reply()

    def release(self, lease: int) -> None:
        self.host.release(self.session, lease)

    def verify(self, numbers: Sequence[int], reply: AcquireReply) -> None:
        """Every HIT has the bytes of its number."""
        for at in np.flatnonzero(reply.states == HIT).tolist():
            slot = reply.slots[at]
            start = int(slot["offset"])
            found = self.host.pool_array(int(slot["pool"]))[start : start + self.block]
            assert np.array_equal(found, content(numbers[at], self.block)), f"block {numbers[at]} has other bytes"

    def hold(self, numbers: Iterable[int], **how: Any) -> AcquireReply:
        """Acquire, wait until nothing is pending, verify; the lease stays."""
        numbers = list(numbers)
        ticket = self.acquire(numbers, **how)
        assert ticket.wait(PATIENCE_S), "the acquire stays pending"
        reply = ticket.reply()
        self.verify(numbers, reply)
        return reply

    def read(self, numbers: Iterable[int], **how: Any) -> list[int]:
        """`hold`, then release: Outcome of each."""
        reply = self.hold(numbers, **how)
        self.release(reply.lease)
        return [int(state) for state in reply.states]

    def touch(self, numbers: Iterable[int]) -> int:
        return self.host.touch(self.session, keys(numbers))


class Rig:
    """A host with a clock of its own and no loop: what happens is what the test does, and what the lanes then carry."""

    def __init__(self, tmp_path: Path, *, gpus: int = 1, gpu_blocks: int = 16, cpu_blocks: int = 32,
                 disk_bytes: int = 0, clock: ManualClock | None = None, warm: bool = False,
                 **overrides: Any) -> None:  # fmt: skip
        """Sizes in blocks of 16 KiB; a pool has 16 extents. `warm`: it takes over what lies in its folder, and leaves its CPU
        tier there. `overrides`: config keys, `section__name`."""
        self.clock = clock or ManualClock()
        flat = {key.replace("__", "."): value for key, value in overrides.items()}
        config: dict[str, object] = {
            **_QUIET,
            "daemon.socket": f"unix://{tmp_path}/kv.sock",
            "cpu.shm_dir": str(tmp_path),
            "cpu.capacity_bytes": cpu_blocks * BLOCK,
            "cpu.min_bytes": 0,
            "gpu.devices": [f"host:{index}" for index in range(gpus)],
            "gpu.capacity_bytes": gpu_blocks * BLOCK,
            **({"disk.path": str(tmp_path / "disk"), "disk.capacity_bytes": disk_bytes} if disk_bytes else {}),
            **flat,
        }
        self.host = Host(load_config(overrides=config, env={}), clock=self.clock, start_loop=False,
                         inherit=warm, bequeath=warm)  # fmt: skip
        self.migrator = self.host.migrator
        self.migrator.carver.return_after_s = 0.0  # nobody reads without a call here
        self.directory = self.host.directory
        self.gates: list[Gate] = []
        self.closed = False
        self.worker = self.attach()

    # ------------------------------------------------------------------------------------------------ workers

    def space(self, block: int = BLOCK, model: str = "m") -> Namespace:
        return Namespace(model=model, layout=BlockLayout.opaque(block, 16, "t"), key_bytes=16)

    def attach(self, block: int = BLOCK, model: str = "m", *, maps: bool = True) -> Worker:
        return Worker(self, self.host.attach(self.space(block, model), pid=os.getpid(), in_process=maps))

    # ------------------------------------------------------------------------------------------------ holding back

    def stream(self, lane: str, device: int = 0) -> HostStream:
        """The stream of a lane like "gpu0-cpu.demand"."""
        streams: Sequence[HostStream] = self.host.memory.devices[device].streams  # type: ignore[attr-defined]
        return next(stream for stream in streams if stream.name.endswith(f"/{lane}"))

    def lane(self, name: str) -> LaneWorker:
        return next(worker for worker in self.migrator.lanes.workers if worker.name == name)

    @contextmanager
    def gate(self, point: str, lane: str) -> Iterator["Gate"]:
        """Hold the lane's thread each time it comes to `point`, until the block ends."""
        gate = Gate(point, f"hybridkv-{lane}")
        self.gates.append(gate)
        try:
            with points.listening(gate):
                yield gate
        finally:
            gate.open()

    # ------------------------------------------------------------------------------------------------ moving

    def pool(self, name: str) -> int:
        return next(book.index for book in self.directory.books if str(book.id) == name)

    def lower(self, pool: str, numbers: Sequence[int], reason: Reason = Reason.RECLAIM) -> tuple[int, int]:
        """Take the first worker's blocks out of the pool, in the background: (freed now, on their way)."""
        self.carve_cpu(len(numbers))
        with self.directory.lock:
            rows = [self.row(number) for number in numbers]
            return self.migrator.reclaim.lower(self.pool(pool), rows, reason, Priority.BACKGROUND)

    def carve_cpu(self, blocks: int) -> None:
        """The CPU pool gets slots for so many blocks more, as far as it has extents: a demotion need not wait."""
        book = self.directory.state.mapped(self.pool("cpu"))
        with self.directory.lock:
            self.migrator.reclaim.carve_for(book, BLOCK, blocks - book.free_slots(BLOCK))
        self.migrator.carver.idle()

    def put_on_disk(self, numbers: Iterable[int]) -> None:
        """Write blocks and bring them down, so that the disk has the only copy."""
        numbers = list(numbers)
        self.worker.put(numbers)
        assert self.host.drain(PATIENCE_S).left == 0
        self.settle()
        assert self.lower("cpu", numbers) == (len(numbers), 0)
        assert all(self.where(number) == {"disk"} for number in numbers)

    def look_after_disk(self) -> None:
        """What the background pass has the disk writer do."""
        self.migrator.disk_watch.look()

    # ------------------------------------------------------------------------------------------------ looking

    def settle(self) -> None:
        """Nothing is on its way any more, and no law is broken."""
        assert self.migrator.quiesce(PATIENCE_S), "transfers stay in flight"
        assert self.host.check() == []

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for what another thread is about to do."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.002)):
            if true():
                return
            pause.wait(0.002)
        raise AssertionError("it did not happen")

    def row(self, number: int, worker: Worker | None = None) -> int:
        session = self.directory.state.ledger.sessions[(worker or self.worker).session]
        space = self.directory.state.spaces[session.namespace]
        return int(self.directory.sealed(space.index, [key(number)])[0])

    def where(self, number: int, worker: Worker | None = None) -> set[str]:
        """Pools with a copy of the block."""
        with self.directory.lock:
            row = self.row(number, worker)
            if row == NO_ROW:
                return set()
            return {str(book.id) for book in self.directory.books if self.directory.blocks.slot[book.index][row] >= 0}

    def inside(self, pool: str) -> set[int]:
        """Numbers of the first worker's blocks that lie in the pool."""
        with self.directory.lock:
            book = next(book for book in self.directory.books if str(book.id) == pool)
            here = np.flatnonzero(self.directory.blocks.slot[book.index] >= 0)
            return {int.from_bytes(self.directory.blocks.keys[row][:8], "little") for row in here.tolist()}

    def moves(self, **label: str) -> Counter[str]:
        """Moves by outcome whose label fits: `source`, `target`, `reason`."""
        found: Counter[str] = Counter()
        for entry in self.migrator.moves.rows():
            told = {"source": entry["from"], "target": entry["to"], "reason": entry["reason"]}
            if all(told[name] == value for name, value in label.items()):
                found[entry["outcome"]] += entry["count"]
        return found

    def counter(self, name: str) -> int:
        return self.directory.state.counters[name]

    def used(self, pool: str) -> int:
        """Bytes in use."""
        return next(book.used_bytes for book in self.directory.books if str(book.id) == pool)

    # ------------------------------------------------------------------------------------------------ end

    def free_everything(self) -> None:
        """Let go whatever a failed test still holds back."""
        for gate in self.gates:
            gate.open()
        for device in self.host.memory.devices:
            for stream in device.streams:  # type: ignore[attr-defined]
                stream.release_held()

    def close(self) -> None:
        self.free_everything()
        self.closed = True
        self.host.close()
