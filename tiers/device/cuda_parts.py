"""How a batch becomes work for a CUDA stream: parts, each small enough to be in flight as a whole.

- *Direct* parts copy between the pool and page-locked host memory, one copy per run of neighbours.
- *Kernel* parts take small scattered blocks: a kernel gathers them in device memory, another scatters them. Where the
  host's side is one run it is one copy; else the kernel itself reaches over the link.
- *Staged* parts serve host memory that is not page-locked, and what kernels cannot reach: the CPU moves the bytes
  between the host's memory and a page-locked buffer.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import Bytes, Direction, Offsets
from hybridkv.tiers.device.batch import Batch, Runs, changes, join_runs
from hybridkv.tiers.device.cuda_host import NOT_REGISTERED, Registrations
from hybridkv.tiers.device.cuda_pool import CudaPool
from hybridkv.tiers.device.cuda_rows import Upload, must_rows_of, rows_of
from hybridkv.tiers.device.cuda_runtime import CudaRuntime
from hybridkv.tiers.device.cuda_staging import StagingBuffer, StagingRing
from hybridkv.tiers.device.memcopy import copy_runs
from hybridkv.tiers.errors import InvalidArgumentError

SMALL_BYTES = 64 << 10  # from here up one copy per run reaches link speed
FEW_COPIES = 8  # not worth a gather
COPIES_PER_PART = 256


class Part(Protocol):
    """A piece of a batch. `issue` runs on the issuing thread; `finish` once the stream has passed it."""

    def issue(self, runtime: CudaRuntime, device: int, stream: int) -> None: ...

    def finish(self) -> None: ...

    def give_back(self) -> None:
        """Return what it borrowed; after `finish`, or instead of it when issuing failed and the stream has passed."""


@dataclass(frozen=True, slots=True)
class DirectPart:
    """Copies between addresses."""

    copies: Runs

    def issue(self, runtime: CudaRuntime, device: int, stream: int) -> None:
        for destination, source, nbytes in self.copies.rows():
            runtime.copy_async(device, destination, source, nbytes, stream)

    def finish(self) -> None:
        return None

    def give_back(self) -> None:
        return None


@dataclass(slots=True)
class BufferedPart:
    """Blocks of `nbytes`, at most as many as fit the staging buffer that it borrows when issued."""

    direction: Direction
    pool: CudaPool
    device_offsets: Offsets
    host: Bytes
    host_offsets: Offsets
    nbytes: int
    ring: StagingRing
    buffer: StagingBuffer | None = field(default=None, init=False)

    def give_back(self) -> None:
        if self.buffer is not None:
            self.ring.give_back(self.buffer)
            self.buffer = None

    @property
    def total(self) -> int:
        return len(self.host_offsets) * self.nbytes

    @property
    def packed(self) -> Offsets:
        """Where the blocks lie in the buffer."""
        return np.arange(len(self.host_offsets), dtype=np.int64) * self.nbytes


@dataclass(slots=True)
class KernelPart(BufferedPart):
    """Small blocks of page-locked memory. The CPU touches none of their bytes.

    `one_run`: on the host's side they are one run in one registration, in this order.
    """

    one_run: bool

    def issue(self, runtime: CudaRuntime, device: int, stream: int) -> None:
        self.buffer = buffer = self.ring.take()
        host = self.host_offsets + self.host.ctypes.data
        device_rows = must_rows_of(self.pool.addresses_of(self.device_offsets), self.nbytes)
        host_rows = None if self.one_run else must_rows_of(host, self.nbytes)
        sides = [device_rows] if host_rows is None else [device_rows, host_rows]
        upload = Upload(runtime, device, stream, buffer, sides)
        if self.direction is Direction.TO_DEVICE:
            if host_rows is None:
                runtime.copy_async(device, buffer.device_address, int(host[0]), self.total, stream)
            else:
                upload.move(runtime.gather, 1)
            upload.move(runtime.scatter, 0)
            return
        upload.move(runtime.gather, 0)
        if host_rows is None:
            runtime.copy_async(device, int(host[0]), buffer.device_address, self.total, stream)
        else:
            upload.move(runtime.scatter, 1)

    def finish(self) -> None:
        return None


@dataclass(slots=True)
class StagedPart(BufferedPart):
    """Blocks that the CPU moves on the host's side; `by_kernel`: a kernel moves them on the device's."""

    by_kernel: bool

    def issue(self, runtime: CudaRuntime, device: int, stream: int) -> None:
        self.buffer = buffer = self.ring.take()
        if self.direction is Direction.TO_DEVICE:
            copy_runs(buffer.host, self.host, join_runs(self.packed, self.host_offsets, self.nbytes))
        if not self.by_kernel:
            for destination, source, nbytes in self._device_copies(buffer).rows():
                runtime.copy_async(device, destination, source, nbytes, stream)
            return
        rows = must_rows_of(self.pool.addresses_of(self.device_offsets), self.nbytes)
        upload = Upload(runtime, device, stream, buffer, [rows])
        if self.direction is Direction.TO_DEVICE:
            runtime.copy_async(device, buffer.device_address, buffer.host_address, self.total, stream)
            upload.move(runtime.scatter, 0)
        else:
            upload.move(runtime.gather, 0)
            runtime.copy_async(device, buffer.host_address, buffer.device_address, self.total, stream)

    def finish(self) -> None:
        if self.direction is Direction.TO_HOST and self.buffer is not None:
            copy_runs(self.host, self.buffer.host, join_runs(self.host_offsets, self.packed, self.nbytes))

    def _device_copies(self, buffer: StagingBuffer) -> Runs:
        device, host = self.pool.addresses_of(self.device_offsets), self.packed + buffer.host_address
        to, at = (device, host) if self.direction is Direction.TO_DEVICE else (host, device)
        return join_runs(to, at, self.nbytes, changes(self.pool.allocations_of(self.device_offsets)))


@dataclass(frozen=True, slots=True)
class Plan:
    """`staged`: the CPU moves bytes on the host's side, so the stream's order alone does not cover them."""

    staged: bool
    parts: list[Part]


def plan(batch: Batch, registrations: Registrations, ring: StagingRing, kernels_reach_host: bool) -> Plan:
    """Decide how the batch goes. Raises InvalidArgumentError for pools of another kind."""
    pool = batch.pool
    if not isinstance(pool, CudaPool):
        raise InvalidArgumentError("pool", f"{type(pool).__name__}: a CUDA stream copies CUDA pools")
    if batch.direction is Direction.ON_DEVICE:
        return Plan(False, list(_direct(_on_device_copies(pool, batch))))
    labels = registrations.labels(batch.host, batch.other_offsets, batch.nbytes)
    registered = bool((labels != NOT_REGISTERED).all())
    copies = _host_copies(pool, batch, changes(labels))
    if registered and (len(copies.lengths) <= FEW_COPIES or int(copies.lengths.mean()) >= SMALL_BYTES):
        return Plan(False, list(_direct(copies)))
    small = batch.nbytes < SMALL_BYTES and batch.nbytes <= ring.nbytes
    by_kernel = small and rows_of(pool.addresses_of(batch.device_offsets), batch.nbytes) is not None
    host_by_kernel = rows_of(batch.other_offsets + batch.host.ctypes.data, batch.nbytes) is not None
    if registered and kernels_reach_host and by_kernel and host_by_kernel:
        return Plan(False, list(_by_kernel(pool, batch, ring, labels)))
    return Plan(True, list(_staged(pool, batch, ring, by_kernel)))


def _direct(copies: Runs) -> Iterator[DirectPart]:
    for first in range(0, len(copies.lengths), COPIES_PER_PART):
        yield DirectPart(Runs(*(column[first : first + COPIES_PER_PART] for column in copies)))


def _host_copies(pool: CudaPool, batch: Batch, breaks: npt.NDArray[np.bool_]) -> Runs:
    device = pool.addresses_of(batch.device_offsets)
    host = batch.other_offsets + batch.host.ctypes.data
    to, at = (device, host) if batch.direction is Direction.TO_DEVICE else (host, device)
    return join_runs(to, at, batch.nbytes, breaks | changes(pool.allocations_of(batch.device_offsets)))


def _on_device_copies(pool: CudaPool, batch: Batch) -> Runs:
    source = batch.other
    if not isinstance(source, CudaPool):
        raise InvalidArgumentError("other", f"{type(source).__name__}: a CUDA stream copies CUDA pools")
    breaks = changes(pool.allocations_of(batch.device_offsets)) | changes(source.allocations_of(batch.other_offsets))
    return join_runs(
        pool.addresses_of(batch.device_offsets), source.addresses_of(batch.other_offsets), batch.nbytes, breaks
    )


def _by_kernel(pool: CudaPool, batch: Batch, ring: StagingRing, labels: npt.NDArray[np.int64]) -> Iterator[KernelPart]:
    order = np.argsort(batch.other_offsets)
    device_offsets, host_offsets, labels = batch.device_offsets[order], batch.other_offsets[order], labels[order]
    one_run = bool((np.diff(host_offsets) == batch.nbytes).all())
    edges = np.union1d(np.arange(0, len(order), ring.nbytes // batch.nbytes), [len(order)])
    if one_run:  # parted where a copy would span two registrations; kernels need not care
        edges = np.union1d(edges, np.flatnonzero(changes(labels)))
    for first, end in itertools.pairwise(edges.tolist()):
        mine = slice(first, end)
        yield KernelPart(
            batch.direction, pool, device_offsets[mine], batch.host, host_offsets[mine], batch.nbytes, ring, one_run
        )


def _staged(pool: CudaPool, batch: Batch, ring: StagingRing, by_kernel: bool) -> Iterator[StagedPart]:
    device_offsets, host_offsets, nbytes = _pieces(batch, ring.nbytes)
    count = min(ring.nbytes // nbytes, len(device_offsets) if by_kernel else COPIES_PER_PART)
    for first in range(0, len(device_offsets), count):
        mine = slice(first, first + count)
        yield StagedPart(
            batch.direction, pool, device_offsets[mine], batch.host, host_offsets[mine], nbytes, ring, by_kernel
        )


def _pieces(batch: Batch, limit: int) -> tuple[Offsets, Offsets, int]:
    """Blocks larger than a buffer, cut into equal pieces that fit one."""
    count = -(-batch.nbytes // limit)
    while batch.nbytes % count:
        count += 1
    nbytes = batch.nbytes // count
    steps = np.arange(count, dtype=np.int64) * nbytes
    return (
        (batch.device_offsets[:, None] + steps).ravel(),
        (batch.other_offsets[:, None] + steps).ravel(),
        nbytes,
    )
