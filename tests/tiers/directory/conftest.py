"""A small directory: one or two devices, CPU memory and disk, without bytes, headers or lanes."""

from collections.abc import Iterator

import numpy as np
import pytest

from hybridkv.migration.policies.lru import Lru
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.directory.holds import Reservation, Session
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.extents import ExtentTable
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import Priority, Reason, SealOutcome, Tier

SIZE = 4096
EXTENT = 4 * SIZE
GPU, CPU, DISK = 0, 1, 2


def key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def mapped(pool: PoolId, index: int, extents: int) -> MappedBook:
    """A pool of `extents` × 4 slots, all carved."""
    table = ExtentTable(extents * EXTENT, extent_bytes=EXTENT)
    for _ in range(extents):
        table.carve(table.begin_carving(SIZE))  # type: ignore[arg-type]
    return MappedBook(pool, index, table, Lru())


class Kit:
    """A directory and the steps that tests of it share. Pools: GPU 0, CPU 1, DISK 2."""

    def __init__(self, *, gpu_extents: int = 2, cpu_extents: int = 2, disk_blocks: int = 8) -> None:
        self.clock = ManualClock()
        disk = DiskBook(PoolId(Tier.DISK), DISK, 1 << 20, Lru(), lambda size: size // 4096 + 1, lambda _: disk_blocks)
        device, memory = mapped(PoolId(Tier.GPU), GPU, gpu_extents), mapped(PoolId(Tier.CPU), CPU, cpu_extents)
        books: list[MappedBook | DiskBook] = [device, memory, disk]
        self.directory = Directory(books, self.clock)
        self.space = self.directory.add_space_by(b"f" * 32, SIZE, 8)
        self.session = self.attach()

    def attach(self, *, maps: bool = True) -> Session:
        session = self.directory.open_session(self.space)
        session.maps = maps
        return session

    def reserve(self, *numbers: int, parent: bytes = b"", pool: int = GPU, by: Session | None = None,
                request: int | None = None) -> Reservation:  # fmt: skip
        """Slots for the keys, as many as fit."""
        writes = self.directory.writes
        held, _ = writes.begin(by or self.session, [key(n) for n in numbers], parent, pool, request, 30.0)
        writes.fill(held)
        writes.stop_waiting(held)
        held.told = True
        return held

    def seal(self, *numbers: int, parent: bytes = b"", pool: int = GPU, request: int | None = None) -> list[int]:
        """Sealed blocks, a chain after `parent`: their rows."""
        held = self.reserve(*numbers, parent=parent, pool=pool, request=request)
        outcomes = self.directory.writes.seal(held, np.arange(len(numbers)), None)
        assert (outcomes == SealOutcome.SEALED).all()
        return self.rows(*numbers)

    def rows(self, *numbers: int) -> list[int]:
        """Row of each key that is sealed; NO_ROW of others."""
        found: list[int] = self.directory.sealed(self.space.index, [key(n) for n in numbers]).tolist()
        return found

    def is_here(self, number: int) -> bool:
        return self.rows(number) != [NO_ROW]

    def place(self, number: int, pool: int) -> int:
        """Slot of the block's copy in `pool`."""
        return int(self.directory.blocks.slot[pool][self.rows(number)[0]])

    def begin(self, numbers: list[int], source: int, target: int, *, keep_source: bool = False,
              reason: Reason = Reason.WATERMARK) -> list[Transfer]:  # fmt: skip
        rows = np.array(self.rows(*numbers), np.int64)
        return self.directory.moves.begin(rows, source, target, reason, Priority.BACKGROUND, keep_source=keep_source)

    def move(self, numbers: list[int], source: int, target: int, *, keep_source: bool = False) -> None:
        """A whole move, its bytes imagined."""
        transfers = self.begin(numbers, source, target, keep_source=keep_source)
        assert len(transfers) == len(numbers)
        assert all(self.directory.moves.start(transfer) for transfer in transfers)
        self.directory.moves.commit(transfers, [7] * len(transfers) if target == DISK else None)

    def victims(self, pool: int, want: int = 99) -> list[bytes]:
        """Keys the pool would give up, in order."""
        return [self.directory.blocks.keys[row] for row in self.directory.choice.victims(pool, SIZE, want)]


@pytest.fixture
def kit() -> Iterator[Kit]:
    made = Kit()
    yield made
    assert made.directory.check() == []
