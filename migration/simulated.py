"""A host's memory, lanes and carver without a byte behind them: every decision is the real one, and every copy is instant.

What `hybridkv replay` runs on. Directory, policies, planner, demand, reclaim and the background pass are those of the daemon;
here are only the stand-ins for what takes time. Nothing happens on another thread: `SimulatedMigrator.quiesce` carries
what was decided. Pressure of the host's memory is no part of it.
"""

import queue
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

from hybridkv.migration.carver import Carver
from hybridkv.migration.estimate import LaneLoad
from hybridkv.migration.lane_map import LaneMap
from hybridkv.migration.memory import Memory, MemorySpec
from hybridkv.migration.migrator import MigrationSpec, Migrator
from hybridkv.migration.pressure import MemoryReading
from hybridkv.tiers.clock import Clock
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.directory.moves import Stage, Transfer
from hybridkv.tiers.disk import DiskStore
from hybridkv.tiers.extents import ExtentTable
from hybridkv.tiers.gpu import allocation_extents
from hybridkv.tiers.pools import PoolId, extent_bytes_for
from hybridkv.tiers.replacement import Policy, PoolFacts
from hybridkv.tiers.states import Tier

_RUNNING = Stage.RUNNING


class SimulatedMemory(Memory):
    """The pools of a `MemorySpec` as books only: their sizes, extents and slots are those of the real ones.

    No memory is taken, no device opened, nothing read from or written to `disk_path`.
    """

    def __init__(self, spec: MemorySpec, clock: Clock, policy: Callable[[Tier, PoolFacts], Policy]) -> None:
        self._assemble(spec, clock, policy)

    def _open_device_pool(self, name: str, index: int) -> MappedBook:
        extent_bytes = extent_bytes_for(self.spec.gpu_bytes)
        count = self.spec.gpu_bytes // extent_bytes
        allocation_bytes = min(allocation_extents(name) or count, count) * extent_bytes
        return self._simulated(
            PoolId(Tier.GPU, index),
            index,
            ExtentTable(
                count * extent_bytes,
                extent_bytes=extent_bytes,
                base_of=lambda extent: extent * extent_bytes // allocation_bytes * allocation_bytes,
            ),
        )

    def _open_cpu(self, index: int) -> MappedBook:
        return self._simulated(PoolId(Tier.CPU), index, ExtentTable(self.spec.cpu_bytes))

    def _simulated(self, pool: PoolId, index: int, table: ExtentTable) -> MappedBook:
        return MappedBook(pool, index, table, self._policy(pool.tier, self._facts(index)))

    def _open_disk(self, path: Path, index: int, clock: Clock) -> DiskBook:
        """A store that is never opened tells how much it would hold."""
        self.store = DiskStore(path, self.spec.disk_bytes, clock=clock)
        return self._disk_book(self.store, index)

    def commit_extent(self, pool: int, extent: int, slot_bytes: int) -> None:
        """There is nothing to commit."""

    def release_extent(self, pool: int, extent: int) -> None:
        """There is nothing to release."""

    def read_device_memory(self, pool: int) -> MemoryReading | None:
        del pool
        return None

    def kinds(self) -> list[str]:
        return ["disk" if book.id.tier is Tier.DISK else "host" for book in self.directory.books]

    def close(self, *, clean: bool = True) -> None:
        """There is nothing to give back."""


class SimulatedCarver(Carver):
    """Does its jobs when asked to, on the asker's thread. Nobody reads memory that is not there: it goes at once."""

    def _start(self) -> None:
        """No thread."""
        self.return_after_s = 0.0

    def work(self) -> bool:
        """Do what is queued; False when there was nothing."""
        did = False
        while (job := self._next()) is not None:
            self._do(job)
            did = True
        return did

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._jobs.get_nowait()
        except queue.Empty:
            return None

    def idle(self) -> None:
        self.work()

    def close(self) -> bool:
        return True


class SimulatedLanes(LaneMap):
    """Carries what is queued at once, in no time, when asked to. What stays in memory goes before what is read from disk or
    written there, as it would in lanes that take time; what somebody waits for goes first."""

    def _open_lanes(self) -> None:
        self._queued: list[Transfer] = []

    def send(self, transfers: Iterable[Transfer]) -> None:
        decided = list(transfers)
        self._moves.history.decided(decided)
        self._queued += decided

    def route(self, transfer: Transfer) -> None:
        self._queued.append(transfer)

    def withdraw(self, transfer: Transfer) -> bool:
        if transfer not in self._queued:
            return False
        self._queued.remove(transfer)
        return True

    def way(self, source: int, target: int) -> list[LaneLoad]:
        """Nothing is known of lanes that take no time, so no load is too slow."""
        del source, target
        return []

    def carry(self) -> bool:
        """Carry what is queued in the fastest lanes that have something; False when none has. Not under the lock."""
        directory = self._directory
        with directory.lock:
            ended = self._take()
            cancelled = directory.moves.start_all(ended)
            running = [transfer for transfer in ended if transfer.stage is _RUNNING] if cancelled else ended
            for _, group in groupby(running, self._way):
                batch = list(group)
                directory.moves.commit(batch, [transfer.target_slot for transfer in batch])
            self._moves.all_ended(ended)
            self._forget_deleted()
        if ended:
            self._ended(ended)
        return bool(ended)

    def _take(self) -> list[Transfer]:
        disk = len(self._directory.books) - 1 if self._memory.store is not None else None
        meets_disk = [disk in (transfer.source, transfer.target) for transfer in self._queued]
        fastest = min(meets_disk, default=False)
        taken = [transfer for transfer, slow in zip(self._queued, meets_disk, strict=True) if slow is fastest]
        self._queued = [
            transfer for transfer, slow in zip(self._queued, meets_disk, strict=True) if slow is not fastest
        ]
        return sorted(taken, key=lambda transfer: transfer.priority)

    def _way(self, transfer: Transfer) -> tuple[int, int, int]:
        return transfer.source, transfer.target, int(self._directory.blocks.namespace[transfer.row])

    def _forget_deleted(self) -> None:
        """What the disk writer would delete from the store."""
        disk = self._directory.state.disk
        if disk is not None:
            disk.to_delete.clear()
            disk.to_remove.clear()


class SimulatedMigrator(Migrator):
    """The migrator on simulated memory. One thread uses it; `quiesce` after each call that begins something."""

    carver_kind = SimulatedCarver
    lanes_kind = SimulatedLanes
    carver: SimulatedCarver
    lanes: SimulatedLanes

    def __init__(self, memory: SimulatedMemory, spec: MigrationSpec) -> None:
        super().__init__(memory, spec, start_loop=False)
        self.relief.read_host = list

    def quiesce(self, timeout_s: float = 10.0) -> bool:
        """Carry until nothing is queued; False when a call waits for something that is not on its way."""
        del timeout_s
        while self.carver.work() or self.lanes.carry():
            pass
        return not self.demand.waiting
