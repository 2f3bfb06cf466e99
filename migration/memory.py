"""The host's pools, opened: memory, devices, disk store, headers and their books in one directory."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.frozen import Frozen
from hybridkv.migration.inheritance import TakeOverFailedError, discarded, find_left, inherit
from hybridkv.migration.policies import succeed
from hybridkv.migration.pressure import MemoryReading
from hybridkv.tiers.clock import Clock
from hybridkv.tiers.cpu import CpuPool
from hybridkv.tiers.device.base import Device
from hybridkv.tiers.device.host_pool import HostPool
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT, PRIVATE_PARENT
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.directory.facts import DirectoryFacts
from hybridkv.tiers.disk import DiskStore, Recovered, RecoveredRun
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError
from hybridkv.tiers.extents import ExtentTable
from hybridkv.tiers.gpu import open_device
from hybridkv.tiers.headers import HeaderRegion
from hybridkv.tiers.instance import InstanceDir
from hybridkv.tiers.left_behind import LeftBehind
from hybridkv.tiers.points import point
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.replacement import Policy, PoolFacts
from hybridkv.tiers.shm import SharedRegion
from hybridkv.tiers.states import Tier

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """What to open. `gpu_devices` like ("host:0", "cuda:1"), `gpu_bytes` each; `disk_path` None means no disk tier."""

    cpu_bytes: int
    gpu_devices: tuple[str, ...] = ()
    gpu_bytes: int = 0
    disk_path: Path | None = None
    disk_bytes: int = 0
    verify_disk: bool = True
    page_lock: str = "auto"
    huge_pages: bool = False
    numa_node: int | None = None
    half_life_s: float = 600.0
    window_s: float = 60.0
    tenants: tuple[str, ...] = ()
    never_mapped: bool = False
    """No process but this one gets the memory of a pool."""


class Memory:
    """Owns every byte of KV on the host, and the directory that knows them. Pools: GPU devices, CPU, disk, in order."""

    def __init__(
        self,
        spec: MemorySpec,
        instance: InstanceDir,
        clock: Clock,
        epoch: int,
        policy: Callable[[Tier, PoolFacts], Policy],
    ) -> None:
        self._instance = instance
        self._epoch = epoch
        self._open(spec, clock, policy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(str(book.id) for book in self.directory.books)})"

    # ------------------------------------------------------------------------------------------------ opening

    def _open(self, spec: MemorySpec, clock: Clock, policy: Callable[[Tier, PoolFacts], Policy]) -> None:
        """With what a daemon before this one left, where that can be used; without it when anything is wrong with it."""
        left, self.taken = find_left(self._instance, spec.cpu_bytes, spec.never_mapped)
        if left is not None:
            try:
                self._assemble(spec, clock, policy, left)
                return
            except TakeOverFailedError as error:
                self.taken = discarded(self._instance, error)
        self._assemble(spec, clock, policy)

    def _assemble(
        self,
        spec: MemorySpec,
        clock: Clock,
        policy: Callable[[Tier, PoolFacts], Policy],
        left: LeftBehind | None = None,
    ) -> None:
        """Open the pools, top tier first, and their directory; all are closed again when that fails. `left` is the CPU
        tier's memory from then on."""
        self.spec = spec
        self._left_behind = left
        self._policy = policy
        self.devices: list[Device] = []
        self.device_pools: dict[int, DevicePool] = {}
        self.store: DiskStore | None = None
        self.recovered: Recovered | None = None
        books: list[MappedBook | DiskBook] = []
        try:
            for name in spec.gpu_devices:
                books.append(self._open_device_pool(name, len(books)))
            self.cpu_index = len(books)
            books.append(self._open_cpu(self.cpu_index))
            if spec.disk_path is not None:
                books.append(self._open_disk(spec.disk_path, len(books), clock))
            self.directory = Directory(books, clock, half_life_s=spec.half_life_s, window_s=spec.window_s)
            if spec.tenants:
                self.directory.open_accounts(spec.tenants)
            self._restore()
            self.frozen = Frozen(self.directory, self.directory.state.mapped(self.cpu_index))
            if left is not None:
                self.taken = inherit(
                    self.directory, self.cpu, left, self.frozen, self._epoch, never_mapped=spec.never_mapped
                )
        except BaseException as error:
            self.close(keep=left is not None and not isinstance(error, TakeOverFailedError))
            raise

    def _open_cpu(self, index: int) -> MappedBook:
        spec = self.spec
        self.cpu = CpuPool(
            self._instance.region_path("cpu"),
            spec.cpu_bytes,
            devices=self.devices,
            page_lock=spec.page_lock,
            huge_pages=spec.huge_pages,
            numa_node=spec.numa_node,
            region=None if self._left_behind is None else self._left_behind.data,
        )
        return self._book(
            PoolId(Tier.CPU),
            index,
            self.cpu.capacity_bytes,
            self.cpu.extent_bytes,
            None,
            None if self._left_behind is None else self._left_behind.headers,
        )

    def _open_device_pool(self, name: str, index: int) -> MappedBook:
        try:
            device = open_device(name)
        except UnavailableError as error:
            raise UnavailableError(f"gpu.devices: {name}: {error}") from error
        self.devices.append(device)
        pool = device.create_pool(self.spec.gpu_bytes, path=self._instance.region_path(f"gpu{index}"))
        self.device_pools[index] = pool
        return self._book(PoolId(Tier.GPU, index), index, pool.capacity_bytes, pool.extent_bytes, pool.base_of)

    def _book(
        self,
        pool: PoolId,
        index: int,
        capacity: int,
        extent: int,
        base_of: Callable[[int], int] | None,
        headers: HeaderRegion | None = None,
    ) -> MappedBook:
        headers = headers or HeaderRegion.create(
            self._instance.region_path(f"{pool}.headers"),
            pool=pool,
            capacity_bytes=capacity,
            extent_bytes=extent,
            daemon_epoch=self._epoch,
            never_mapped=self.spec.never_mapped,
        )
        table = ExtentTable(capacity, extent_bytes=extent, base_of=base_of)
        return MappedBook(pool, index, table, self._policy(pool.tier, self._facts(index)), headers)

    def _facts(self, pool: int) -> DirectoryFacts:
        return DirectoryFacts(pool, lambda: self.directory.state if hasattr(self, "directory") else None)

    def _open_disk(self, path: Path, index: int, clock: Clock) -> DiskBook:
        self.store = DiskStore(path, self.spec.disk_bytes, verify_at_start=self.spec.verify_disk, clock=clock)
        try:
            self.recovered = self.store.open()
        except UnavailableError as error:
            raise UnavailableError(f"disk.path: {error}") from error
        return self._disk_book(self.store, index)

    def _disk_book(self, store: DiskStore, index: int) -> DiskBook:
        return DiskBook(
            PoolId(Tier.DISK),
            index,
            self.spec.disk_bytes,
            self._policy(Tier.DISK, self._facts(index)),
            store.pages_per_block,
            store.capacity_blocks,
        )

    def _restore(self) -> None:
        """What the disk still has becomes known, oldest first, so that the order of eviction survives a restart."""
        disk = self.directory.state.disk
        if disk is None or self.recovered is None:
            return
        by_space: dict[bytes, list[RecoveredRun]] = {}
        for run in self.recovered.runs:
            by_space.setdefault(run.fingerprint, []).append(run)
        for runs in by_space.values():
            self._restore_space(disk, runs)
        if len(by_space) > 1:
            # Namespaces were restored one after the other; the policy's order is by time over all of them.
            rows = np.flatnonzero(self.directory.blocks.slot[disk.index] != NO_SLOT)
            times = self.directory.blocks.last_access[rows]
            disk.policy.touched(rows[np.argsort(times, kind="stable")], float(times.max(initial=0.0)))
        point("start.restored")
        _log.info("disk tier: %d blocks found, %d segments set aside", len(self.recovered), len(self.recovered.aside))

    def _restore_space(self, disk: DiskBook, runs: list[RecoveredRun]) -> None:
        """One namespace's blocks, in the order in which they were stored. Of doubles the older is deleted, and so
        is what sequences had for themselves.

        The store may hold more than the tier's room: blocks evicted just before a crash are still there. All become
        known, for they lie on disk anyway, and which of them matter least is the policy's to say when room is needed.
        """
        fingerprint, block_bytes = runs[0].fingerprint, runs[0].block_bytes
        space = self.directory.add_space_by(fingerprint, block_bytes, len(runs[0].keys[0]))
        keys = [key for run in runs for key in run.keys]
        parents = [parent for run in runs for parent in run.parents]
        segments = [run.segment for run in runs for _ in run.keys]
        checksums = np.concatenate([run.checksums for run in runs]).tolist()
        stored_at = np.concatenate([run.stored_at for run in runs])
        order = np.argsort(stored_at, kind="stable").tolist()
        newest = {keys[i]: i for i in order}
        kept = [i for i in order if newest[keys[i]] == i and parents[i] != PRIVATE_PARENT]
        staying = set(kept)
        disk.to_delete += [(fingerprint, keys[i], segments[i]) for i in order if i not in staying]
        self.directory.restore(
            space,
            [keys[i] for i in kept],
            [parents[i] for i in kept],
            [segments[i] for i in kept],
            [checksums[i] for i in kept],
            [float(stored_at[i]) for i in kept],
        )

    # ------------------------------------------------------------------------------------------------ order

    def reorder(self, tiers: Sequence[Tier], policy: Callable[[Tier, PoolFacts], Policy]) -> None:
        """The pools of `tiers` are ordered by new policies from now on, which take over the order of the old ones. Under
        the lock; linear in the blocks there. All change or, when this raises, none."""
        books = [book for book in self.directory.books if book.id.tier in tiers]
        fresh = [policy(book.id.tier, self._facts(book.index)) for book in books]
        for book, new in zip(books, fresh, strict=True):
            succeed(book.policy, new, self.directory.state.clock.now())
        for book, new in zip(books, fresh, strict=True):
            book.policy = new

    def why_too_small(self, tier: Tier, capacity_bytes: int) -> str:
        """Why no pool of `tier` can have this size while it runs; empty when it can, or there is no such pool."""
        for book in self.directory.books:
            if book.id.tier is not tier:
                continue
            if isinstance(book, MappedBook):
                if capacity_bytes < book.table.extent_bytes:
                    return (
                        f"{capacity_bytes}: at least {book.table.extent_bytes}, one extent of this pool, while it runs"
                    )
            elif self.store is not None:
                for space in self.directory.state.spaces:
                    if not self.store.capacity_blocks(space.block_bytes, capacity_bytes):
                        return f"{capacity_bytes}: no block of {space.block_bytes} bytes fits the segments there are"
        return ""

    # ------------------------------------------------------------------------------------------------ extents

    def commit_extent(self, pool: int, extent: int, slot_bytes: int) -> None:
        """Back an extent and its headers with memory. May take milliseconds: not under the lock.

        Raises ResourceExhaustedError when the host or device has no more, UnavailableError.
        """
        headers = self.directory.state.mapped(pool).headers
        if headers is not None:
            headers.commit_extent(extent, slot_bytes)
        if pool == self.cpu_index:
            self.cpu.commit_extent(extent)
        else:
            self.device_pools[pool].commit_extent(extent)

    def release_extent(self, pool: int, extent: int) -> None:
        """Give an empty extent's memory back to the host or device."""
        if pool == self.cpu_index:
            self.cpu.release_extent(extent)
        else:
            self.device_pools[pool].release_extent(extent)

    # ------------------------------------------------------------------------------------------------ bytes

    @property
    def cpu_array(self) -> NDArray[np.uint8]:
        return self.cpu.array

    def region_of(self, pool: int) -> SharedRegion:
        """A mapped pool's shared memory. Raises InvalidArgumentError where the host cannot address it (CUDA)."""
        if pool == self.cpu_index:
            return self.cpu.region
        found = self.device_pools.get(pool)
        if not isinstance(found, HostPool):
            raise InvalidArgumentError("pool", f"{pool} is no memory of the host")
        return found.region

    def device_of(self, pool: int) -> Device:
        return self.device_pools[pool].device

    def read_device_memory(self, pool: int) -> MemoryReading | None:
        """Our pool against what it and the device's free memory make together; None where the host's figures say it."""
        device_pool = self.device_pools[pool]
        free = device_pool.device.free_bytes()
        if free is None:
            return None
        held = device_pool.committed_bytes
        return MemoryReading(f"{device_pool.device.kind}:{device_pool.device.index}", free + held, held)

    def kinds(self) -> Sequence[str]:
        """Kind of each pool, in order: "host", "cuda" or "disk"."""
        kinds = [self.device_pools[index].device.kind for index in sorted(self.device_pools)]
        return [*kinds, "host", *(["disk"] if self.store is not None else [])]

    @property
    def worth_keeping(self) -> bool:
        """The CPU tier holds a block that the next daemon may serve."""
        blocks = self.directory.blocks
        return bool(((blocks.slot[self.cpu_index] != NO_SLOT) & (blocks.private == 0)).any())

    def close(self, *, clean: bool = True, keep: bool = False) -> None:
        """Give everything back, but for the CPU tier's regions with `keep`. The lanes must have ended."""
        for device in self.devices:
            device.close()
        if hasattr(self, "frozen"):
            self.frozen.close()
        for book in getattr(getattr(self, "directory", None), "books", []):
            if isinstance(book, MappedBook) and book.headers is not None:
                book.headers.close(unlink=not (keep and book.id.tier is Tier.CPU))
        if hasattr(self, "cpu"):
            self.cpu.close(keep=keep)
        if self.store is not None:
            self.store.close(clean=clean)
