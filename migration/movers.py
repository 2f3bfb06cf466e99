"""Carrying the bytes of batches from pool to pool. Movers decide nothing.

A batch is transfers on one leg: all of one block size, from the leg's source slots to its target slots. Of each it is
told what became of it; only `MOVED` bytes may be read.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from hybridkv.migration.memory import Memory
from hybridkv.migration.verifier import digests, settle_verified
from hybridkv.tiers.device.base import Direction, Offsets, Stream
from hybridkv.tiers.device.batch import join_runs
from hybridkv.tiers.device.completion import Completion
from hybridkv.tiers.device.memcopy import copy_runs
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.directory.blocks import Checksum
from hybridkv.tiers.directory.moves import Transfer, rows_of


class Carried(IntEnum):
    """MOVED: all bytes are there. FAILED: try again some time. LOST: this copy cannot be read any more. CORRUPT: the
    bytes are not those the writer sealed, wherever else they lie."""

    FAILED = 0
    MOVED = 1
    LOST = 2
    CORRUPT = 3


class Cargo:
    """A batch on its leg, as columns: offsets in the leg's pools (a disk place is the segment), int64 [n], and what became
    of each transfer (Carried, uint8 [n]): FAILED until the mover says otherwise."""

    __slots__ = ("blamed", "outcomes", "rows", "size", "sources", "targets", "transfers")

    def __init__(self, transfers: Sequence[Transfer], sources: Offsets, targets: Offsets) -> None:
        self.transfers = transfers
        self.size = transfers[0].size
        self.rows = rows_of(transfers)
        self.sources = sources
        self.targets = targets
        self.outcomes = np.zeros(len(transfers), np.uint8)
        self.blamed = False
        """Whether what FAILED may be a block's own fault: not want of room, and not a tier that is away."""

    def __len__(self) -> int:
        return len(self.transfers)

    @property
    def nbytes(self) -> int:
        return len(self.transfers) * self.size


Landing = Callable[[], None]
"""Waits for a batch that was started. Then its outcomes are set, and its targets, when the mover chooses the places.
Raises what made the whole batch fail."""


class Mover(Protocol):
    """Moves batches of one leg; called by one thread."""

    def start(self, batch: Cargo) -> Landing:
        """Begin to move the bytes. The next batch may be started before this one has landed; they land in turn."""

    def close(self) -> None: ...


class DeviceMover:
    """Between the CPU pool and a device's pool, on a stream of its own."""

    def __init__(self, memory: Memory, pool: DevicePool, direction: Direction, name: str) -> None:
        self._memory = memory
        self._pool = pool
        self._direction = direction
        self.stream: Stream = pool.device.stream(name)

    def start(self, batch: Cargo) -> Landing:
        up = self._direction is Direction.TO_DEVICE
        lost = lose_unverified(self._memory, batch) if up else None
        on_device, on_host = (batch.targets, batch.sources) if up else (batch.sources, batch.targets)
        completion = self.stream.copy(
            self._direction, self._pool, on_device, self._memory.cpu_array, on_host, batch.size
        )
        return partial(self._land, batch, completion, lost)

    def _land(self, batch: Cargo, completion: Completion, lost: NDArray[np.int64] | None) -> None:
        completion.wait(None)
        completion.check()
        batch.outcomes[:] = Carried.MOVED
        if lost is not None:
            batch.outcomes[lost] = Carried.LOST
        if self._direction is Direction.TO_HOST:
            note_checksums(self._memory, batch, batch.targets)

    def close(self) -> None:
        self.stream.close()


class DeviceRelocator:
    """Within one device's pool."""

    def __init__(self, pool: DevicePool, name: str) -> None:
        self._pool = pool
        self.stream: Stream = pool.device.stream(name)

    def start(self, batch: Cargo) -> Landing:
        completion = self.stream.copy(
            Direction.ON_DEVICE, self._pool, batch.targets, self._pool, batch.sources, batch.size
        )
        return partial(self._land, batch, completion)

    def _land(self, batch: Cargo, completion: Completion) -> None:
        completion.wait(None)
        completion.check()
        batch.outcomes[:] = Carried.MOVED

    def close(self) -> None:
        self.stream.close()


class CpuRelocator:
    """Within the CPU pool."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def start(self, batch: Cargo) -> Landing:
        return partial(self._carry, batch)

    def _carry(self, batch: Cargo) -> None:
        array = self._memory.cpu_array
        copy_runs(array, array, join_runs(batch.targets, batch.sources, batch.size))
        batch.outcomes[:] = Carried.MOVED

    def close(self) -> None:
        """Nothing to close."""


def lose_unverified(memory: Memory, batch: Cargo) -> NDArray[np.int64]:
    """Verify what of a batch that leaves the CPU pool was taken over and not looked at since: positions of the blocks whose
    bytes are not what was sealed. Only this copy of them is bad. int64."""
    directory, pool = memory.directory, memory.cpu_index
    unverified = directory.state.unverified
    if not unverified.any_in(pool):
        return np.zeros(0, np.int64)
    # Bytes of another copy may pass through a lane's slot here: of these nothing is to be said.
    its_own = directory.blocks.slot[pool][batch.rows] == batch.sources
    asked = np.flatnonzero(unverified.among(batch.rows, pool) & its_own)
    good = digests(memory.cpu_array.data, batch.sources[asked], batch.size)
    good = good == directory.blocks.checksum[batch.rows[asked]]
    with directory.lock:
        settle_verified(memory, batch.rows[asked], batch.sources[asked], good)
    return np.asarray(asked[~good])


def note_checksums(memory: Memory, batch: Cargo, places: Offsets, *, verify: bool = False) -> NDArray[np.int64]:
    """Compute checksums that nobody knows yet; with `verify` also hold claimed ones against the bytes.

    Positions in the batch whose bytes do not have the checksum their writer gave. int64.
    """
    directory, rows = memory.directory, batch.rows
    blocks, size = directory.blocks, batch.size
    known = blocks.checked[rows]
    asked = (known != Checksum.VERIFIED) & (verify | (known != Checksum.CLAIMED))
    numbers = np.flatnonzero(asked)
    if not len(numbers):
        return numbers
    array = memory.cpu_array.data
    found = np.array(
        [xxhash.xxh3_64_intdigest(array[place : place + size]) for place in places[numbers].tolist()], np.uint64
    )
    wrong = (known[numbers] == Checksum.CLAIMED) & (found != blocks.checksum[rows[numbers]])
    learnt = rows[numbers[~wrong]]
    with directory.lock:
        blocks.checksum[learnt] = found[~wrong]
        blocks.checked[learnt] = Checksum.VERIFIED
        directory.copies.learn_checksums(rows[numbers[known[numbers] == Checksum.NONE]])
    mistaken: NDArray[np.int64] = numbers[wrong]
    return mistaken
