"""A host's memory, lanes and carver without a byte behind them: every decision is the real one, and every copy is instant.

What `hybridkv replay` runs on. Directory, policies, planner, demand, reclaim and the background pass are those of the daemon;
here are only the stand-ins for what takes time. Nothing happens on another thread: `SimulatedMigrator.quiesce` carries
what was decided. Pressure of the host's memory is no part of it.
"""

from collections.abc import Callable
from pathlib import Path

from hybridkv.migration.carver import Carver
from hybridkv.migration.estimate import LaneLoad
from hybridkv.migration.lane_map import LaneMap
from hybridkv.migration.memory import Memory, MemorySpec
from hybridkv.migration.migrator import MigrationSpec, Migrator
from hybridkv.migration.movers import Cargo, Carried, Landing, Mover
from hybridkv.migration.pressure import MemoryReading
from hybridkv.migration.takeover import TakeOverReport
from hybridkv.tiers.clock import Clock
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.disk import DiskStore
from hybridkv.tiers.extents import ExtentTable
from hybridkv.tiers.gpu import allocation_extents
from hybridkv.tiers.pools import PoolId, extent_bytes_for
from hybridkv.tiers.replacement import Policy, PoolFacts
from hybridkv.tiers.states import Tier


class SimulatedMemory(Memory):
    """The pools of a `MemorySpec` as books only: their sizes, extents and slots are those of the real ones.

    No memory is taken, no device opened, nothing read from or written to `disk_path`.
    """

    def __init__(self, spec: MemorySpec, clock: Clock, policy: Callable[[Tier, PoolFacts], Policy]) -> None:
        self.taken = TakeOverReport("nothing")
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

    def close(self, *, clean: bool = True, keep: bool = False) -> None:
        """There is nothing to give back."""


class SimulatedCarver(Carver):
    """Does its jobs when asked to, on the asker's thread. Nobody reads memory that is not there: it goes at once."""

    def _start(self) -> None:
        """No thread."""
        self.return_after_s = 0.0


class InstantMover:
    """Carries nothing: the bytes are there as soon as the batch is begun."""

    def start(self, batch: Cargo) -> Landing:
        batch.outcomes[:] = Carried.MOVED
        return _landed

    def close(self) -> None:
        """Nothing to close."""


def _landed() -> None:
    """There is nothing to wait for."""


class SimulatedLanes(LaneMap):
    """The real lanes' queues, batches, lane slots and commits, in turn; their movers move nothing, in no time."""

    def _open_lanes(self) -> None:
        self._in_turn = True
        super()._open_lanes()

    def _mover(self, make: Callable[[str], Mover], name: str) -> Mover:
        del make, name
        return InstantMover()

    def way(self, source: int, target: int) -> list[LaneLoad]:
        """Nothing is known of lanes that take no time, so no load is too slow."""
        del source, target
        return []

    def carry(self) -> bool:
        carried = super().carry()
        self._forget_deleted()
        return carried

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
