"""Reports of reads that made no call: every one is told to the daemon afterwards, so that its policies see it."""

import threading
import time
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import DeadlineExceededError, HybridKVError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import MIN_KEY_BYTES

Counts = npt.NDArray[np.int64]
Read = tuple[Keys, Counts | None]
"""The keys of one read, each read once; or those of many, with how often each was read."""

REPORT_S = 0.1
"""How long a report may wait for others to be sent together with it."""
PENDING_KEYS = 1 << 17
"""Keys that may wait to be reported. Beyond that reads are made under leases, which tell the daemon themselves."""
FLUSH_TIMEOUT_S = 1.0
"""What a report may take. A daemon that is slower is told the rest the next time; at a close it is not told."""


class Touch(Protocol):
    """Tells the daemon: so many accesses of each key, the first key being the most recent one."""

    def __call__(self, keys: Keys, counts: Counts, *, timeout_s: float) -> object: ...


class ReportLog:
    """What is to be told. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: deque[Read] = deque()
        self._pending = 0

    def __len__(self) -> int:
        """Keys that wait."""
        return self._pending

    @property
    def full(self) -> bool:
        """Whether the next read has to tell the daemon itself."""
        return self._pending >= PENDING_KEYS

    def note(self, keys: Keys) -> None:
        """One read of these keys, a request of its own."""
        with self._lock:
            self._reads.append((keys, None))
            self._pending += len(keys.packed) // keys.width

    def take(self) -> tuple[Keys, Counts]:
        """All of it as one report; the caller tells it, or puts it back."""
        with self._lock:
            reads, self._reads, self._pending = self._reads, deque(), 0
        return summed(reads)

    def put_back(self, keys: Keys, counts: Counts) -> None:
        """What was taken and not told: older than anything noted since."""
        if len(keys):
            with self._lock:
                self._reads.appendleft((keys, counts))
                self._pending += len(keys)


class AccessReports:
    """The reports of one session. Thread-safe; a thread of its own sends them, and parks while there are none."""

    def __init__(self, touch: Touch, keys_per_call: int) -> None:
        self._touch = touch
        self._limit = keys_per_call
        self._log = ReportLog()
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._parked = False
        self._closed = False

    @property
    def full(self) -> bool:
        """See `ReportLog.full`."""
        return self._log.full

    def note(self, keys: Keys) -> None:
        """One read of these keys, a request of its own."""
        self._log.note(keys)
        if self._thread is None or self._parked:
            self._wake()

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="hybridkv-reports", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, within_s: float = FLUSH_TIMEOUT_S) -> None:
        """Tell the daemon now. What it refuses, or there was no time for, is kept for the next time; a call that it did not
        answer in time is not repeated, since it may have been carried out. Raises LostError and what the call raises.
        """
        with self._sending:
            keys, counts = self._log.take()
            until, end = time.monotonic() + within_s, len(keys)
            try:
                # The oldest first: what a call tells is newer to the daemon than what the one before told.
                while end and (left_s := until - time.monotonic()) > 0:
                    part = slice(max(0, end - self._limit), end)
                    self._touch(keys[part], counts[part], timeout_s=left_s)
                    end = part.start
            except HybridKVError as error:
                end = kept_after(error, end, self._limit)
                raise
            finally:
                self._log.put_back(keys[:end], counts[:end])

    def close(self, *, tell: bool) -> None:
        """No more thread; with `tell`, what is left is told first. Never raises; may be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if tell:
            try:
                self.flush()
            except HybridKVError:
                return  # the history of some blocks is a little older than it was, which is no loss of blocks

    def _run(self) -> None:
        while self._wait_for_turn():
            try:
                self.flush()
            except LostError:
                return
            except HybridKVError:
                continue  # busy or refused: they are kept, and told the next time

    def _wait_for_turn(self) -> bool:
        """Sleep until there are reports, and then a little; False when closed."""
        with self._changed:
            self._parked = True
            self._changed.wait_for(lambda: self._closed or len(self._log) > 0)
            self._parked = False
            return not self._changed.wait_for(lambda: self._closed, REPORT_S)


def kept_after(error: HybridKVError, end: int, limit: int) -> int:
    """How many of the first `end` keys of a report are still to be told, when the call for the last `limit` of them failed."""
    if isinstance(error, LostError):
        return 0  # what is not there any more has no history
    return max(0, end - limit) if isinstance(error, DeadlineExceededError) else end


def summed(reads: Iterable[Read]) -> tuple[Keys, Counts]:
    """Many reads, in the order of time, as one report: each key once, where it was read last, with how often it was.

    The most recent key comes first, and within a read its keys keep their order: the last block of a chain counts as
    accessed before the first one.
    """
    total: dict[bytes, int] = {}
    width = MIN_KEY_BYTES
    for keys, counts in reversed(list(reads)):
        width = keys.width
        for key, count in zip(keys.as_list(), repeat(1) if counts is None else counts.tolist(), strict=False):
            total[key] = total.get(key, 0) + count
    return Keys.of(total, width), np.fromiter(total.values(), np.int64, len(total))
