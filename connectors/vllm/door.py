"""The way to the daemon for one namespace: never in the engine's way when nobody answers."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hybridkv.service.client import KV, connect
from hybridkv.tiers.errors import DeadlineExceededError, HybridKVError, UnavailableError
from hybridkv.tiers.namespace import Namespace

log = logging.getLogger(__name__)

T = TypeVar("T")
Connect = Callable[[Namespace], KV]

MAX_RETRY_S = 30.0


def connecting(address: str, timeout_s: float) -> Connect:
    """How doors connect: to the daemon at `address`, every call within `timeout_s`."""
    return lambda space: connect(address, space, timeout_s=timeout_s)


class Door:
    """Attaches in a thread of its own, again and again while there is no daemon; callers never wait for that.

    Thread-safe. A daemon that is lost costs one call its deadline; until the next attach every call fails at once.
    """

    def __init__(self, space: Namespace, connect: Connect, retry_s: float) -> None:
        self.space = space
        self._connect = connect
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._attached = threading.Event()
        self._kv: KV | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._keep_attached, name="hybridkv-door", daemon=True)
        self._wake.set()
        self._thread.start()

    @property
    def kv(self) -> KV | None:
        """The handle, None while there is no daemon."""
        return self._kv

    def wait(self, timeout_s: float) -> bool:
        """Whether it is attached within `timeout_s`: for the start, where an engine has time."""
        return self._attached.wait(timeout_s)

    def ask(self, call: Callable[[KV], T], otherwise: T) -> T:
        """What `call` answers; `otherwise` while there is no daemon, and when it refuses, is lost or too late."""
        kv = self._kv
        if kv is None:
            return otherwise
        try:
            return call(kv)
        except HybridKVError as error:
            self.failed(kv, error)
            return otherwise

    def failed(self, kv: KV, error: HybridKVError) -> None:
        """Note that a call on `kv` raised: a daemon that is gone or hangs is left alone until it answers again."""
        if not isinstance(error, UnavailableError | DeadlineExceededError):
            log.warning("hybridkv: %s: %s", type(error).__name__, error)
            return
        with self._lock:
            if self._kv is not kv:
                return
            self._kv = None
            self._attached.clear()
        log.warning("hybridkv: the daemon does not answer (%s); going on without it", error)
        self._wake.set()

    def close(self) -> None:
        """Detach. May be called again."""
        with self._lock:
            self._closed = True
            kv, self._kv = self._kv, None
        self._wake.set()
        self._thread.join()
        if kv is not None:
            kv.close()

    def _keep_attached(self) -> None:
        lost: KV | None = None
        while not self._closed:  # asked anew each time: a pause between two tries may have taken the wake of `close`
            self._wake.wait()
            self._wake.clear()
            if lost is not None:
                lost.close()
            lost = self._attach()
        if lost is not None:
            lost.close()

    def _attach(self) -> KV | None:
        """Try until it is attached or closed; the handle."""
        pause_s = self._retry_s
        while not self._closed:
            try:
                kv = self._connect(self.space)
            except HybridKVError as error:
                log.info("hybridkv: no daemon (%s); next try in %g s", error, pause_s)
                self._wake.wait(pause_s)
                self._wake.clear()
                pause_s = min(2 * pause_s, MAX_RETRY_S)
                continue
            with self._lock:
                if self._closed:
                    kv.close()
                    return None
                self._kv = kv
                self._attached.set()
            log.info("hybridkv: attached to the daemon as session %d", kv.session)
            return kv
        return None


class Doors:
    """The doors of one process, by namespace; each is opened once."""

    def __init__(self, connect: Connect, retry_s: float) -> None:
        self._connect = connect
        self._retry_s = retry_s
        self._doors: dict[bytes, Door] = {}

    def of(self, space: Namespace) -> Door:
        """The door of this namespace."""
        found = self._doors.get(space.fingerprint)
        if found is None:
            found = self._doors[space.fingerprint] = Door(space, self._connect, self._retry_s)
        return found

    def wait(self, timeout_s: float) -> None:
        """Give all of them up to `timeout_s` in all to attach."""
        until = time.monotonic() + timeout_s
        for door in self._doors.values():
            door.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        for door in self._doors.values():
            door.close()
