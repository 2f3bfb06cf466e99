"""The worker's mappings of the daemon's memory: per pool a read-only and a read-write view, and the slot headers.

Sealed blocks are read through the read-only mapping, so that a stray write faults instead of corrupting a block that
others read; only slots that were reserved are written, through the other one. Of device memory only the headers are
mapped here; `handles` tell where the bytes are (see `devices.py`). The disk is not here.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from hybridkv.service.side.client import ReceivedRegion
from hybridkv.service.side.handles import handles_from_extra
from hybridkv.service.side.protocol import RegionKind
from hybridkv.tiers.device.base import AllocationHandle
from hybridkv.tiers.errors import ExpiredError, FailedPreconditionError, NotFoundError
from hybridkv.tiers.header_reader import HeaderReader
from hybridkv.tiers.shm import SharedRegion


@dataclass(frozen=True, slots=True)
class _Pool:
    """`read_only` and `read_write` are None for device memory."""

    headers: HeaderReader
    read_only: npt.NDArray[np.uint8] | None = None
    read_write: npt.NDArray[np.uint8] | None = None


class WorkerRegions:
    """What one process maps for one session. Reads are thread-safe; a forked child has none of it (`forked`)."""

    def __init__(self, received: Iterable[ReceivedRegion], on_device: Iterable[int] = ()) -> None:
        """Map everything and take the descriptors over, also when this raises.

        Raises FailedPreconditionError when a region is not what it claims to be, or a pool lacks one of its three,
        MalformedError when handles are none. Pools in `on_device` have headers and nothing
        else here: those of this very process.
        """
        self._pid = os.getpid()
        self._closed = False
        offered = list(received)
        with ExitStack() as stack:
            for region in offered:
                stack.callback(region.close)
            self.handles = handles_by_pool(offered)
            mapped: dict[tuple[int, RegionKind], SharedRegion] = {}
            for region in offered:
                if not region.kind.has_descriptor:
                    continue
                if (region.pool, region.kind) in mapped:
                    raise FailedPreconditionError(f"pool {region.pool}: {region.kind} was handed over twice")
                writable = region.kind is RegionKind.DATA_RW
                mapping = SharedRegion.attach(region.take_fd(), region.nbytes, writable)
                stack.callback(mapping.close)
                mapped[region.pool, region.kind] = mapping
            on_device = set(self.handles) | set(on_device)
            self._pools = {
                pool: _pool(pool, mapped, pool in on_device) for pool in sorted({pool for pool, _ in mapped})
            }
            self._mappings = tuple(mapped.values())
            stack.pop_all()

    @property
    def pools(self) -> tuple[int, ...]:
        """Indices of the pools whose bytes are mapped."""
        return tuple(number for number, pool in self._pools.items() if pool.read_only is not None)

    def readable(self, pool: int) -> npt.NDArray[np.uint8]:
        """The pool's memory, flat and read-only. Raises NotFoundError when the pool is not mapped, ExpiredError once closed."""
        return _bytes_of(pool, self._of(pool).read_only)

    def read_only(self, pool: int) -> tuple[HeaderReader, npt.NDArray[np.uint8]]:
        """The pool's slot headers and what `readable` gives, in one look."""
        found = self._of(pool)
        return found.headers, _bytes_of(pool, found.read_only)

    def writable(self, pool: int) -> npt.NDArray[np.uint8]:
        """The same memory, writable: for reserved slots only. Raises as `readable` does."""
        return _bytes_of(pool, self._of(pool).read_write)

    def headers(self, pool: int) -> HeaderReader:
        """The pool's slot headers. Raises as `readable` does."""
        return self._of(pool).headers

    def when_unmapped(self, call: Callable[[], None]) -> None:
        """`call` once nothing of this is mapped any more: after `close`, and when the last view is gone. On whatever thread
        dropped that; not at the end of the process, which says it all."""
        left = [len(self._mappings)]

        def one_less() -> None:
            left[0] -= 1
            if not left[0]:
                call()

        for mapping in self._mappings:
            mapping.when_unmapped(one_less)

    def forked(self) -> bool:
        """Whether this is a forked child of the process that mapped the regions: nothing is mapped here."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """Let go of all mappings; each goes when its last view does. May be called again, and in a forked child."""
        self._closed = True
        self._pools = {}
        for mapping in self._mappings:
            mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"WorkerRegions(pools {self.pools}, pid {self._pid})"

    def _of(self, pool: int) -> _Pool:
        if self.forked():
            raise FailedPreconditionError("regions: mapped by the parent of this process; attach again")
        found = self._pools.get(pool)
        if found is None and self._closed:
            raise ExpiredError("regions: they were let go with their session")
        if found is None:
            raise NotFoundError(f"pool {pool} is not mapped; mapped are {self.pools}")
        return found


def handles_by_pool(received: Iterable[ReceivedRegion]) -> dict[int, list[AllocationHandle]]:
    """What device memory was handed over, by pool. Raises MalformedError."""
    return {region.pool: handles_from_extra(region.extra) for region in received if region.kind is RegionKind.CUDA}


def _bytes_of(pool: int, array: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8]:
    if array is None:
        raise FailedPreconditionError(f"pool {pool}: device memory has no array here; take a view")
    return array


def _pool(pool: int, mapped: dict[tuple[int, RegionKind], SharedRegion], on_device: bool) -> _Pool:
    wanted = [RegionKind.HEADERS] if on_device else [RegionKind.DATA_RW, RegionKind.DATA_RO, RegionKind.HEADERS]
    missing = [kind.value for kind in wanted if (pool, kind) not in mapped]
    if missing:
        raise FailedPreconditionError(f"pool {pool}: {', '.join(missing)} was not handed over")
    headers = HeaderReader(mapped[pool, RegionKind.HEADERS])
    if on_device:
        return _Pool(headers)
    read_only = mapped[pool, RegionKind.DATA_RO].array
    read_write = mapped[pool, RegionKind.DATA_RW].array
    smallest = min(read_only.nbytes, read_write.nbytes)
    if smallest < headers.layout.extent_count * headers.layout.extent_bytes:
        raise FailedPreconditionError(f"pool {pool}: {smallest} bytes are less than its headers describe")
    return _Pool(headers, read_only, read_write)
