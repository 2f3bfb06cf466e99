"""Device memory of the daemon's CUDA pools, as this process reaches it. Torch and the device come when first needed.

Views are torch tensors over CUDA IPC mappings. What a process has enqueued on its streams has not happened when a call to
the daemon is made: `record` gives the call an event to bring along.
"""

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from hybridkv.tiers.device.base import AllocationHandle, Device, Event, ImportedPool
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.errors import FailedPreconditionError, HybridKVError, InvalidArgumentError, UnavailableError
from hybridkv.tiers.gpu import import_pool

if TYPE_CHECKING:
    import torch

Handles = Mapping[int, Sequence[AllocationHandle]]

MAX_EVENTS = 64
"""Events of one pool; when none of them is done, a call waits for the oldest."""


class Devices(Protocol):
    """Device pools by index. Thread-safe."""

    @property
    def pools(self) -> tuple[int, ...]: ...

    def why_not(self, pool: int) -> str | None:
        """Why the pool cannot be opened here; None when it is open from now on."""

    def view(self, pool: int, offset: int, nbytes: int) -> "torch.Tensor":
        """The bytes as torch.uint8 [nbytes], no copy. Raises FailedPreconditionError."""

    def record(self, pool: int) -> bytes | Event:
        """An event behind everything enqueued so far on the calling thread's current stream."""

    def synchronize(self, pool: int) -> None:
        """Wait for everything enqueued so far on the calling thread's current stream."""

    def let_go(self, timeout_s: float) -> bool:
        """Nothing of this process touches the memory any more: all that was recorded is done, all is unmapped.

        False when that did not come true in time, or a view is still alive.
        """

    def close(self) -> None:
        """Unmap; what has views goes with its last one. May be called again."""


class _Opened:
    """One pool, open. `events` with the bytes they were exported as, longest recorded first."""

    def __init__(self, device: Device, imported: ImportedPool) -> None:
        self.device = device
        self.imported = imported
        self.events: deque[tuple[Event, bytes]] = deque()
        self.views = 0


class WorkerDevices:
    """Pools of a daemon in another process."""

    def __init__(self, told: Handles, ask: Callable[[], Handles]) -> None:
        """`ask` brings all handles there are by now: memory is allocated as it is needed."""
        self._told = told
        self._ask = ask
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a view may end, and be counted, in the middle of a call
        self._opened: dict[int, _Opened] = {}
        self._refused: dict[int, str] = {}
        self._closing = False
        self._clean = False

    @property
    def pools(self) -> tuple[int, ...]:
        return tuple(self._told)

    def why_not(self, pool: int) -> str | None:
        with self._lock:
            if pool not in self._refused:
                try:
                    self._open(pool)
                except HybridKVError as error:
                    return str(error)
            return self._refused.get(pool)

    def view(self, pool: int, offset: int, nbytes: int) -> "torch.Tensor":
        with self._lock:
            opened = self._open(pool)
            try:
                tensor = opened.imported.view(offset, nbytes)
            except InvalidArgumentError:  # allocated since: ask again
                self._told = self._ask()
                opened.imported.add(self._told.get(pool, ()))
                tensor = self._known_by_now(opened, pool, offset, nbytes)
            opened.views += 1
            # The storage outlives the tensor when there are slices of it.
            weakref.finalize(tensor.untyped_storage(), self._view_ended, opened).atexit = False
            return tensor

    def _known_by_now(self, opened: _Opened, pool: int, offset: int, nbytes: int) -> "torch.Tensor":
        try:
            return opened.imported.view(offset, nbytes)
        except InvalidArgumentError as error:
            raise FailedPreconditionError(f"pool {pool}: {error}") from error

    def record(self, pool: int) -> bytes:
        with self._lock:
            opened = self._open(pool)
            if opened.events and (opened.events[0][0].done or len(opened.events) == MAX_EVENTS):
                event, payload = opened.events.popleft()
                event.wait()
                opened.device.record_event(again=event)
            else:
                event = opened.device.record_event()
                payload = opened.device.export_event(event)
            opened.events.append((event, payload))
            return payload

    def synchronize(self, pool: int) -> None:
        with self._lock:
            device = self._open(pool).device
        device.record_event().wait()

    def let_go(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        self.close()
        with self._lock:
            for opened in self._opened.values():
                for event, _ in opened.events:
                    if not event.wait(max(0.0, deadline - time.monotonic())):
                        return False
            self._clean = not any(opened.views for opened in self._opened.values())
            return self._clean

    def close(self) -> None:
        with self._lock:
            if os.getpid() != self._pid:
                return
            if self._closing and self._clean:  # the goodbye has been said: the daemon asks our events no more
                for opened in self._opened.values():
                    opened.events.clear()
                _kept[:] = [events for events in _kept if all(events is not o.events for o in self._opened.values())]
            if not self._closing:
                self._closing = True
                for opened in self._opened.values():
                    if not opened.views:
                        opened.imported.close()

    def _open(self, pool: int) -> _Opened:
        """Raises FailedPreconditionError, UnavailableError (not remembered: memory may come)."""
        if os.getpid() != self._pid:
            raise FailedPreconditionError("device memory: mapped by the parent of this process; attach again")
        if self._closing:
            raise FailedPreconditionError("device memory: the session has ended")
        if pool not in self._opened:
            if pool in self._refused:
                raise FailedPreconditionError(f"pool {pool}: {self._refused[pool]}")
            if not self._told.get(pool):
                self._told = self._ask()
            handles = self._told.get(pool)
            if not handles:
                raise UnavailableError(f"pool {pool}: the daemon has no device memory yet")
            try:
                self._opened[pool] = opened = _Opened(*import_pool(handles))
                _kept.append(opened.events)
            except HybridKVError as error:
                self._refused[pool] = str(error)
                raise FailedPreconditionError(f"pool {pool}: {error}") from error
        return self._opened[pool]

    def _view_ended(self, opened: _Opened) -> None:
        with self._lock:
            opened.views -= 1
            if self._closing and not opened.views and os.getpid() == self._pid:
                with contextlib.suppress(HybridKVError):  # nobody is there to hear it
                    opened.imported.close()

    def __repr__(self) -> str:
        return f"WorkerDevices(pools {self.pools}, open {tuple(self._opened)})"


_kept: list[deque[tuple[Event, bytes]]] = []
"""Events of all sessions. The daemon may ask them as long as it knows the session, so that those of a session that did not
end by a goodbye stay for the rest of this process's life. (Not left to a finalizer: the collector would call the events'.)
"""


class LocalDevices:
    """Pools of a host in this process: its own memory, its own events."""

    def __init__(self, pools: Mapping[int, DevicePool]) -> None:
        self._pools = pools
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()

    @property
    def pools(self) -> tuple[int, ...]:
        return tuple(self._pools)

    def why_not(self, pool: int) -> str | None:
        return None if pool in self._pools else f"pool {pool} is no device's"

    def view(self, pool: int, offset: int, nbytes: int) -> "torch.Tensor":
        return self._pools[pool].view(offset, nbytes)

    def record(self, pool: int) -> Event:
        event = self._pools[pool].device.record_event()
        with self._lock:
            while self._events and self._events[0].done:
                self._events.popleft()
            self._events.append(event)
        return event

    def synchronize(self, pool: int) -> None:
        self._pools[pool].device.record_event().wait()

    def let_go(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            return all(event.wait(max(0.0, deadline - time.monotonic())) for event in self._events)

    def close(self) -> None:
        """The memory is the host's."""
