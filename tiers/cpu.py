"""The CPU tier's bytes: one region of shared memory, extents committed and page-locked when first carved."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.device.base import Device, Registration
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.numa import bind_to_node
from hybridkv.tiers.pools import extent_bytes_for
from hybridkv.tiers.shm import SharedRegion

_log = logging.getLogger(__name__)


class CpuPool:
    """A file on shared memory that workers map. An unused tier costs nothing. Thread-safe per extent."""

    def __init__(
        self,
        path: Path,
        capacity_bytes: int,
        *,
        devices: Sequence[Device] = (),
        page_lock: str = "auto",
        huge_pages: bool = False,
        numa_node: int | None = None,
        region: SharedRegion | None = None,
    ) -> None:
        """`page_lock`: "auto" locks for devices that need it and goes on when that fails, "on" fails then, "off" never.
        `region`: what a daemon before this one left at `path`, this pool's from now on; None: a new one is made."""
        self.extent_bytes = extent_bytes_for(capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self._devices = [] if page_lock == "off" else list(devices)
        self._required = page_lock == "on"
        self.page_lock_failures: list[str] = []
        self._committed: set[int] = set()
        self.region = region or SharedRegion.create(path, capacity_bytes, huge_pages=huge_pages)
        if region is not None and huge_pages:
            region.request_huge_pages()
        self.numa_failure = "" if numa_node is None else bind_to_node(self.region.array, numa_node)
        """Why the memory does not come from the node asked for; empty when it does, or none was asked for."""
        if self.numa_failure:
            _log.warning("cpu.numa_node: %s", self.numa_failure)

    def __repr__(self) -> str:
        return f"CpuPool({self.capacity_bytes} bytes, {self.region!r})"

    @property
    def array(self) -> NDArray[np.uint8]:
        return self.region.array

    def commit_extent(self, extent: int) -> None:
        """Back the extent with memory and page-lock it. Already committed: nothing happens.

        Raises ResourceExhaustedError, UnavailableError.
        """
        if extent in self._committed:
            return
        self.region.commit(extent * self.extent_bytes, self.extent_bytes)
        self._lock_pages(extent)
        self._committed.add(extent)

    def adopt_extents(self, extents: Collection[int]) -> None:
        """The memory of these is there since a daemon before this one; that of all others goes back to the host.

        Raises as `commit_extent` when, against that, some is missing.
        """
        for extent in range(self.capacity_bytes // self.extent_bytes):
            if extent not in extents:
                self.region.release(extent * self.extent_bytes, self.extent_bytes)
        # Asking for what is there takes milliseconds an extent: only where the sum says that something is missing.
        if self.region.committed_bytes() < len(extents) * self.extent_bytes:
            for extent in extents:
                self.region.commit(extent * self.extent_bytes, self.extent_bytes)
        for extent in extents:
            self._lock_pages(extent)
            self._committed.add(extent)

    def _lock_pages(self, extent: int) -> None:
        start = extent * self.extent_bytes
        for device in self._devices:
            answer = device.register_host(self.region.array, start, self.extent_bytes)
            if answer.outcome is Registration.FAILED:
                self._note_failure(device, answer.reason)

    def _note_failure(self, device: Device, reason: str) -> None:
        if self._required:
            raise UnavailableError(f"page-locking for {device!r} failed: {reason}")
        if reason not in self.page_lock_failures:
            _log.warning("page-locking for %r failed, copies take the slow path: %s", device, reason)
            self.page_lock_failures.append(reason)

    def release_extent(self, extent: int) -> None:
        """Give an empty extent's memory back to the host."""
        self._committed.discard(extent)
        start = extent * self.extent_bytes
        for device in self._devices:
            device.unregister_host(self.region.array, start, self.extent_bytes)
        self.region.release(start, self.extent_bytes)

    def close(self, *, keep: bool = False) -> None:
        """Drop the mapping, and the file unless `keep`. May be called again."""
        for device in self._devices:
            for extent in range(self.capacity_bytes // self.extent_bytes):
                device.unregister_host(self.region.array, extent * self.extent_bytes, self.extent_bytes)
        if not self.region.closed:
            if not keep:
                self.region.unlink()
            self.region.close()
