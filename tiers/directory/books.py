"""One pool's side of the directory: room, slots in use, the policy that orders its blocks, and its headers.

`MappedBook` keeps slots of memory that workers map, `DiskBook` keeps pages. No lock and no I/O in either.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.quotas import Charges
from hybridkv.tiers.extents import ExtentTable, SlotUse
from hybridkv.tiers.headers import HeaderRegion
from hybridkv.tiers.pools import SLOT_DTYPE, PoolId
from hybridkv.tiers.replacement import NO_ROW, Policy, Rows
from hybridkv.tiers.states import Tier

Slots = NDArray[np.int64]


class Book(Protocol):
    """What the directory asks of a pool. `size` is a block size in bytes; slots are int64 arrays."""

    id: PoolId
    index: int
    policy: Policy
    capacity_bytes: int

    @property
    def used_bytes(self) -> int: ...
    def capacity_slots(self, size: int) -> int: ...
    def free_slots(self, size: int) -> int: ...
    def take(self, size: int, rows: Rows, use: SlotUse, *, limited: bool = True) -> Slots: ...
    def settle(self, size: int, rows: Rows, slots: Slots) -> None: ...
    def give(self, size: int, slots: Slots, use: SlotUse, rows: Rows) -> None: ...
    def check(self) -> list[str]: ...


class MappedBook:
    """A pool of slots in memory (CPU or GPU). `headers` is None where workers cannot see translations."""

    def __init__(
        self, pool: PoolId, index: int, table: ExtentTable, policy: Policy, headers: HeaderRegion | None = None
    ) -> None:
        self.id = pool
        self.index = index
        self.table = table
        self.policy = policy
        self.headers = headers
        self._heritable = headers if pool.tier is Tier.CPU else None
        """Headers that tell the next daemon who may still touch a slot; device memory ends with the daemon."""
        self.capacity_bytes = table.capacity_bytes
        self.lane_slots: dict[int, list[int]] = {}
        """Free slots that belong to the lanes, by block size; outside the watermarks."""
        self.lane_slots_owned: dict[int, int] = {}
        self.charges: Charges | None = None
        """On whose account its slots are; None where the host has no tenants."""
        self._haunted: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"MappedBook({self.id}, {self.table!r})"

    @property
    def used_bytes(self) -> int:
        return self.table.used_bytes

    def capacity_slots(self, size: int) -> int:
        return self.table.capacity_slots(size) - self.lane_slots_owned.get(size, 0)

    def free_slots(self, size: int) -> int:
        return self.table.free_slots(size)

    def take(self, size: int, rows: Rows, use: SlotUse, *, limited: bool = True) -> Slots:
        """Slots for the first of `rows` that fit, the pool and (`limited`) their tenants' quotas."""
        if self.charges is None:
            return self.table.take(size, rows, use)
        rows = self.charges.fitting(rows, size) if limited else rows
        return self._charged(self.table.take(size, rows, use), rows, size)

    def take_in_runs(self, size: int, rows: Rows, use: SlotUse, length: int) -> Slots:
        """Likewise, every `length` rows in adjacent slots where there are such runs."""
        rows = rows if self.charges is None else self.charges.fitting(rows, size)
        return self._charged(self.table.take_in_runs(size, rows, use, length), rows, size)

    def take_at(self, size: int, slots: Slots, rows: Rows, use: SlotUse) -> None:
        """These very slots, which are free, whatever the quotas."""
        self.table.take_at(slots, rows, use)
        self._charged(slots, rows, size)

    def freeze(self, slots: Slots) -> None:
        """Free slots that workers of a daemon before this one may still touch go into quarantine, on nobody's account."""
        self.table.take_at(slots, np.full(len(slots), NO_ROW, np.int64), SlotUse.QUARANTINED)
        if self.charges is not None:
            self.charges.took_for_nobody(self.table.sizes_of(slots))

    def _charged(self, slots: Slots, rows: Rows, size: int) -> Slots:
        if self.charges is not None:
            self.charges.took(self.table.header_indices(slots), rows[: len(slots)], size)
        return slots

    def free(self, slots: Slots) -> None:
        """Taken slots, not of the lanes, are free, and on nobody's account."""
        if self.charges is not None:
            self.charges.gave(self.table.header_indices(slots), self.table.sizes_of(slots))
        self.table.give(slots)

    def settle(self, size: int, rows: Rows, slots: Slots) -> None:
        """Taken slots now hold the sealed blocks `rows`."""
        del size
        self.table.set_use(slots, SlotUse.RESIDENT, rows)

    def give(self, size: int, slots: Slots, use: SlotUse, rows: Rows) -> None:
        """Slots are no longer needed: free, or in quarantine while a lapsed holder may still touch them."""
        del size, use, rows
        if self._haunted:
            haunted = np.fromiter((slot in self._haunted for slot in slots.tolist()), np.bool_, len(slots))
            self.table.set_use(slots[haunted], SlotUse.QUARANTINED)
            slots = slots[~haunted]
        self.free(slots)

    def resize(self, capacity_bytes: int) -> list[int]:
        """See `ExtentTable.resize`."""
        leaving = self.table.resize(capacity_bytes)
        self.capacity_bytes = capacity_bytes
        return leaving

    # ------------------------------------------------------------------------------------------------ quarantine

    def haunt(self, slots: Sequence[int]) -> None:
        """A holder of these slots lapsed but may still touch them: they are not used again before `release`."""
        for slot in slots:
            self._haunted[slot] = self._haunted.get(slot, 0) + 1
        self._tell_haunts(slots)

    def release(self, slots: Sequence[int]) -> None:
        """One lapsed holder of each slot confirmed, or is proved gone."""
        freed = []
        for slot in slots:
            left = self._haunted[slot] - 1
            if left:
                self._haunted[slot] = left
                continue
            del self._haunted[slot]
            if self.table.use_of(slot) is SlotUse.QUARANTINED:
                freed.append(slot)
        self._tell_haunts(slots)
        self.own(np.array(freed, np.int64), 0)
        self.free(np.array(freed, np.int64))

    def own(self, slots: Slots, owner: int) -> None:
        """Note in the headers whom the slots were told to write; `owner`: see `headers.HeaderRegion.set_owner`."""
        if self._heritable is not None and len(slots):
            self._heritable.set_owner(self.table.header_indices(slots), owner)

    def _tell_haunts(self, slots: Sequence[int]) -> None:
        if self._heritable is not None and len(slots):
            counts = np.fromiter((self._haunted.get(slot, 0) for slot in slots), np.uint32, len(slots))
            self._heritable.set_haunts(self.table.header_indices(np.array(slots, np.int64)), counts)

    @property
    def haunted_slots(self) -> dict[int, int]:
        """Lapsed holders by slot. Not to be changed."""
        return self._haunted

    # ------------------------------------------------------------------------------------------------ lanes

    def own_lane_slots(self, size: int, want: int) -> int:
        """Take free slots for the lanes until they own `want` of this size: how many they own now."""
        missing = want - self.lane_slots_owned.get(size, 0)
        if missing > 0:
            taken = self.table.take(size, np.full(missing, -1, np.int64), SlotUse.LANE).tolist()
            self.lane_slots.setdefault(size, []).extend(taken)
            self.lane_slots_owned[size] = self.lane_slots_owned.get(size, 0) + len(taken)
        return self.lane_slots_owned.get(size, 0)

    def disown_lane_slots(self, size: int) -> None:
        """The lanes need none of this size any more; all of them are free."""
        self.table.give(np.array(self.lane_slots.pop(size, []), np.int64))
        self.lane_slots_owned.pop(size, None)

    # ------------------------------------------------------------------------------------------------ translations

    def translations(self, slots: Slots) -> NDArray[np.void]:
        """What a worker is told about the slots: SLOT_DTYPE [n]."""
        told = np.zeros(len(slots), SLOT_DTYPE)
        if not len(slots):
            return told
        extents = self.table.extents_of(slots)
        indices = self.table.header_indices(slots)
        told["offset"] = slots
        told["header"] = indices
        told["extent"] = extents
        told["pool"] = self.index
        if self.headers is not None:
            told["generation"] = self.headers.generations(indices)
            told["extent_epoch"] = self.headers.extents["epoch"][extents]
        return told

    def check(self) -> list[str]:
        found = [f"{self.id}: {line}" for line in (*self.table.check(), *self.policy.check())]
        for size, owned in self.lane_slots_owned.items():
            if owned < len(self.lane_slots[size]):
                found.append(f"law 2: {self.id}: more lane slots of {size} bytes are free than there are")
        lanes = sum(size * owned for size, owned in self.lane_slots_owned.items())
        if lanes != self.table.bytes_by_use[SlotUse.LANE]:
            found.append(
                f"law 2: {self.id}: lanes own {lanes} bytes, {self.table.bytes_by_use[SlotUse.LANE]} are marked"
            )
        return found


class DiskBook:
    """The disk tier counted in pages: what the directory believes is there, kept below nine tenths of the cap.

    The store guards the physical cap itself. A slot here is the number of the segment that holds the block.
    """

    def __init__(
        self,
        pool: PoolId,
        index: int,
        capacity_bytes: int,
        policy: Policy,
        pages_per_block: Callable[[int], int],
        capacity_blocks: Callable[[int], int],
    ) -> None:
        self.id = pool
        self.index = index
        self.policy = policy
        self.capacity_bytes = capacity_bytes
        self._pages_per_block = pages_per_block
        self._capacity_blocks = capacity_blocks
        self.charges: Charges | None = None
        self.on = True
        self.blocks: dict[int, int] = {}
        self.incoming: dict[int, int] = {}
        self.to_delete: list[tuple[bytes, bytes, int]] = []
        """(fingerprint, key, segment) of copies dropped here that the store still has; the writer takes them."""
        self.to_remove: list[tuple[bytes, bytes, int]] = []
        """Likewise, of blocks somebody removed: these must not come back after a crash."""
        self.when_removed: list[Callable[[], None]] = []
        """Called by the writer once all that is in `to_remove` now is deleted, durably."""

    def __repr__(self) -> str:
        return f"DiskBook({self.used_bytes}/{self.capacity_bytes} bytes used{'' if self.on else ', off'})"

    def _pages(self, counts: dict[int, int]) -> int:
        return sum(self._pages_per_block(size) * count for size, count in counts.items())

    @property
    def used_bytes(self) -> int:
        return 4096 * (self._pages(self.blocks) + self._pages(self.incoming))

    def capacity_slots(self, size: int) -> int:
        return self._capacity_blocks(size)

    def resize(self, capacity_bytes: int) -> None:
        """The store has another cap now. What is there beyond it, `excess_slots` tells."""
        self.capacity_bytes = capacity_bytes

    def excess_slots(self, size: int) -> int:
        """Blocks of `size` that have to go for the rest to fit."""
        pages = self._pages_per_block(size)
        return max(0, -(-(self._pages(self.blocks) - self._capacity_blocks(size) * pages) // pages))

    def free_slots(self, size: int) -> int:
        """Blocks of `size` that fit beside what is there and on its way."""
        if not self.on:
            return 0
        pages = self._pages_per_block(size)
        capacity = self._capacity_blocks(size) * pages
        return max(0, (capacity - self._pages(self.blocks) - self._pages(self.incoming)) // pages)

    def take(self, size: int, rows: Rows, use: SlotUse, *, limited: bool = True) -> Slots:
        """Room for the first of `rows` that fit, here and in their tenants' quotas; the segment is known when they are
        settled, so the slots say 0."""
        del use
        rows = rows[: self.free_slots(size)]
        if self.charges is not None and limited:
            rows = self.charges.fitting(rows, self.bytes_on_disk(size))
        self.accept(size, rows)
        return np.zeros(len(rows), np.int64)

    def accept(self, size: int, rows: Rows) -> None:
        """Blocks that lie on disk already, whether or not there is room for them, are about to be settled."""
        self.incoming[size] = self.incoming.get(size, 0) + len(rows)
        if self.charges is not None:
            self.charges.pages(rows, self.bytes_on_disk(size))

    def bytes_on_disk(self, size: int) -> int:
        """What a block of `size` takes, in whole pages."""
        return 4096 * self._pages_per_block(size)

    def settle(self, size: int, rows: Rows, slots: Slots) -> None:
        del slots
        self.incoming[size] -= len(rows)
        self.blocks[size] = self.blocks.get(size, 0) + len(rows)

    def give(self, size: int, slots: Slots, use: SlotUse, rows: Rows) -> None:
        counts = self.incoming if use is SlotUse.INCOMING else self.blocks
        counts[size] -= len(slots)
        if self.charges is not None:
            self.charges.pages(rows, -self.bytes_on_disk(size))

    def check(self) -> list[str]:
        found = [f"{self.id}: {line}" for line in self.policy.check()]
        if min([0, *self.blocks.values(), *self.incoming.values()]) < 0:
            found.append(f"law 2: {self.id}: negative use {self.blocks} {self.incoming}")
        return found
