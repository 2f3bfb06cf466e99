"""A directory of many blocks without any bytes: three pools, chains of 16-byte keys, and the steps that are timed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import numpy as np

from hybridkv.migration.background import Background, BackgroundRules
from hybridkv.migration.ledger import MoveLedger
from hybridkv.migration.policies.lru import Lru
from hybridkv.migration.reclaim import Reclaim
from hybridkv.migration.view import Thresholds
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.extents import ExtentTable
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Priority, Reason, Tier

KEY_BYTES = 16
BLOCK_BYTES = 64 << 10
CHAIN = 64
"""Blocks of one chain; each is sealed by one call."""
GPU, CPU, DISK = 0, 1, 2
GPU_TENTHS, CPU_TENTHS = 1, 3
"""Of ten blocks one lies on the device and in host memory, three in host memory alone, six on disk alone."""
_PAGES = BLOCK_BYTES // 4096 + 1


class DirectoryRig:
    """A directory, a session, and blocks whose bytes are imagined. `spare` more blocks fit into each pool than `fill` of
    `count` puts there. Time stands still but for `clock`."""

    def __init__(self, count: int, *, spare: int = 1 << 15, seed: int = 3) -> None:
        self.count = count
        self.clock = ManualClock()
        self._rng = np.random.default_rng(seed)
        tenth = count // 10
        disk = DiskBook(
            PoolId(Tier.DISK), DISK, 4 * count * _PAGES * 4096, Lru(), lambda _: _PAGES, lambda _: 4 * count
        )
        device = _pool(PoolId(Tier.GPU), GPU, GPU_TENTHS * tenth + spare)
        memory = _pool(PoolId(Tier.CPU), CPU, (GPU_TENTHS + CPU_TENTHS) * tenth + spare)
        self.directory = Directory([device, memory, disk], self.clock)
        self.space = self.directory.add_space_by(b"f" * 32, BLOCK_BYTES, KEY_BYTES)
        self.session = self.directory.open_session(self.space)
        self.keys: list[bytes] = []
        """Packed keys of what `fill` put on disk, one bytes object for each chain."""

    # ------------------------------------------------------------------------------------------------ blocks

    def chain(self) -> Keys:
        """Keys that nobody has."""
        return Keys(self._rng.bytes(CHAIN * KEY_BYTES), KEY_BYTES)

    def fill(self) -> None:
        """`count` blocks in chains, spread over the pools."""
        tenth = self.count // 10
        self._fill_disk(self.count - (GPU_TENTHS + CPU_TENTHS) * tenth)
        self._fill_pool(CPU, CPU_TENTHS * tenth)
        for rows in self._fill_pool(GPU, GPU_TENTHS * tenth):
            self.copy(rows, GPU, CPU)

    def _fill_disk(self, count: int) -> None:
        while count > 0:
            chains = [self.chain() for _ in range(min(64, -(-count // CHAIN)))]
            keys = [key for chain in chains for key in chain]
            parents = [key for chain in chains for key in (b"", *chain[:-1])]
            self.clock.advance(0.001)
            self.directory.restore(
                self.space, keys, parents, [0] * len(keys), [1] * len(keys), [self.clock.now()] * len(keys)
            )
            self.keys += [chain.packed for chain in chains]
            count -= len(keys)

    def _fill_pool(self, pool: int, count: int) -> list[Rows]:
        return [self.seal(self.chain(), pool) for _ in range(-(-count // CHAIN))]

    def seal(self, keys: Keys, pool: int) -> Rows:
        """Reserve, fill and seal one chain, as a worker's two calls do."""
        writes = self.directory.writes
        self.clock.advance(0.001)
        with self.directory.lock:
            held, _ = writes.begin(self.session, keys, b"", pool, None, 30.0)
            writes.fill(held)
            writes.stop_waiting(held)
            rows = held.rows.copy()
        with self.directory.lock:
            writes.seal(held, np.arange(len(keys)), None)
        return rows

    def copy(self, rows: Rows, source: int, target: int) -> None:
        """Copies of the blocks in another pool, too."""
        moves = self.directory.moves
        begun = moves.begin(rows, source, target, Reason.PREFETCH, Priority.PREFETCH, keep_source=True)
        moves.start_all(begun)
        moves.commit(begun)

    def evict(self, pool: int, count: int) -> int:
        """Choose that many victims and drop them: how many went."""
        with self.directory.lock:
            rows = np.array(self.directory.choice.victims(pool, BLOCK_BYTES, count), np.int64)
            self.directory.copies.drop(rows, pool)
        return len(rows)

    def lookup(self, keys: Keys) -> Rows:
        with self.directory.lock:
            return self.directory.sealed(self.space.index, keys)

    def some_keys(self, count: int) -> Keys:
        """Keys of blocks that `fill` put on disk, in random order."""
        chains = self._rng.integers(0, len(self.keys), count)
        places = self._rng.integers(0, CHAIN, count) * KEY_BYTES
        found = [self.keys[c][p : p + KEY_BYTES] for c, p in zip(chains.tolist(), places.tolist(), strict=True)]
        return Keys.of(found)

    # ------------------------------------------------------------------------------------------------ planning

    def background(self, thresholds: Thresholds) -> Background:
        """The planner's passes over this directory; what they send down a lane arrives at once."""
        ledger = MoveLedger(self.directory, 1024)
        sent: list[object] = []
        reclaim = Reclaim(self.directory, ledger, sent.extend, lambda *_: None, lambda *_: None)
        rules = BackgroundRules(dict.fromkeys(Tier, thresholds))
        return Background(self.directory, reclaim, sent.extend, rules, ledger.history)


class WatchedLock:
    """A lock, and for how long it was held each time it was taken anew: seconds of the holder's processor time, which is
    what an idle machine would show, for nobody waits with the lock held."""

    def __init__(self, directory: Directory) -> None:
        self.held: list[float] = []
        self._lock = directory.lock
        self._depth = 0
        self._begin = 0.0

    def __enter__(self) -> bool:
        self._lock.acquire()
        if not self._depth:
            self._begin = time.thread_time()
        self._depth += 1
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._depth -= 1
        if not self._depth:
            self.held.append(time.thread_time() - self._begin)
        self._lock.release()


@contextmanager
def watched(directory: Directory) -> Iterator[list[float]]:
    """How long the directory's lock is held meanwhile by those who take it from the directory itself."""
    lock, watch = directory.lock, WatchedLock(directory)
    directory.lock = watch  # type: ignore[assignment]
    try:
        yield watch.held
    finally:
        directory.lock = lock


def _pool(pool: PoolId, index: int, slots: int) -> MappedBook:
    """All carved, into extents as a daemon's."""
    table = ExtentTable(slots * BLOCK_BYTES)
    while (number := table.begin_carving(BLOCK_BYTES)) is not None:
        table.carve(number)
    return MappedBook(pool, index, table, Lru())
