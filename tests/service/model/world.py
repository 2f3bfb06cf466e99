"""A real host under a clock of its own, beside the plain dictionary it is held against."""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import xxhash

from hybridkv.migration.disk_movers import DiskWriter
from hybridkv.service.config import Config, load_config
from hybridkv.service.facade import Host
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.points import listening
from hybridkv.tiers.states import BlockState, Outcome, Tier
from tests.service.model.gates import Gates
from tests.service.model.records import CHAINS, DEPTH, Place, Reading, Waiting, Worker, Writing, content_of, key_of
from tests.service.model.watcher import Watcher

SPACES = (
    Namespace(model="small", layout=BlockLayout.opaque(4096, 16, "model-test"), key_bytes=16),
    Namespace(model="large", layout=BlockLayout.opaque(8192, 16, "model-test"), key_bytes=16),
)
SIZES = (4096, 8192)
UNIVERSE = [[key_of(space, c, d) for c in range(CHAINS) for d in range(DEPTH)] for space in range(len(SPACES))]
LIFE_S, GRACE_S = 30.0, 5.0
_SETTLE_S = 5.0


def small_config(folder: Path, gpus: int) -> Config:
    """16 or 32 blocks on a device, 48 in CPU memory (12 KiB extents, so that sizes leave remainders), 68 on disk."""
    return load_config(
        overrides={
            "daemon.socket": f"unix://{folder}/kv.sock",
            "daemon.grace_s": GRACE_S,
            "daemon.lease_s": LIFE_S,
            "daemon.reservation_s": LIFE_S,
            "gpu.devices": [f"host:{device}" for device in range(gpus)],
            "gpu.capacity_bytes": "128KiB",
            "gpu.idle_timeout_s": 40.0,
            "cpu.shm_dir": str(folder),
            "cpu.capacity_bytes": "192KiB",
            "disk.path": str(folder / "disk"),
            "disk.capacity_bytes": "1MiB",
            "migration.lane_slots_count": 2,
            "migration.background_bytes_per_s": 0,
            "migration.host_pressure_high": 1.0,
            "migration.promote_at_accesses": 2,
            "migration.cooldown_s": 0.0,
        },
        env={},
    )


class World:
    """The host and what a dictionary says about it. `sealed` holds (space, key) of every block that may be a HIT."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.clock = ManualClock()
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hybridkv-model-")))
            self.config = small_config(self.folder, gpus)
            self._open()
            stack.enter_context(listening(lambda name: self.gates.handler(name)))
            self._stack = stack.pop_all()
        self.sealed: set[tuple[int, bytes]] = set()
        self.workers: list[Worker] = []
        self.writings: list[Writing] = []
        self.waiting: list[Waiting] = []
        self.readings: list[Reading] = []

    def _open(self) -> None:
        self.host = Host(self.config, clock=self.clock, start_loop=False, instance="model")
        self.gates = Gates(self.host.migrator.lanes.workers)
        self.watcher = Watcher(self.host)
        self.observers = [self.host.attach(space).session for space in SPACES]
        self.arrays = [self.host.pool_array(pool, writable=True) for pool in range(self.gpus + 1)]

    # ------------------------------------------------------------------------------------------------ bytes

    def write(self, space: int, key: bytes, place: Place) -> int:
        """Fill a slot as a worker does: the checksum of what was written."""
        content = content_of(space, key, SIZES[space])
        pool, offset = place
        self.arrays[pool][offset : offset + SIZES[space]] = content
        return xxhash.xxh3_64_intdigest(content.data)

    def scribble(self, space: int, place: Place) -> None:
        """A stalled worker goes on writing to a slot that is no longer its own."""
        pool, offset = place
        self.arrays[pool][offset : offset + SIZES[space]] = 0xEE

    def holds_bytes(self, space: int, key: bytes, place: Place) -> bool:
        pool, offset = place
        return np.array_equal(self.arrays[pool][offset : offset + SIZES[space]], content_of(space, key, SIZES[space]))

    # ------------------------------------------------------------------------------------------------ time

    def settle(self) -> None:
        """Wait until nothing moves. With no lane held back nobody may be left waiting then (law 11)."""
        if self.gates.any_held:
            return
        if not self.host.migrator.quiesce(_SETTLE_S):
            transfers = list(self.host.directory.state.transfers.values())
            waiting = self.host.migrator.demand.waiting
            raise AssertionError(f"law 11: {waiting} calls wait, with {transfers} in flight and no lane held back")

    def tick(self) -> None:
        """One background pass; the model's holds lapse by the same clock."""
        self.host.tick()
        now = self.clock.now()
        for worker in self.workers:
            if worker.broken_at is not None and now - worker.broken_at >= GRACE_S:
                worker.lapsed = True
        for reading in self.readings:
            reading.lapsed = reading.lapsed or reading.expires_at <= now or reading.worker.lapsed
        for writing in self.writings:
            if not writing.lapsed and (writing.expires_at <= now or writing.worker.lapsed):
                self._lapse(writing)
        self.waiting = [w for w in self.waiting if w.expires_at > now and not w.worker.lapsed]

    def _lapse(self, writing: Writing) -> None:
        writing.lapsed = True
        if writing.worker.maps:
            writing.haunted = set(writing.open)
        writing.open = set()

    def forget(self, worker: Worker) -> None:
        """Everything the worker held is over."""
        self.readings = [r for r in self.readings if r.worker is not worker]
        self.writings = [w for w in self.writings if w.worker is not worker]
        self.waiting = [w for w in self.waiting if w.worker is not worker]

    # ------------------------------------------------------------------------------------------------ what must hold

    def verify(self) -> None:
        """Called after every step."""
        for writing in self.writings:
            for position in writing.haunted:
                self.scribble(writing.worker.space, writing.places[position])
        assert self.host.check() == []
        self.watcher.verify()
        self._verify_findable()
        self._verify_resident()
        for reading in self.readings:
            self._verify_reading(reading)
        for writing in self.writings:
            space = writing.worker.space
            for position in writing.open:
                place = writing.places[position]
                assert self.holds_bytes(space, writing.keys[position], place), (
                    f"law 5: a reserved slot changed: {place}"
                )

    def _verify_findable(self) -> None:
        """What was never sealed, or was removed since, is a MISS."""
        for space, observer in enumerate(self.observers):
            found = self.host.lookup(observer, Keys.of(UNIVERSE[space])).states == Outcome.HIT
            hits = {(space, UNIVERSE[space][i]) for i in np.flatnonzero(found).tolist()}
            assert hits <= self.sealed, f"findable without having been sealed: {hits - self.sealed}"

    def _verify_resident(self) -> None:
        """Every copy in memory has its key's bytes, whoever looks, and whatever moves."""
        directory = self.host.directory
        with directory.lock:
            blocks = directory.blocks
            for pool in range(self.gpus + 1):
                here = (blocks.slot[pool] != NO_SLOT) & (blocks.state == BlockState.SEALED)
                for row in np.flatnonzero(here).tolist():
                    space, place = int(blocks.namespace[row]), (pool, int(blocks.slot[pool][row]))
                    assert self.holds_bytes(space, blocks.keys[row], place), (
                        f"law 3: wrong bytes of row {row} in {place}"
                    )

    def _verify_reading(self, reading: Reading) -> None:
        if not reading.trusted:
            return
        for position, place in reading.places.items():
            intact = self.holds_bytes(reading.worker.space, reading.keys[position], place)
            assert intact, f"law {6 if reading.lapsed else 4}: a copy changed under its reader: {place}"

    # ------------------------------------------------------------------------------------------------ end

    def end(self) -> None:
        """Everybody goes; nothing may be left. Then a restart serves what is on disk, and nothing else."""
        try:
            self.gates.release_all()
            self.settle()
            for worker in self.workers:
                # One that lapsed with nothing in quarantine is forgotten already; to hear of it again does no harm.
                self.host.on_gone(worker.session)
                self.forget(worker)
            self.settle()
            self.verify()
            self._verify_nothing_held()
            self._verify_disk()
            self.host.close()
            self._restart()
        finally:
            self.gates.release_all()
            self.host.close()
            self._stack.close()

    def _verify_nothing_held(self) -> None:
        state = self.host.directory.state
        assert not state.ledger.leases
        assert not state.ledger.reservations
        assert not state.transfers
        assert not state.blocks.waiting.any()
        assert not state.blocks.holds.any()
        for pool in range(self.gpus + 1):
            book = state.mapped(pool)
            assert not book.haunted_slots
            for use in (SlotUse.QUARANTINED, SlotUse.RESERVED, SlotUse.INCOMING):
                assert book.table.bytes_by_use[use] == 0, use
            assert {size: len(free) for size, free in book.lane_slots.items()} == book.lane_slots_owned

    def _verify_disk(self) -> None:
        """The store holds what the directory lists, and no more."""
        disk, store = self.host.directory.state.disk, self.host.memory.store
        assert disk is not None
        assert store is not None
        lane = self.host.migrator.lanes.lane(self.gpus, self.gpus + 1)
        lane.close()
        assert isinstance(lane.mover, DiskWriter)
        lane.mover.delete_dropped()
        listed, stored = sum(disk.blocks.values()), store.usage().live_blocks
        assert stored == listed, f"{stored} blocks are stored, {listed} are listed"

    def _restart(self) -> None:
        self._open()
        self.verify()
        for space, observer in enumerate(self.observers):
            for first in range(0, len(UNIVERSE[space]), DEPTH):
                self._read_back(space, observer, UNIVERSE[space][first : first + DEPTH])
        self.host.clear()
        self.settle()
        assert self.host.check() == []
        self.watcher.verify()
        for pool in range(self.gpus + 1):
            table = self.host.directory.state.mapped(pool).table
            assert table.used_bytes == 0

    def _read_back(self, space: int, observer: int, keys: list[bytes]) -> None:
        ticket = self.host.acquire(observer, Keys.of(keys), tier=Tier.CPU, independent=True)
        assert ticket.wait(_SETTLE_S)
        try:
            reply = ticket.reply()
        except ResourceExhaustedError:
            return
        for position in np.flatnonzero(reply.states == Outcome.HIT).tolist():
            assert (space, keys[position]) in self.sealed
            assert self.holds_bytes(space, keys[position], place_of(reply.slots[position]))
        self.host.release(observer, reply.lease)


def place_of(slot: np.void) -> Place:
    return int(slot["pool"]), int(slot["offset"])


PID = os.getpid()
