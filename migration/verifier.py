"""Holds copies that were taken over against their checksums, before their first use; on a thread of its own.

What is being verified is leased to a session of the verifier's, so that nothing moves it, or gives its memory back, meanwhile.
"""

import logging
import math
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from hybridkv.migration.memory import Memory
from hybridkv.tiers.directory.blocks import NO_SLOT, Checksum
from hybridkv.tiers.directory.holds import Session
from hybridkv.tiers.loops import Loop, Pulse
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import BlockState

_log = logging.getLogger(__name__)

_BATCH_BYTES = 16 << 20
"""Callers hear of blocks after each batch: some milliseconds of hashing."""


@dataclass(frozen=True, slots=True)
class _Job:
    session: Session
    rows: Rows
    places: NDArray[np.int64]
    size: int


class Verifier:
    """Thread-safe. `ask` is called under the directory's lock; its thread starts with the first question."""

    def __init__(self, memory: Memory, stir: Callable[[], None]) -> None:
        """`stir` is called, without the lock, after each batch."""
        self.pulse = Pulse("verifier")
        self._loop = Loop(self.pulse, self._run, time.sleep)
        self._memory = memory
        self._directory = memory.directory
        self._stir = stir
        self._asked: set[int] = set()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    def ask(self, rows: Rows) -> None:
        """Somebody waits for the CPU copies of these blocks."""
        directory, pool = self._directory, self._memory.cpu_index
        rows = np.unique(rows[directory.state.unverified.among(rows, pool)])
        rows = np.array([row for row in rows.tolist() if row not in self._asked], np.int64)
        if not len(rows):
            return
        if not self._loop.started:
            self._loop.start()
        self._asked.update(rows.tolist())
        for number in np.unique(directory.blocks.namespace[rows]).tolist():
            space = directory.state.spaces[number]
            theirs = rows[directory.blocks.namespace[rows] == number]
            step = max(1, _BATCH_BYTES // space.block_bytes)
            for first in range(0, len(theirs), step):
                some = theirs[first : first + step]
                session = directory.open_session(space)
                lease = directory.leases.open(session, some, views=True, request=None, life_s=math.inf)
                directory.leases.hold(lease, np.arange(len(some)), pool)
                self._jobs.put(_Job(session, some, directory.blocks.slot[pool][some], space.block_bytes))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.pulse.begin()
            try:
                self._verify(job)
                self.pulse.well()
            finally:
                self.pulse.end()
                self._stir()

    def _verify(self, job: _Job) -> None:
        try:
            sums = digests(self._memory.cpu_array.data, job.places, job.size)
        except BaseException:
            with self._directory.lock:
                self._let_go(job)
            raise
        with self._directory.lock:
            # Leased all the while: the rows are the same blocks' still, unless these were removed.
            good = sums == self._directory.blocks.checksum[job.rows]
            self._let_go(job)
            settle_verified(self._memory, job.rows, job.places, good)

    def _let_go(self, job: _Job) -> None:
        self._asked.difference_update(job.rows.tolist())
        self._directory.end_session(job.session)

    def close(self) -> None:
        """Finish what was asked for, and end."""
        if self._loop.started:
            self._jobs.put(None)
            self._loop.thread.join()


def digests(memory: memoryview, places: NDArray[np.int64], size: int) -> NDArray[np.uint64]:
    """xxh3_64 of the blocks at these offsets. uint64 [n]."""
    sums = (xxhash.xxh3_64_intdigest(memory[place : place + size]) for place in places.tolist())
    return np.fromiter(sums, np.uint64, len(places))


def settle_verified(memory: Memory, rows: Rows, places: NDArray[np.int64], good: NDArray[np.bool_]) -> None:
    """CPU copies that lie in `places`, unless they moved: the `good` ones are what was sealed, others are dropped. Under the
    lock. A bad one that is on its way somewhere goes when its carrier, who looks as well, has given it up."""
    directory, pool = memory.directory, memory.cpu_index
    blocks, state = directory.blocks, directory.state
    there = (blocks.slot[pool][rows] == places) & (places != NO_SLOT) & (blocks.state[rows] == BlockState.SEALED)
    fine = rows[there & good]
    state.unverified.verified(fine)
    blocks.checked[fine] = Checksum.VERIFIED
    state.counters["taken_over_verified"] += len(fine)
    bad = rows[there & ~good]
    if len(bad):
        state.counters["taken_over_corrupt"] += len(bad)
        _log.error("%d blocks that were taken over do not have the checksum of their writer: dropped", len(bad))
        directory.copies.drop(bad[blocks.busy[bad] == 0], pool)
