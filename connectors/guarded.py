"""A handle that may be absent: what an engine holds, so that no failure of the cache becomes one of the engine."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from hybridkv.service.client import KV
from hybridkv.tiers.errors import DeadlineExceededError, HybridKVError, UnavailableError

T = TypeVar("T")
logger = logging.getLogger(__name__)

RETRY_S = 5.0
"""How long a daemon that was not there is left alone."""


class Guarded:
    """Opens a `KV` when it is first needed, and again after `retry_s` when the daemon was not there. Thread-safe.

    `call` never raises: where there is no daemon, or the call failed, it answers the caller's default (a miss) and
    counts that. The log tells of each loss and each return once. `counts` has `calls, failed, skipped, bugs`.
    """

    def __init__(
        self, open_kv: Callable[[], KV], retry_s: float = RETRY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_kv = open_kv
        self._retry_s = retry_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kv: KV | None = None
        self._closed = False
        self._not_before = float("-inf")
        self._lost = False
        self.counts: Counter[str] = Counter()

    def open(self) -> bool:
        """Open it now; False when there is no daemon yet. Raises what the daemon refuses for good: a wrong layout, a
        block too large for it. To be called where an error still reaches the operator."""
        try:
            return self._handle() is not None
        except (UnavailableError, DeadlineExceededError) as error:
            self._note_lost(error)
            return False

    def call(self, what: str, work: Callable[[KV], T], default: T) -> T:
        """`work` on the handle, or `default`. `what` names the call in the log."""
        self.counts["calls"] += 1
        try:
            kv = self._handle()
            if kv is None:
                self.counts["skipped"] += 1
                return default
            result = work(kv)
        except (UnavailableError, DeadlineExceededError) as error:
            self._note_lost(error)
            return default
        except HybridKVError as error:
            self.counts["failed"] += 1
            logger.warning("%s: %s", what, error)
            return default
        except Exception:  # an engine's cache thread that dies takes the cache with it, unnoticed
            self.counts["bugs"] += 1
            logger.exception("%s", what)
            return default
        self._note_there()
        return result

    def close(self) -> None:
        """Detach; later calls answer their defaults. May be repeated."""
        with self._lock:
            self._closed = True
            kv, self._kv = self._kv, None
        if kv is not None:
            kv.close()

    def _handle(self) -> KV | None:
        """The handle; None while it is closed, or the daemon is left alone."""
        with self._lock:
            if self._closed or self._clock() < self._not_before:
                return None
            if self._kv is None:
                self._kv = self._open_kv()
            return self._kv

    def _note_lost(self, error: HybridKVError) -> None:
        self.counts["failed"] += 1
        self._not_before = self._clock() + self._retry_s
        if not self._lost:
            self._lost = True
            logger.warning("no daemon, going on without (asked again every %g s): %s", self._retry_s, error)

    def _note_there(self) -> None:
        if self._lost:
            self._lost = False
            logger.info("the daemon is back")
