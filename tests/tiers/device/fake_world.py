"""The machine behind `fake_cuda`: devices, memory, streams and events, shared by its processes."""

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

FIRST_DEVICE_ADDRESS = 1 << 48  # above the 47 bits of user addresses
LAUNCHES_BEFORE_BLOCKING = 1024  # what a CUDA stream queues before a launch blocks its thread


@dataclass(eq=False)
class Allocation:
    device: int
    memory: Bytes
    owner: object
    freed: bool = False
    mappings: int = 0  # other processes that have it open


@dataclass(eq=False)
class Operation:
    name: str
    run: Callable[[], None]


@dataclass(eq=False)
class StreamState:
    device: int
    pending: deque[Operation] = field(default_factory=deque)
    put: int = 0
    ran: int = 0


@dataclass(eq=False)
class EventState:
    device: int
    record: tuple[StreamState, int] | None = None  # the stream, and how much was on it
    destroyed: bool = False


class World:
    """What the processes of one machine share: devices, their memory, streams and events."""

    def __init__(self, devices: int = 2, device_bytes: int = 1 << 30) -> None:
        self.devices = devices
        self.free_bytes = [device_bytes] * devices
        self.device_bytes = device_bytes
        self.changed = threading.Condition(threading.RLock())
        self.paused = False
        self.log: list[tuple[str, int]] = []  # (call, the stream, event or address it was about)
        self.violations: list[str] = []
        self.handles: dict[bytes, Allocation | EventState] = {}
        self._next_address = FIRST_DEVICE_ADDRESS
        self.numbers = itertools.count(1)

    def place(self, nbytes: int) -> int:
        """An address for new memory, right behind the last: CUDA's allocations may be neighbours, too."""
        address, self._next_address = self._next_address, self._next_address + nbytes
        return address

    def pause(self) -> None:
        """The devices stand still: whoever waits for an event waits until `resume`."""
        with self.changed:
            self.paused = True

    def resume(self) -> None:
        with self.changed:
            self.paused = False
            self.changed.notify_all()

    def calls(self, name: str) -> int:
        return sum(1 for call, _ in self.log if call == name)

    def wait_for_calls(self, name: str, count: int, timeout_s: float = 10.0) -> bool:
        """True once `name` was called `count` times, False when `timeout_s` passed first."""
        with self.changed:
            return self.changed.wait_for(lambda: self.calls(name) >= count, timeout_s)

    def note(self, call: str, about: int) -> None:
        with self.changed:
            self.log.append((call, about))
            self.changed.notify_all()

    def run_until(self, record: tuple[StreamState, int] | None) -> None:
        if record is None:
            return
        stream, end = record
        while stream.ran < end:
            operation = stream.pending.popleft()
            stream.ran += 1
            operation.run()
