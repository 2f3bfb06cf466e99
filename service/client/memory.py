"""The memory that a session has mapped: where a slot's bytes are, and whether they still are what was acquired."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.blockcopy import scatter
from hybridkv.service.client.devices import Devices
from hybridkv.service.client.outputs import Rows
from hybridkv.service.client.translations import One
from hybridkv.service.replies import PoolInfo
from hybridkv.tiers.device.base import Event
from hybridkv.tiers.device.views import tensor_of
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.header_reader import HeaderReader
from hybridkv.tiers.states import Tier

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]
Events = Sequence[tuple[int, bytes | Event]]
"""(pool, event) of the device pools that a call gives slots up in."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Blocks that lie in one array: block `indices[j]` of a hold is `blocks[rows[j]]`, without a copy.

    `blocks`: uint8 [slots, block_bytes] over a whole extent; only the rows named here are the hold's to touch.
    """

    indices: npt.NDArray[np.int64]
    blocks: Bytes
    rows: npt.NDArray[np.int64]


PIECE_BYTES = 64 << 20
"""What is copied between two looks at the headers: takes far less time than closed memory stays (`migration/carver.py`)."""


class Mapped(Protocol):
    """Mapped pools, by index. `headers` knows those of device memory, too."""

    @property
    def pools(self) -> tuple[int, ...]: ...
    def readable(self, pool: int) -> Bytes: ...
    def read_only(self, pool: int) -> tuple[HeaderReader, Bytes]: ...
    def writable(self, pool: int) -> Bytes: ...
    def headers(self, pool: int) -> HeaderReader: ...
    def close(self) -> None: ...
    def when_unmapped(self, call: Callable[[], None]) -> None: ...


def only_pool(slots: npt.NDArray[Any]) -> int | None:
    """The pool that all of these lie in, where there is one: the usual case."""
    if not len(slots):
        return None
    pools = slots["pool"]
    first = int(pools[0])
    return first if bool((pools == first).all()) else None


class Memory:
    """Blocks by slot. Thread-safe; arrays and tensors keep their mapping alive, whatever becomes of the session.

    Reading goes through a read-only mapping: a stray write into a sealed block faults.
    """

    def __init__(
        self, mapped: Mapped, pools: tuple[PoolInfo, ...], block_bytes: int, devices: Devices | None = None
    ) -> None:
        self._mapped = mapped
        self._block_bytes = block_bytes
        self._devices = devices
        self._extent_bytes = {pool.index: pool.extent_bytes for pool in pools}
        self._on_device = {pool.index: pool.device for pool in pools if pool.tier is Tier.GPU}
        for pool in mapped.pools:
            self._on_device.pop(pool, None)

    def tier_for(self, asked: Tier | None) -> Tier | None:
        """See `place_for`."""
        return self.place_for(asked, None)[0]

    def place_for(self, asked: Tier | None, device: int | None) -> tuple[Tier | None, int | None]:
        """The tier and device to ask the daemon for.

        Without a wish any tier, but CPU where a device's pool is out of reach, or torch is not in use here: device
        memory is not taken by accident. The GPU tier: a device within reach, if not all are.
        Raises FailedPreconditionError when there is none.
        """
        if not self._on_device or asked not in (None, Tier.GPU):
            return asked, device
        if asked is None and "torch" not in sys.modules:
            return Tier.CPU, device
        wanted = {pool for pool, number in self._on_device.items() if device in (None, number)}
        missing = {pool: why for pool in wanted if (why := self._why_not(pool)) is not None}
        if not missing:
            return asked, device
        if asked is None:
            return Tier.CPU, device
        near = sorted(wanted - missing.keys())
        if not near:
            why = next(iter(missing.values()))
            raise FailedPreconditionError(f"tier: the daemon's device memory is out of reach here ({why}); ask for cpu")
        return asked, self._on_device[near[0]]

    def _why_not(self, pool: int) -> str | None:
        if self._devices is None or pool not in self._devices.pools:
            return "it was not handed over"
        return self._devices.why_not(pool)

    def out_of_reach(self, pool: int) -> bool:
        """Whether the pool is device memory, which a copy without a call leaves alone."""
        return pool in self._on_device

    def within_reach(self, slots: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which slots lie in memory that is mapped."""
        if not self._on_device:
            return np.ones(len(slots), np.bool_)
        return ~np.isin(slots["pool"], list(self._on_device))

    def on_device(self, slot: Any) -> bool:
        """Whether the slot lies in device memory, which has tensors and no arrays."""
        return int(slot["pool"]) in self._on_device

    def is_device(self, pool: int) -> bool:
        """Whether the pool is device memory."""
        return pool in self._on_device

    def tensor(self, slot: Any, *, writable: bool = False) -> "torch.Tensor":
        """The slot as torch.uint8 [block_bytes], no copy. On a device nothing keeps a stray write out."""
        if self.on_device(slot):
            return self._view(int(slot["pool"]), int(slot["offset"]))
        return tensor_of(self.writable_block(slot) if writable else self.block(slot))

    def events(self, pools: Iterable[int]) -> Events:
        """An event for each of these device pools, behind what the calling thread's current streams were given."""
        return [] if self._devices is None else [(pool, self._devices.record(pool)) for pool in sorted(pools)]

    def _view(self, pool: int, offset: int) -> "torch.Tensor":
        if self._devices is None:
            raise FailedPreconditionError(f"pool {pool}: its device memory was not handed over")
        return self._devices.view(pool, offset, self._block_bytes)

    def block(self, slot: Any) -> Bytes:
        """The slot's bytes, read-only [block_bytes], no copy. Raises FailedPreconditionError for device memory."""
        return self._range(self._mapped.readable(int(slot["pool"])), slot)

    def writable_block(self, slot: Any) -> Bytes:
        """The bytes of a slot that is reserved for us, writable."""
        return self._range(self._mapped.writable(int(slot["pool"])), slot)

    def stacks(self, slots: npt.NDArray[Any], indices: npt.NDArray[np.int64], *, writable: bool = False) -> list[Stack]:
        """The blocks `slots[indices]` as few arrays, one for each extent, so that many are copied by one call.

        Raises FailedPreconditionError for device memory.
        """
        stacks: list[Stack] = []
        places = slots[indices]
        which = places["pool"].astype(np.int64) << 32 | places["extent"]
        for place in np.unique(which).tolist():
            chosen, pool, extent = np.flatnonzero(which == place), place >> 32, place & 0xFFFFFFFF
            if pool in self._on_device:
                raise FailedPreconditionError(f"pool {pool}: device memory has no array here; take a view")
            memory = self._mapped.writable(pool) if writable else self._mapped.readable(pool)
            start, size = extent * self._extent_bytes[pool], self._block_bytes
            offsets = places["offset"][chosen].astype(np.int64)
            # Slots begin at multiples of their size from the allocation's base, which need not be where the extent begins.
            first = start + int(offsets[0] - start) % size
            count = (start + self._extent_bytes[pool] - first) // size
            blocks = memory[first : first + count * size].reshape(count, size)
            stacks.append(Stack(indices[chosen], blocks, (offsets - first) // size))
        return stacks

    def valid(self, slots: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which translations hold now, by generation and extent epoch; one aligned load each, no call."""
        pool = only_pool(slots)
        if pool is not None:
            return self._mapped.headers(pool).valid_slots(slots)
        valid = np.zeros(len(slots), np.bool_)
        for pool in np.unique(slots["pool"]).tolist():
            chosen = slots["pool"] == pool
            valid[chosen] = self._mapped.headers(pool).valid_slots(slots[chosen])
        return valid

    def copy(self, slots: npt.NDArray[Any], rows: npt.NDArray[np.int64], out: Rows) -> npt.NDArray[np.bool_]:
        """Copy the blocks of `slots` to `rows` of `out`; True where the block stayed in its slot all the while.

        A row that answers False holds anything.
        """
        pool = only_pool(slots)
        if pool is not None:
            self._copy_in_pieces(pool, slots, rows, out, self.valid)
            return self.valid(slots)
        for pool in np.unique(slots["pool"]).tolist():
            chosen = np.flatnonzero(slots["pool"] == pool)
            self._copy_in_pieces(pool, slots[chosen], rows[chosen], out, self.valid)
        return self.valid(slots)

    def _copy_in_pieces(
        self,
        pool: int,
        slots: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        out: Rows,
        still_there: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]],
    ) -> None:
        """`_copy_from`, of what is still there when its piece begins: the memory of the rest may be on its way back."""
        step = max(1, PIECE_BYTES // self._block_bytes)
        for first in range(0, len(slots), step):
            piece, at = slots[first : first + step], rows[first : first + step]
            if first:
                there = still_there(piece)
                piece, at = piece[there], at[there]
            self._copy_from(pool, piece, at, out)

    def copy_pages(self, slots: npt.NDArray[Any], rows: npt.NDArray[np.int64], out: Rows) -> npt.NDArray[np.bool_]:
        """`copy` of slots of one pool that may be the caller's own to write: True where slot and extent are as told."""
        if len(slots):
            self._copy_in_pieces(int(slots["pool"][0]), slots, rows, out, self.unchanged)
        return self.unchanged(slots)

    def unchanged(self, slots: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which slots, all of one pool, are as they were told: readable, or the caller's own to write."""
        if len(slots) == 0:
            return np.ones(0, np.bool_)
        return self._mapped.headers(int(slots["pool"][0])).unchanged_slots(slots)

    def headers(self, pool: int) -> HeaderReader:
        """The pool's slot headers."""
        return self._mapped.headers(pool)

    def pool(self, pool: int, *, writable: bool = False) -> "Bytes | torch.Tensor":
        """All of a pool, no copy: uint8 array, or a torch tensor for device memory (in one allocation only).

        For reading sealed blocks, or with `writable` for slots that are the caller's own. Raises FailedPreconditionError.
        """
        if pool in self._on_device:
            if self._devices is None:
                raise FailedPreconditionError(f"pool {pool}: its device memory was not handed over")
            layout = self._mapped.headers(pool).layout
            return self._devices.view(pool, 0, layout.extent_count * layout.extent_bytes)
        return self._mapped.writable(pool) if writable else self._mapped.readable(pool)

    def copy_one(self, one: One, row: int, out: Rows) -> bool:
        """`copy` for one translation of mapped memory, looked at before and after. False: the row may hold anything."""
        offset, generation, epoch, header, extent, pool = one
        headers, memory = self._mapped.read_only(pool)
        if not headers.holds(header, generation, extent, epoch):
            return False
        out.put(row, memory[offset : offset + self._block_bytes])
        return headers.holds(header, generation, extent, epoch)

    def write(self, slots: npt.NDArray[Any], flat: Bytes) -> None:
        """Copy blocks that lie end to end in `flat` to slots that are reserved for us, in one call without the interpreter
        lock. Raises FailedPreconditionError for device memory."""
        pool = only_pool(slots)
        if pool is None:
            for slot, row in zip(slots, flat.reshape(len(slots), -1), strict=True):
                np.copyto(self.writable_block(slot), row)
        else:
            scatter(self._mapped.writable(pool), flat, slots["offset"].astype(np.int64), self._block_bytes)

    def _copy_from(self, pool: int, slots: npt.NDArray[Any], rows: npt.NDArray[np.int64], out: Rows) -> None:
        offsets = slots["offset"].astype(np.int64)
        if pool in self._on_device:
            self._copy_from_device(pool, offsets, rows, out)
        else:
            out.fill(self._mapped.readable(pool), offsets, rows)

    def _copy_from_device(self, pool: int, offsets: npt.NDArray[np.int64], rows: Any, out: Rows) -> None:
        for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
            out.put_tensor(row, self._view(pool, offset))
        if self._devices is not None:
            self._devices.synchronize(pool)  # the generation says what was copied only once it has been copied

    def let_go(self, timeout_s: float) -> bool:
        """Whether no device touches the daemon's memory for us any more: see `Devices.let_go`. To be called before the
        session ends by a goodbye, which says just that."""
        return self._devices is None or self._devices.let_go(timeout_s)

    def when_unmapped(self, call: Callable[[], None]) -> None:
        """`call` once this process maps none of it any more: after `close`, and when the last view is gone."""
        self._mapped.when_unmapped(call)

    def close(self) -> None:
        """Let go of the mappings; each is unmapped when its last view is gone."""
        if self._devices is not None:
            self._devices.close()
        self._mapped.close()

    def _range(self, memory: Bytes, slot: Any) -> Bytes:
        offset = int(slot["offset"])
        block = memory[offset : offset + self._block_bytes]
        if len(block) != self._block_bytes:
            raise FailedPreconditionError(f"slot at {offset}: {self._block_bytes} bytes leave the mapped memory")
        return block
