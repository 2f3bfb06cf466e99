"""What a dead daemon left of the CPU tier: opened, judged and surveyed. Nothing of it is changed here.

Whatever is not plainly of our making and of our kind is refused as a whole: FailedPreconditionError says why, and the caller
discards it. What a single slot says is judged by whoever takes it over (`migration/takeover.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.extents import ExtentTable
from hybridkv.tiers.headers import HeaderRegion
from hybridkv.tiers.pools import BLOCK_ALIGN_BYTES, MIN_BLOCK_BYTES, PoolId
from hybridkv.tiers.process import boot_id, pid_namespace
from hybridkv.tiers.shm import SharedRegion
from hybridkv.tiers.states import Tier

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """The two regions of the CPU tier, open for writing, and what a look at their tables found."""

    data: SharedRegion
    headers: HeaderRegion
    survey: "Survey"

    @classmethod
    def open(cls, data_path: Path, headers_path: Path, table: ExtentTable, *, never_mapped: bool = False) -> Self:
        """Those of a daemon of this boot with a pool like `table`, which is not changed; with `never_mapped` only if no worker
        was ever handed them, for what a process has mapped it keeps. Raises FailedPreconditionError."""
        data = SharedRegion.reopen(data_path)
        try:
            region = SharedRegion.reopen(headers_path)
            try:
                headers = HeaderRegion(region)
                _check_kind(headers, data, table)
                if never_mapped and not headers.layout.never_mapped:
                    raise FailedPreconditionError("daemon.isolation is strict, and workers of before may map it")
                return cls(data, headers, Survey.of(headers, table))
            except BaseException:
                region.close()
                raise
        except BaseException:
            data.close()
            raise

    def close(self) -> None:
        self.headers.close(unlink=False)
        self.data.close()


@dataclass(frozen=True, slots=True)
class Survey:
    """`carved`: extents and their slot sizes. `sealed`: headers that say readable, and the offsets of their slots; `touched`,
    likewise, of the slots that somebody held or may still touch: their owners (see `header_format.py`), and whether others
    than the owner may. `sessions`: entries of the session table in use."""

    carved: tuple[tuple[int, int], ...]
    sealed: Indices
    sealed_at: Indices
    touched: Indices
    touched_at: Indices
    owners: NDArray[np.uint16]
    shared: NDArray[np.bool_]
    sessions: Indices

    @classmethod
    def of(cls, headers: HeaderRegion, table: ExtentTable) -> Self:
        """Raises FailedPreconditionError when the extent table makes no sense, or when nobody can say who holds a slot."""
        carved = _carved(headers, table)
        found: list[list[NDArray[np.int64]]] = [[], [], [], []]
        for extent, size in carved:
            first, count = table.geometry(extent, size)
            start = extent * headers.slots_per_extent
            rows = headers.headers[start : start + count]
            readable = np.flatnonzero((rows["generation"] % 2 == 0) & (rows["generation"] != 0))
            held = np.flatnonzero((rows["owner"] != 0) | (rows["holders"] != 0) | (rows["haunts"] != 0))
            for parts, part in zip(found, (readable, readable, held, held), strict=True):
                parts.append(part)
            found[0][-1], found[1][-1] = start + readable, first + readable * size
            found[2][-1], found[3][-1] = start + held, first + held * size
        sealed, sealed_at, touched, touched_at = (np.concatenate([*parts, np.empty(0, np.int64)]) for parts in found)
        rows = headers.headers[touched]
        shared = (rows["holders"] != 0) | (rows["haunts"] != 0)
        sessions = np.flatnonzero(headers.sessions["state"] == 1)
        survey = cls(carved, sealed, sealed_at, touched, touched_at, rows["owner"], shared, sessions)
        survey._check_owners(headers)
        return survey

    def _check_owners(self, headers: HeaderRegion) -> None:
        """A worker of another pid namespace has no pid that means anything here: when it ends cannot be known."""
        entries = headers.sessions[self.sessions]
        unknown = self.sessions[entries["pid"] == 0]
        if len(unknown):
            theirs = int(np.count_nonzero(self.shared | np.isin(self.owners, unknown + 1)))
            if theirs:
                raise FailedPreconditionError(f"{theirs} slots may be touched by a process that cannot be watched")


def _carved(headers: HeaderRegion, table: ExtentTable) -> tuple[tuple[int, int], ...]:
    """Extents that are carved. An odd epoch is that of one that is not, or was in the middle of it."""
    extents = headers.extents
    carved = []
    for extent in np.flatnonzero(extents["epoch"] % 2 == 0).tolist():
        size, count = int(extents["slot_bytes"][extent]), int(extents["slot_count"][extent])
        sound = MIN_BLOCK_BYTES <= size <= table.extent_bytes and size % BLOCK_ALIGN_BYTES == 0
        if not sound or count != table.extent_bytes // size or not extents["epoch"][extent]:
            raise FailedPreconditionError(f"extent {extent}: {count} slots of {size} bytes make no sense")
        carved.append((extent, size))
    return tuple(carved)


def _check_kind(headers: HeaderRegion, data: SharedRegion, table: ExtentTable) -> None:
    layout = headers.layout
    if layout.boot_id != boot_id() or layout.boot_id == bytes(16):
        raise FailedPreconditionError("it is of another boot of this host")
    if layout.pid_namespace != pid_namespace():
        raise FailedPreconditionError("its daemon ran in another pid namespace: who still maps it cannot be known")
    if layout.pool != PoolId(Tier.CPU):
        raise FailedPreconditionError(f"it is of the pool {layout.pool}")
    if (layout.capacity_bytes, layout.extent_bytes) != (table.capacity_bytes, table.extent_bytes):
        raise FailedPreconditionError(
            f"cpu.capacity_bytes: it has {layout.capacity_bytes} bytes in extents of {layout.extent_bytes}, "
            f"the config says {table.capacity_bytes} in extents of {table.extent_bytes}"
        )
    if data.nbytes != layout.capacity_bytes:
        raise FailedPreconditionError(f"{data.path}: {data.nbytes} bytes, its headers say {layout.capacity_bytes}")
