"""The migrator: lanes, demand, reclaim and the background pass over one directory, with the loop that drives them."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from hybridkv.migration.advice import Advice
from hybridkv.migration.background import Background, BackgroundRules
from hybridkv.migration.carver import Carver
from hybridkv.migration.chains import Chains
from hybridkv.migration.demand import Demand
from hybridkv.migration.disk_size import DiskSize
from hybridkv.migration.disk_watch import DiskWatch
from hybridkv.migration.drain import Drain
from hybridkv.migration.fences import Fences
from hybridkv.migration.inflight import InFlight
from hybridkv.migration.lane_map import LaneMap
from hybridkv.migration.ledger import MoveLedger
from hybridkv.migration.memory import Memory
from hybridkv.migration.prefetch import Prefetches
from hybridkv.migration.pressure import read_host_memory
from hybridkv.migration.reclaim import Reclaim
from hybridkv.migration.relief import Relief, ReliefRules
from hybridkv.migration.tickets import Ticket
from hybridkv.migration.verifier import Verifier
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.directory.moves import Stage, Transfer
from hybridkv.tiers.errors import InternalError, ResourceExhaustedError
from hybridkv.tiers.loops import Loop, Pulse
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Tier

_log = logging.getLogger(__name__)

T = TypeVar("T")

_LANE_SLOTS_WITHIN_S = 5.0

_CALM_LOOKS = 2
"""What a lane does after its last transfer may give the carver a job, and that a lane: one look is not enough."""


@dataclass(frozen=True, slots=True)
class MigrationSpec:
    """How blocks move. Sizes in bytes, times in seconds; `background_bytes_per_s` None means no cap, `inflight_bytes`
    None no bound."""

    background: BackgroundRules = field(default_factory=lambda: BackgroundRules({}))
    relief: ReliefRules = field(default_factory=ReliefRules)
    interval_s: float = 0.5
    batch_bytes: int = 16 << 20
    inflight_bytes: int | None = None
    background_bytes_per_s: float | None = 1e9
    lane_slots: int = 16
    admit_min_accesses: float = 0.0
    chain_prefetch_max_blocks: int = 0
    explain_moves: int = 1024


class Migrator:
    """Moves blocks between the tiers of a `Memory`. Thread-safe; no call blocks but `drain` and `close`."""

    carver_kind: type[Carver] = Carver
    lanes_kind: type[LaneMap] = LaneMap

    def __init__(self, memory: Memory, spec: MigrationSpec, *, start_loop: bool = True) -> None:
        """`start_loop` False: the loop is started later, or a test calls `tick` itself."""
        self.memory = memory
        self.directory: Directory = memory.directory
        self.spec = spec
        self.moves = MoveLedger(self.directory, spec.explain_moves)
        self.carver = self.carver_kind(memory, self.stir)
        self.reclaim = Reclaim(
            self.directory,
            self.moves,
            self.send,
            self.carver.carve,
            self.carver.give_back,
            admit_min_accesses=spec.admit_min_accesses,
        )
        self.carver.released = self.reclaim.released
        self.fences = Fences(self.directory, memory.device_pools)
        self.inflight = InFlight(spec.inflight_bytes)
        self.disk_watch = DiskWatch(memory)
        self.disk_size = DiskSize(memory, self.reclaim)
        self.lanes = self.lanes_kind(
            memory,
            self.moves,
            self.disk_watch,
            self.disk_size,
            self.inflight,
            spec.batch_bytes,
            spec.background_bytes_per_s,
            self._ended,
        )
        self.prefetches = Prefetches(self.directory, self.reclaim, self.send, self.lanes.withdraw, self.moves.ended)
        self.demand = Demand(self.directory, self.reclaim, self.send, Advice(self.directory, self.lanes.way))
        self.demand.hooks.hasten = self.lanes.hasten
        self.demand.hooks.displace = self.prefetches.displace
        self.demand.hooks.acquired = Chains(self.directory, self.prefetches).acquired
        self.directory.state.speculation.max_blocks = spec.chain_prefetch_max_blocks
        self.verifier = Verifier(memory, self.stir)
        self.directory.state.unverified.ask = self.verifier.ask
        self.background = Background(self.directory, self.reclaim, self.send, spec.background, self.moves.history)
        self.relief = Relief(self.directory, self.reclaim, spec.relief, read_host_memory, memory.read_device_memory)
        self.on_tick: Callable[[], None] = lambda: None
        """Called at the start of every pass, without the lock."""
        self.on_stir: Callable[[], Sequence[Ticket[Any]]] = lambda: ()
        """Called under the lock when something ended, was freed or lapsed: the tickets of others that are done by it."""
        self.others_at_rest: Callable[[], bool] = lambda: True
        """Asked by `quiesce`, under the lock: nothing that was begun through others is under way."""
        self.pulse = Pulse("migrator")
        self._closing = threading.Event()
        self._pause = threading.Event()
        self._loop = Loop(self.pulse, self._run_loop, self._closing.wait)
        if start_loop:
            self.start_loop()

    # ------------------------------------------------------------------------------------------------ lanes

    def send(self, transfers: Iterable[Transfer]) -> None:
        """Queue transfers that were begun."""
        self.lanes.send(transfers)

    def _ended(self, transfers: Sequence[Transfer]) -> None:
        """Transfers ended, by whatever way: whoever waits for them, or for their room, goes on."""
        failed = {transfer.source for transfer in transfers if transfer.stage is Stage.FAILED and transfer.demotes}
        if failed:
            with self.directory.lock:
                self.demand.note_failures(failed)
        self.stir()

    def stir(self) -> None:
        """Something was freed, committed or lapsed: advance what waits. Not under the lock."""
        self.fences.settle()
        with self.directory.lock:
            # From below upwards: what becomes free there at once is room for the tier above, and no event follows it.
            for book in reversed(self.directory.books):
                if book.id.tier is not Tier.DISK:
                    self.reclaim.advance_emptying(self.directory.state.mapped(book.index))
            done = self.demand.advance()
            self.prefetches.advance()
            others = self.on_stir()
        for ticket in (*done, *others):
            ticket.finish()
        disk = self.directory.state.disk
        for worker in self.lanes.workers:
            if worker.queued or (disk is not None and worker.leg.target == disk.index):
                worker.wake()

    # ------------------------------------------------------------------------------------------------ tuning

    def retune(self, spec: MigrationSpec) -> None:
        """Go by `spec` from now on: the next pass, batch and decision. Under the lock; lane slots and history stay."""
        self.spec = spec
        self.background.rules = spec.background
        self.relief.rules = spec.relief
        self.reclaim.admit_min_accesses = spec.admit_min_accesses
        self.directory.state.speculation.max_blocks = spec.chain_prefetch_max_blocks
        self.lanes.retune(spec.batch_bytes, spec.background_bytes_per_s)
        self.inflight.set_limit(spec.inflight_bytes)
        if self.pulse.within_s is not None:
            self.pulse.within_s = spec.interval_s
        self._pause.set()

    def resize(self, tier: Tier, capacity_bytes: int) -> None:
        """The pools of `tier` have `capacity_bytes` each from now on, at most what they were made with. Under the lock;
        `stir` afterwards."""
        for book in self.directory.books:
            if book.id.tier is tier and isinstance(book, MappedBook):
                self.relief.resize(book, capacity_bytes)
            elif book.id.tier is tier:
                self.disk_size.resize(capacity_bytes)

    # ------------------------------------------------------------------------------------------------ sizes

    def prepare(self, size: int) -> None:
        """Blocks of this size are about to come: see to a first extent in each pool and to the lanes' CPU slots.

        Blocks while memory is committed. Raises ResourceExhaustedError when lanes are needed and find no room for one.
        """
        with self.directory.lock:
            for book in self.directory.books:
                if book.id.tier is not Tier.DISK:
                    self.reclaim.carve_ahead(self.directory.state.mapped(book.index), size)
        self.carver.idle()
        self._own_lane_slots(size)

    @property
    def _lanes_need_slots(self) -> bool:
        """Blocks can pass between tiers that are no neighbours."""
        gpus = len(self.directory.state.pools_in(Tier.GPU))
        return gpus > 1 or (gpus == 1 and self.memory.store is not None)

    def is_prepared(self, size: int) -> bool:
        """The lanes have what blocks of this size need. Under the lock."""
        cpu = self.directory.state.mapped(self.memory.cpu_index)
        return not self._lanes_need_slots or cpu.lane_slots_owned.get(size, 0) > 0

    def retire(self, size: int) -> None:
        """Nobody uses blocks of this size any more: the lanes give their CPU slots back, unless a block may still have to
        pass between tiers that are no neighbours. Under the lock."""
        state, blocks = self.directory.state, self.directory.blocks
        for pool in state.pools_in(Tier.GPU):
            rows = np.flatnonzero(blocks.slot[pool] != NO_SLOT)
            if (state.sizes[blocks.namespace[rows]] == size).any():
                return
        if not any(transfer.size == size for transfer in state.transfers.values()):
            state.mapped(self.memory.cpu_index).disown_lane_slots(size)

    def _own_lane_slots(self, size: int) -> None:
        """Give the lanes CPU slots of this size, if they need any."""
        if not self._lanes_need_slots:
            return
        cpu = self.directory.state.mapped(self.memory.cpu_index)
        want = max(1, min(self.spec.lane_slots, cpu.table.capacity_slots(size) // 8))
        deadline = self.directory.state.clock.now() + _LANE_SLOTS_WITHIN_S
        owned, coming, pause = 0, True, threading.Event()
        while coming and owned < want and self.directory.state.clock.now() < deadline:
            with self.directory.lock:
                owned = cpu.own_lane_slots(size, want)
                coming = owned < want and self.reclaim.make_room(cpu.index, size, want - owned)
                if coming:
                    owned = cpu.own_lane_slots(size, want)
            if coming and owned < want:
                self.carver.idle()
                pause.wait(0.001)
        if not owned:
            raise ResourceExhaustedError("cpu", f"no room for a lane slot of {size} bytes")

    # ------------------------------------------------------------------------------------------------ calls

    def call(self, make: Callable[[Demand], Ticket[T]]) -> Ticket[T]:
        """Start an acquire or a reservation under the lock."""
        with self.directory.lock:
            return make(self.demand)

    def prefetch(self, rows: Rows, target: int, deadline_s: float | None = None) -> int:
        """Bring sealed blocks up to `target` without a caller that waits: how many are on their way, or will be. What has
        not begun to move after `deadline_s` is given up."""
        with self.directory.lock:
            give_up_at = None if deadline_s is None else self.directory.state.clock.now() + deadline_s
            return self.prefetches.start(rows, target, give_up_at=give_up_at)

    def removals(self) -> Ticket[None]:
        """Done once everything removed so far is off the disk for good; at once where there is no disk that works."""
        ticket: Ticket[None] = Ticket(lambda: None, lambda: None)
        disk = self.directory.state.disk
        if disk is None or not disk.on:
            ticket.finish()
            return ticket
        with self.directory.lock:
            disk.when_removed.append(ticket.finish)
        self.lanes.lane(self.memory.cpu_index, disk.index).wake()
        return ticket

    # ------------------------------------------------------------------------------------------------ loop

    def _run_loop(self) -> None:
        while not self._closing.is_set():
            if self._pause.wait(self.spec.interval_s):
                self._pause.clear()  # closing, or another interval
                continue
            self.tick()

    @property
    def loop_errors(self) -> int:
        """Passes and jobs of the carver that failed in a way nobody foresaw."""
        return self.pulse.errors + self.carver.pulse.errors + self.verifier.pulse.errors

    @property
    def pulses(self) -> list[Pulse]:
        """Of every loop there is."""
        return [self.pulse, self.carver.pulse, self.verifier.pulse, *(worker.pulse for worker in self.lanes.workers)]

    def start_loop(self) -> None:
        """From now on passes come by themselves, so late ones show in health."""
        self.pulse.within_s = self.spec.interval_s
        self.pulse.beat()
        self._loop.start()

    def tick(self) -> None:
        """Expire what is due, look at every pool, advance what waits."""
        self.pulse.begin()
        self.on_tick()
        with self.directory.lock:
            self.directory.expire(self.directory.state.clock.now())
            self.prefetches.expire()
        self.relief.run_once()
        self.background.run_once()
        self.disk_watch.ask()
        self.stir()
        self.pulse.end()
        self.pulse.well()

    # ------------------------------------------------------------------------------------------------ end

    def drain(self, timeout_s: float) -> tuple[int, int]:
        """Write to disk what is in no other durable place: (blocks written, blocks that stay volatile)."""
        return Drain(self.directory, self.reclaim, self.send).run(timeout_s)

    def go_in_turn(self) -> None:
        """For a clock that is set by hand, on which all that transfers do happens at one moment: carver and lanes have no
        threads from now on, and `quiesce` does what they would, in one order. Bytes move as ever. At rest, before use."""
        self.quiesce()
        self.carver.end_thread()
        self.lanes.go_in_turn()

    def quiesce(self, timeout_s: float = 10.0) -> bool:
        """Wait until nothing is in flight: no transfer, no call that waits, no memory being committed or returned, and
        every lane has looked at what it has. False when `timeout_s` passed."""
        deadline = threading.Event()
        timer = threading.Timer(timeout_s, deadline.set)
        timer.start()
        try:
            calm = 0
            while not deadline.is_set():
                self.carver.idle()
                if self.lanes.carry():
                    calm = 0
                    continue
                calm = calm + 1 if self._at_rest() else 0
                if calm == _CALM_LOOKS:
                    return True
                deadline.wait(0.001)
            return False
        finally:
            timer.cancel()

    def _at_rest(self) -> bool:
        with self.directory.lock:
            busy = len(self.directory.state.transfers) + self.demand.waiting + self.prefetches.waiting
            busy += not self.others_at_rest()
        return not busy and all(worker.idle for worker in self.lanes.workers)

    def close(self) -> None:
        """End the loop, the lanes and the carver. Transfers not begun are given up."""
        self._closing.set()
        self._pause.set()
        if self._loop.thread.is_alive():
            self._loop.thread.join(timeout=30)
        self.verifier.close()
        self.lanes.close()
        if not self.carver.close() or any(worker.thread.is_alive() for worker in self.lanes.workers):
            raise InternalError("a lane did not end")
