"""A real host with sequences under a clock of its own, beside the plain dictionaries it is held against."""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridkv.paging.states import PageState
from hybridkv.service.config import load_config
from hybridkv.service.facade import Host
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.points import listening
from tests.paging.model.records import BLOCK, TOKENS, Held, Pending, Place, Space, Worker, content_of
from tests.service.model.gates import Gates

NAMESPACE = Namespace(model="m", layout=BlockLayout.opaque(BLOCK, TOKENS, "paging-model"), key_bytes=16)
LIFE_S, GRACE_S, IDLE_S = 30.0, 5.0, 20.0
_SETTLE_S = 5.0


class World:
    """The host, and what dictionaries say of every sequence. 32 blocks on the device in extents of two or four, 48 in CPU
    memory, and a disk or none."""

    def __init__(self, roomy: bool, disk: bool) -> None:
        self.clock = ManualClock()
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hybridkv-paging-")))
        config: dict[str, object] = {
            "daemon.socket": f"unix://{folder}/kv.sock",
            "daemon.grace_s": GRACE_S,
            "daemon.lease_s": LIFE_S,
            "gpu.devices": ["host:0"],
            "gpu.capacity_bytes": "256KiB" if roomy else "128KiB",
            "cpu.shm_dir": str(folder),
            "cpu.capacity_bytes": "192KiB",
            "migration.lane_slots_count": 2,
            "migration.background_bytes_per_s": 0,
            "migration.host_pressure_high": 1.0,
            "migration.cooldown_s": 0.0,
            "paging.idle_timeout_s": IDLE_S,
            **({"disk.path": str(folder / "disk"), "disk.capacity_bytes": "1MiB"} if disk else {}),
        }
        self.host = Host(load_config(overrides=config, env={}), clock=self.clock, start_loop=False, instance="model")
        self.gates = Gates(self.host.migrator.lanes.workers)
        self._stack.enter_context(listening(lambda name: self.gates.handler(name)))
        self.arrays = [self.host.pool_array(pool, writable=True) for pool in range(2)]
        self.workers: list[Worker] = []
        self.spaces: list[Space] = []
        self.pending: list[Pending] = []
        self.held: list[Held] = []
        self.copies_held = False
        self.stamp = 1000

    # ------------------------------------------------------------------------------------------------ bytes

    def fresh_stamp(self) -> int:
        self.stamp += 1
        return self.stamp

    def bytes_at(self, place: Place) -> NDArray[np.uint8]:
        pool, offset = place
        return self.arrays[pool][offset : offset + BLOCK]

    # ------------------------------------------------------------------------------------------------ time

    @property
    def standing(self) -> bool:
        """Something is held back, so that calls may wait."""
        return self.gates.any_held or self.copies_held

    @property
    def copier(self) -> HostStream:
        stream = self.host.paging.copier.streams[0]
        assert isinstance(stream, HostStream)
        return stream

    def hold_copies(self, at: HoldAt) -> None:
        self.copier.hold(at)
        self.copies_held = True

    def release_all(self) -> None:
        self.gates.release_all()
        self.copier.release_held()
        self.copies_held = False

    def settle(self) -> None:
        """Wait until nothing moves. With nothing held back nobody may be left waiting then (law 11)."""
        if not self.standing:
            calm = self.host.migrator.quiesce(_SETTLE_S)
            waiting = self.host.migrator.demand.waiting, len(self.host.paging.faults), len(self.host.paging.suspension)
            assert calm, f"law 11: calls wait ({waiting}) and no lane is held back"
        self.collect()

    def tick(self) -> None:
        self.host.tick()
        now = self.clock.now()
        for worker in self.workers:
            if worker.broken_at is not None and now - worker.broken_at >= GRACE_S and not worker.lapsed:
                worker.lapsed = True
                self._forget_spaces(worker)
        self.held = [held for held in self.held if held.expires_at > now]

    def _forget_spaces(self, worker: Worker) -> None:
        self.spaces = [space for space in self.spaces if space.worker is not worker]
        self.held = [held for held in self.held if held.space.worker is not worker]
        self.pending = [pending for pending in self.pending if pending.space.worker is not worker]

    def forget(self, worker: Worker) -> None:
        """It is gone, and everything it had."""
        self._forget_spaces(worker)
        self.workers.remove(worker)

    def drop(self, space: Space) -> None:
        """It is closed."""
        self.spaces.remove(space)
        self.held = [held for held in self.held if held.space is not space]

    # ------------------------------------------------------------------------------------------------ faults

    def collect(self) -> None:
        """Faults that are done by now: their workers read, or write."""
        for pending in [p for p in self.pending if p.ticket.done]:
            self.pending.remove(pending)
            try:
                pending.ticket.reply()
            except HybridKVError:
                continue
            self.fill(pending)

    def fill(self, pending: Pending) -> None:
        """A fault was served: what it was for is done with what is there now."""
        if pending.stamps is None or pending.space not in self.spaces:
            return
        states, slots = self.look(pending.space, pending.blocks)
        for block, stamp, state, slot in zip(pending.blocks, pending.stamps, states, slots, strict=True):
            if state == PageState.WRITABLE:
                self.bytes_at((int(slot["pool"]), int(slot["offset"])))[:] = content_of(stamp)
                pending.space.stamps[block] = stamp

    def look(self, space: Space, blocks: list[int]) -> tuple[list[int], NDArray[np.void]]:
        reply = self.host.sequences.translate(space.worker.session, space.number, np.array(blocks, np.int64))
        return reply.states.tolist(), reply.slots

    # ------------------------------------------------------------------------------------------------ what must hold

    def verify(self) -> None:
        """Called after every step: the laws, every block that can be read, and every place that somebody holds."""
        for worker in self.workers:
            for place in worker.haunted:
                self.bytes_at(place)[:] = 0xEE
        found = self.host.check()
        assert not found, found
        for space in self.spaces:
            if space.blocks:
                self._verify_space(space)
        for held in self.held:
            for place, stamp in held.places:
                assert np.array_equal(self.bytes_at(place), content_of(stamp)), (
                    f"law 4: {place} changed under its reader"
                )

    def _verify_space(self, space: Space) -> None:
        with self.host.directory.lock:
            self._verify_blocks(space)

    def _verify_blocks(self, space: Space) -> None:
        states, slots = self.look(space, list(range(space.blocks)))
        space.writable = {block for block, state in enumerate(states) if state == PageState.WRITABLE}
        for block, (state, slot) in enumerate(zip(states, slots, strict=True)):
            stamp = space.stamps.get(block)
            if state == PageState.LOST:
                space.stamps.pop(block, None)
            elif stamp is not None:
                assert state != PageState.UNMAPPED, f"block {block} of {space} is forgotten"
                if state in (PageState.READABLE, PageState.WRITABLE):
                    place = int(slot["pool"]), int(slot["offset"])
                    same = np.array_equal(self.bytes_at(place), content_of(stamp))
                    assert same, f"block {block} of {space} has other bytes in {PageState(state).name}"

    # ------------------------------------------------------------------------------------------------ end

    def end(self) -> None:
        """Everybody goes; nothing may be left."""
        try:
            self.release_all()
            self.settle()
            for worker in list(self.workers):
                self.host.on_gone(worker.session)
                self.forget(worker)
            self.settle()
            self.verify()
            self._verify_nothing_left()
        finally:
            self.release_all()
            self.host.close()
            self._stack.close()

    def _verify_nothing_left(self) -> None:
        state, paging = self.host.directory.state, self.host.paging
        assert not paging.mappings.sequences
        assert not len(paging.mappings.reverse)
        assert not paging.mappings.held
        assert not paging.mappings.filling
        assert not state.ledger.leases
        assert not state.ledger.reservations
        assert not state.transfers
        for column in (state.blocks.holds, state.blocks.mapped, state.blocks.private):
            assert not column.any()
        for pool in range(2):
            book = state.mapped(pool)
            assert not book.haunted_slots
            for use in (SlotUse.QUARANTINED, SlotUse.RESERVED, SlotUse.INCOMING):
                assert book.table.bytes_by_use[use] == 0, use


PID = os.getpid()
