"""Write-behind puts: the caller's blocks are copied, and one thread of the handle publishes them, many to a call.

Small puts are copied to a ring of at most STAGING_BYTES and reserved, written and sealed from there. Larger ones are
reserved and written at once, so that they are copied only once; the thread computes their checksums and seals them.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from hybridkv.service.client.core import Budget
from hybridkv.service.client.link import Link
from hybridkv.service.client.publishing import PutCounts, Written, published, sealed, written
from hybridkv.service.client.staging import Blocks, Ring, Run
from hybridkv.tiers.errors import DeadlineExceededError, FailedPreconditionError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.points import point

SMALL_BYTES = 2 << 20
"""A put of fewer bytes is staged."""
STAGING_BYTES = 32 << 20
"""How much may be staged, and as much again written and not sealed; beyond that a put waits."""
BATCH_BYTES = 4 << 20
"""Staged blocks are published when there are so many, or the first has waited LINGER_S, or a flush waits for them."""
LINGER_S = 0.002
BATCH_KEYS = 1024


class Puts:
    """The puts of one handle. Thread-safe; blocks of one key are published in the order in which they were put."""

    def __init__(self, link: Link, block_bytes: int) -> None:
        self._link = link
        self._block_bytes = block_bytes
        self._closed = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._turn = threading.Lock()  # one put at a time copies
        self._changed = threading.Condition()
        self._ring: Ring | None = None
        self._queue: deque[Run | Written] = deque()
        self._publishing: Run | Written | None = None
        self._staged = self._open = 0  # blocks in the ring; blocks written and not sealed
        self._hurry = 0  # threads that wait for the queue to move
        self._put = self._told = 0  # blocks, since the beginning
        self._counts = PutCounts()
        self._thread: threading.Thread | None = None
        self._parked = False

    def put(self, keys: Keys, blocks: Blocks, parent: bytes | None) -> None:
        """Take over `blocks`, uint8 [n, block_bytes], of a chain of distinct keys that goes on from `parent`.

        Raises DeadlineExceededError when there is no room within the handle's deadline, FailedPreconditionError once
        closed; then nothing was taken over.
        """
        budget = Budget(0.0, self._link.timeout_s)
        if not self._turn.acquire(timeout=budget.left_s()):
            raise DeadlineExceededError("put: another thread's put is still waiting for room")
        try:
            if blocks.nbytes < SMALL_BYTES:
                self._stage(keys, blocks, parent, budget)
            else:
                self._write(keys, blocks, parent, budget)
        finally:
            self._turn.release()

    def flush(self, timeout_s: float) -> PutCounts:
        """Wait until what was put so far is published; what became of all that was not reported before."""
        with self._changed:
            until = self._put
            self._wait(lambda: self._told >= until, timeout_s)
            counts, self._counts = self._counts, PutCounts()
            return replace(counts, waiting=self._put - self._told)

    def close(self, timeout_s: float) -> None:
        """Publish what can be within `timeout_s`, drop the rest, and end the thread. Never raises; may be repeated."""
        budget = Budget(0.0, timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._wait(lambda: self._told >= self._put, budget.left_s())
            self._queue.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(budget.left_s())

    # --------------------------------------------------------------------------------------------- the caller's thread

    def _stage(self, keys: Keys, blocks: Blocks, parent: bytes | None, budget: Budget) -> None:
        ring = self._ring
        if ring is None:
            ring = self._ring = Ring(max(STAGING_BYTES, SMALL_BYTES) // self._block_bytes, self._block_bytes)
        self._wait_for_room(lambda: ring.free >= len(keys), budget)
        for run in ring.copied(keys, blocks, parent):
            point("worker.put_staged")
            with self._changed:
                self._staged += len(run.keys)
                self._put += len(run.keys)
                last = self._queue[-1] if self._queue else None
                if not (isinstance(last, Run) and last.takes(run, BATCH_KEYS)):
                    self._queue.append(run)
                self._wake()

    def _write(self, keys: Keys, blocks: Blocks, parent: bytes | None, budget: Budget) -> None:
        """Behind what is staged under the same keys; one put may exceed the bound alone."""
        wanted = set(keys)
        most = STAGING_BYTES // self._block_bytes
        self._wait_for_room(
            lambda: not self._is_staged(wanted) and (not self._open or self._open + len(keys) <= most), budget
        )
        pieces, counts = written(self._link, keys, blocks, parent)
        with self._changed:
            self._put += len(keys)
            self._told += len(keys) - sum(piece.count for piece in pieces)
            self._open += sum(piece.count for piece in pieces)
            self._counts += counts
            self._queue.extend(pieces)
            self._wake()

    def _is_staged(self, keys: set[bytes]) -> bool:
        waiting = [*self._queue, self._publishing]
        return any(isinstance(run, Run) and not run.distinct.isdisjoint(keys) for run in waiting)

    def _wait_for_room(self, is_there: Callable[[], bool], budget: Budget) -> None:
        with self._changed:
            if self._closed:
                raise FailedPreconditionError("this KV is closed")
            if not self._wait(lambda: self._closed or is_there(), budget.left_s()):
                raise DeadlineExceededError("put: the blocks of earlier puts are not published yet")
            if self._closed:
                raise FailedPreconditionError("this KV is closed")

    def _wait(self, for_what: Callable[[], bool], timeout_s: float) -> bool:
        """Under the lock: wait for the thread, which then does not linger."""
        if for_what():
            return True
        self._hurry += 1
        self._changed.notify_all()
        try:
            return self._changed.wait_for(for_what, timeout_s)
        finally:
            self._hurry -= 1

    def _wake(self) -> None:
        """Under the lock: there is something to publish."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hybridkv-puts", daemon=True)
            self._thread.start()
        elif self._parked or self._is_due():
            self._changed.notify_all()

    # ---------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while (work := self._next()) is not None:
            self._note(work, self._publish(work))
            del work  # a reservation keeps its session's memory mapped

    def _next(self) -> Run | Written | None:
        """What to publish now; None once closed and empty."""
        with self._changed:
            self._parked = True
            self._changed.wait_for(lambda: self._queue or self._closed)
            self._parked = False
            self._changed.wait_for(self._is_due, LINGER_S)
            self._publishing = self._queue.popleft() if self._queue else None
            return self._publishing

    def _is_due(self) -> bool:
        staged_bytes = self._staged * self._block_bytes
        return self._closed or self._hurry > 0 or self._open > 0 or staged_bytes >= BATCH_BYTES

    def _publish(self, work: Run | Written) -> PutCounts:
        if isinstance(work, Written):
            return sealed(work)
        assert self._ring is not None, "what is staged lies in the ring"
        packed = Keys.of(work.keys)
        return published(self._link, packed, self._ring.rows(work), work.parent)

    def _note(self, work: Run | Written, counts: PutCounts) -> None:
        with self._changed:
            self._publishing = None
            self._counts += counts
            self._settle([work])
            if counts.lost and self._link.live is None:  # the rest would wait in vain as long as this did
                self._counts += PutCounts(lost=self._settle(self._queue), failure=counts.failure)
                self._queue.clear()
            self._changed.notify_all()

    def _settle(self, done: Iterable[Run | Written]) -> int:
        """Under the lock: these are accounted for; how many blocks they were."""
        total = 0
        for work in done:
            count = work.count if isinstance(work, Written) else len(work.keys)
            if isinstance(work, Written):
                self._open -= count
            elif self._ring is not None:
                self._staged -= count
                self._ring.give_back(count)
            total += count
        self._told += total
        return total

    def __repr__(self) -> str:
        return f"Puts({self._staged} blocks staged, {self._open} written, {self._told} of {self._put} done)"


_all: "weakref.WeakSet[Puts]" = weakref.WeakSet()


def _forget_parents() -> None:
    """In a forked child: what the parent staged is the parent's to publish, and its thread is not here."""
    for puts in list(_all):
        puts._begin()


os.register_at_fork(after_in_child=_forget_parents)
