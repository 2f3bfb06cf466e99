"""Slot headers in shared memory, the writer: the daemon. Workers read them without a call (`header_reader.py`).

Protocol, per slot and per extent: make the counter odd, write, make it even. The stores of one process are seen in
their order on x86-64, and an aligned 8-byte word is never torn; elsewhere call-free reads are not offered.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.errors import InternalError, InvalidArgumentError
from hybridkv.tiers.header_format import (
    FINGERPRINT_BYTES,
    HEADER_DTYPE,
    MAX_KEY_BYTES,
    PAGE_BYTES,
    HeaderLayout,
    PaddedKeys,
    tables,
)
from hybridkv.tiers.points import point
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.process import boot_id, pid_namespace
from hybridkv.tiers.shm import SharedRegion
from hybridkv.tiers.states import BlockState

Indices = npt.NDArray[np.int64]
U64s = npt.NDArray[np.uint64]


class HeaderRegion:
    """The writer. One daemon writes; its callers serialise the calls (the directory's lock), `commit_extent` excepted.

    Index arrays are int64, without duplicates; slot `s` of extent `e` has the header `e * slots_per_extent + s`.
    """

    def __init__(self, region: SharedRegion) -> None:
        """Bind to a region that is formatted already. Raises FailedPreconditionError when its format is unknown."""
        self.region = region
        self.layout = HeaderLayout.parse(region.array[:PAGE_BYTES].tobytes(), region.nbytes)
        self.slots_per_extent = self.layout.slots_per_extent
        self.extents, self.sessions, self.headers = tables(region.array, self.layout)
        self._raw = self.headers.view(f"V{HEADER_DTYPE.itemsize}")
        self._generation: U64s = self.headers["generation"]
        self._epoch: U64s = self.extents["epoch"]
        self._committed_slots = np.zeros(self.layout.extent_count, np.int64)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        pool: PoolId,
        capacity_bytes: int,
        extent_bytes: int,
        daemon_epoch: int,
        created_at: float | None = None,
        never_mapped: bool = False,
    ) -> Self:
        """Make the region's file; only its tables take room. Raises as `SharedRegion.create` and `commit` do."""
        born = time.time() if created_at is None else created_at
        layout = HeaderLayout.of(
            pool, capacity_bytes, extent_bytes, daemon_epoch, born, boot_id(), pid_namespace(), never_mapped
        )
        region = SharedRegion.create(path, layout.total_bytes)
        try:
            region.commit(0, layout.headers_offset)
        except BaseException:
            region.unlink()
            region.close()
            raise
        tables(region.array, layout)[0]["epoch"] = 1  # odd: nothing is carved
        packed = layout.packed()
        region.array[: len(packed)] = np.frombuffer(packed, np.uint8)
        return cls(region)

    def commit_extent(self, extent: int, slot_bytes: int) -> None:
        """Take room for the headers that `extent` needs with slots of this size. May be repeated; not under a lock.

        Room once taken stays: generations must never start again. Raises ResourceExhaustedError, UnavailableError.
        """
        slots = self._slot_count(slot_bytes)
        if self._committed_slots[extent] >= slots:
            return
        start = self.layout.headers_offset + extent * self.slots_per_extent * HEADER_DTYPE.itemsize
        self.region.commit(start, slots * HEADER_DTYPE.itemsize)
        self._committed_slots[extent] = max(slots, self._committed_slots[extent])

    def take_over(self, daemon_epoch: int, never_mapped: bool = False) -> None:
        """The region is the daemon's of this epoch from now on, which hands its memory to nobody if `never_mapped`. Extents
        that were being carved or freed are free."""
        self.region.commit(0, self.layout.headers_offset)
        self.layout = replace(
            self.layout, daemon_epoch=daemon_epoch, never_mapped=never_mapped and self.layout.never_mapped
        )
        packed = self.layout.packed()
        self.region.array[: len(packed)] = np.frombuffer(packed, np.uint8)
        free = self._epoch % 2 == 1
        for name in ("slot_bytes", "slot_count", "state"):
            self.extents[name][free] = 0

    def set_extent(self, extent: int, *, slot_bytes: int, carved: bool) -> None:
        """Carve `extent` (epoch becomes even, its slots odd) or free it (epoch becomes odd; `slot_bytes` is ignored).

        Raises InternalError when it is in that state already, lacks committed headers, or holds a sealed slot.
        """
        epoch = int(self._epoch[extent])
        if (epoch % 2 == 0) == carved:
            raise InternalError(f"extent {extent}: epoch {epoch} and carved={carved}")
        slots = self._slot_count(slot_bytes if carved else int(self.extents["slot_bytes"][extent]))
        first = extent * self.slots_per_extent
        generations = self._generation[first : first + slots]
        if carved:
            if self._committed_slots[extent] < slots:
                raise InternalError(f"extent {extent}: headers of {slots} slots are not committed")
            generations[generations == 0] = 1
        if np.any(generations % 2 == 0):
            raise InternalError(f"extent {extent}: holds sealed slots")
        if not carved:
            self._epoch[extent] = epoch + 1
        self.extents["slot_bytes"][extent] = slot_bytes if carved else 0
        self.extents["slot_count"][extent] = slots if carved else 0
        self.extents["state"][extent] = int(carved)
        if carved:
            self._epoch[extent] = epoch + 1

    def publish(
        self,
        indices: Indices,
        *,
        fingerprint: bytes,
        keys: Sequence[bytes] | PaddedKeys,
        parents: Sequence[bytes] | PaddedKeys,
        lengths: U64s,
        checksums: U64s,
        sealed_at: npt.NDArray[np.float64],
        access_count: npt.NDArray[np.float32],
        last_access: npt.NDArray[np.float64],
        checked: npt.NDArray[np.uint8],
        private: npt.NDArray[np.uint8],
    ) -> None:
        """Fill the headers, then make them readable. An empty parent means none. Raises InternalError if one is sealed.

        Raises InvalidArgumentError on a fingerprint of other than 32 bytes or a key beyond 64; nothing is written then.
        """
        generations = self._expect(indices, parity=1)
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise InvalidArgumentError("fingerprint", f"{len(fingerprint)} bytes instead of {FINGERPRINT_BYTES}")
        entries = np.zeros(len(indices), HEADER_DTYPE)
        entries["key"], entries["key_bytes"] = _padded("keys", keys, len(indices))
        entries["parent"], entries["parent_bytes"] = _padded("parents", parents, len(indices))
        entries["generation"] = generations
        entries["extent_epoch"] = self._epoch[indices // self.slots_per_extent]
        entries["state"] = BlockState.SEALED
        entries["fingerprint"] = np.void(fingerprint)
        entries["length"], entries["checksum"] = lengths, checksums
        entries["sealed_at"], entries["last_access_at"] = sealed_at, last_access
        entries["access_count"] = access_count
        entries["checked"], entries["private"] = checked, private
        # The generation's own word is written as it was: odd, so that nobody reads the rest meanwhile.
        self._raw[indices] = entries.view(self._raw.dtype)
        point("headers.fields_written")
        self._generation[indices] = generations + np.uint64(1)
        point("headers.published")

    def retire(self, indices: Indices) -> None:
        """Make sealed slots unreadable, before anyone may write to them. Raises InternalError if one is not sealed."""
        self._generation[indices] = self._expect(indices, parity=0) + np.uint64(1)
        point("headers.retired")
        self.headers["state"][indices] = BlockState.FREE

    def generations(self, indices: Indices) -> U64s:
        """The slots' generations now."""
        return self._generation[indices]

    def note_access(
        self, indices: Indices, counts: npt.NDArray[np.float32], last_access: npt.NDArray[np.float64]
    ) -> None:
        """Overwrite the access history: decayed counts, seconds since 1970. Advisory: read without a re-check."""
        self.headers["access_count"][indices] = counts
        self.headers["last_access_at"][indices] = last_access

    def set_holders(self, indices: Indices, counts: npt.NDArray[np.uint32]) -> None:
        """Overwrite how many leases hold each slot. Advisory, as above."""
        self.headers["holders"][indices] = counts

    def learn_checksums(self, indices: Indices, checksums: U64s, checked: npt.NDArray[np.uint8]) -> None:
        """Sealed slots whose checksum became known after they were published."""
        self.headers["checksum"][indices] = checksums
        self.headers["checked"][indices] = checked

    def mark_removed(self, indices: Indices) -> None:
        """Sealed slots of removed blocks, which stay readable for those who lease them: not to be taken over."""
        self.headers["state"][indices] = BlockState.REMOVED

    def set_owner(self, indices: Indices, owner: int) -> None:
        """Slots that a worker was told to write: `owner` is one more than its entry in the session table, 0: none."""
        self.headers["owner"][indices] = owner

    def set_haunts(self, indices: Indices, counts: npt.NDArray[np.uint32]) -> None:
        """How many lapsed holders may still touch each slot."""
        self.headers["haunts"][indices] = counts

    def put_session(self, entry: int, session: int, pid: int, start_time: int, boot: bytes, epoch: int) -> None:
        """Fill an entry of the session table, so that a later daemon can tell whether the process still lives."""
        row = self.sessions[entry : entry + 1]
        row["session"], row["pid"], row["start_time"], row["epoch"] = session, pid, start_time, epoch
        row["boot_id"] = np.void(boot)
        row["state"] = 1

    def clear_session(self, entry: int) -> None:
        """Empty an entry of the session table."""
        self.sessions["state"][entry] = 0

    def close(self, *, unlink: bool) -> None:
        """Drop the mapping, and the file with `unlink`."""
        if unlink:
            self.region.unlink()
        self.region.close()

    def _slot_count(self, slot_bytes: int) -> int:
        slots = self.layout.extent_bytes // slot_bytes
        if not 1 <= slots <= self.slots_per_extent:
            raise InternalError(f"slots of {slot_bytes} bytes in an extent of {self.layout.extent_bytes}")
        return slots

    def _expect(self, indices: Indices, *, parity: int) -> U64s:
        generations = self._generation[indices]
        wrong = (generations % 2 != parity) | (generations == 0)
        if np.any(wrong):
            raise InternalError(f"header {indices[np.argmax(wrong)]}: generation is not {('even', 'odd')[parity]}")
        return generations


def _padded(field: str, values: Sequence[bytes] | PaddedKeys, count: int) -> PaddedKeys:
    if isinstance(values, PaddedKeys):
        return values
    widths = np.fromiter(map(len, values), np.int64, len(values))
    if len(values) != count or (count and widths.max() > MAX_KEY_BYTES):
        raise InvalidArgumentError(field, f"{len(values)} of {count} given; at most {MAX_KEY_BYTES} bytes each")
    return PaddedKeys(np.array(values, f"S{MAX_KEY_BYTES}").view(f"V{MAX_KEY_BYTES}"), widths.astype(np.uint16))
