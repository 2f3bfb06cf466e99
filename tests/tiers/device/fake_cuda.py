"""A CUDA that records what it is told, refuses what CUDA refuses, and is as late as CUDA may be.

Nothing put on a stream happens until somebody waits for an event behind it, so whatever code forgets to wait for has
not happened when the code looks. Two `FakeCuda` of one `World` are two processes on one machine.
"""

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.cuda_runtime import IPC_ALIGN_BYTES, IPC_HANDLE_BYTES
from hybridkv.tiers.errors import ResourceExhaustedError, UnavailableError
from tests.tiers.device.fake_world import (
    FIRST_DEVICE_ADDRESS,
    LAUNCHES_BEFORE_BLOCKING,
    Allocation,
    Bytes,
    EventState,
    Operation,
    StreamState,
    World,
)

if TYPE_CHECKING:
    import torch


class FakeCuda:
    """`CudaRuntime` for one process of `world`.

    `refuse_registration` makes page-locking fail; `reaches_host`: kernels may use addresses of page-locked memory.
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.refuse_registration = False
        self.reaches_host = True
        self._allocations: dict[int, Allocation] = {}
        self._opened: dict[int, Allocation] = {}
        self._host: dict[int, int] = {}  # page-locked: start -> end
        self._host_devices: dict[int, int] = {}  # registered through
        self._host_allocations: dict[int, Bytes] = {}
        self._streams: dict[int, StreamState] = {}
        self._events: dict[int, EventState] = {}
        self._current: dict[int, int] = {}

    def device_count(self) -> int:
        return self.world.devices

    def device_uuid(self, device: int) -> str:
        return f"GPU-fake-{device}"

    def memory_info(self, device: int) -> tuple[int, int]:
        return self.world.free_bytes[device], self.world.device_bytes

    def kernels_reach_host(self, device: int) -> bool:
        return self.reaches_host

    def malloc(self, device: int, nbytes: int) -> int:
        with self.world.changed:
            if nbytes > self.world.free_bytes[device]:
                raise ResourceExhaustedError("GPU memory", f"{nbytes} of {self.world.free_bytes[device]}")
            self.world.free_bytes[device] -= nbytes
            address = self.world.place(nbytes)
            self._allocations[address] = Allocation(device, np.full(nbytes, 0xA5, np.uint8), self)
            self.world.note("malloc", address)
            return address

    def free(self, device: int, address: int) -> None:
        with self.world.changed:
            allocation = self._allocations.pop(address, None)
            self._refuse_unless(allocation is not None and allocation.device == device, "free of an unknown address")
            assert allocation is not None
            self._refuse_unless(allocation.mappings == 0, "free while another process has it open: undefined")
            for stream in self._streams.values():  # cudaFree waits for the device
                self.world.run_until((stream, stream.put))
            allocation.freed = True
            self.world.free_bytes[device] += len(allocation.memory)
            self.world.note("free", address)

    def malloc_host(self, device: int, nbytes: int) -> int:
        memory = np.full(nbytes, 0x5A, np.uint8)
        address = memory.ctypes.data
        self._host_allocations[address] = memory
        self._host[address] = address + nbytes
        return address

    def free_host(self, device: int, address: int) -> None:
        self._refuse_unless(address in self._host_allocations, "free_host of an unknown address")
        del self._host_allocations[address], self._host[address]

    def register_host(self, device: int, address: int, nbytes: int, read_only: bool) -> None:
        overlap = any(start < address + nbytes and address < end for start, end in self._host.items())
        self._refuse_unless(not overlap, "part or all of the memory is registered already")
        self._refuse_unless(not self.refuse_registration, "operation not permitted")
        self._host[address] = address + nbytes
        self._host_devices[address] = device

    def unregister_host(self, device: int, address: int) -> None:
        self._refuse_unless(address in self._host, "memory is not registered")
        del self._host[address]

    def export_memory(self, device: int, address: int) -> bytes:
        allocation = self._allocations.get(address)
        self._refuse_unless(allocation is not None, "export of an address that is no allocation's start")
        assert allocation is not None
        self._refuse_unless(len(allocation.memory) % IPC_ALIGN_BYTES == 0, "export would share a neighbour's memory")
        return self._new_handle(allocation)

    def open_memory(self, device: int, handle: bytes) -> int:
        with self.world.changed:
            allocation = self.world.handles.get(handle)
            self._refuse_unless(isinstance(allocation, Allocation), "unknown memory handle")
            assert isinstance(allocation, Allocation)
            self._refuse_unless(allocation.owner is not self, "a handle cannot be opened by the process that made it")
            self._refuse_unless(not allocation.freed, "the handle's memory was freed")
            self._refuse_unless(allocation.device == device, "handle of another device")
            address = self.world.place(len(allocation.memory))
            self._opened[address] = allocation
            allocation.mappings += 1
            return address

    def close_memory(self, device: int, address: int) -> None:
        with self.world.changed:
            self._refuse_unless(address in self._opened, "close of an address that is not open")
            self._opened.pop(address).mappings -= 1

    def create_stream(self, device: int) -> int:
        with self.world.changed:
            handle = next(self.world.numbers)
            self._streams[handle] = StreamState(device)
            return handle

    def destroy_stream(self, device: int, stream: int) -> None:
        self._stream(device, stream)
        del self._streams[stream]

    def current_stream(self, device: int) -> int:
        if device not in self._current:
            self._current[device] = self.create_stream(device)
        return self._current[device]

    def create_event(self, device: int) -> int:
        with self.world.changed:
            handle = next(self.world.numbers)
            self._events[handle] = EventState(device)
            return handle

    def destroy_event(self, device: int, event: int) -> None:
        self._event(event)
        del self._events[event]

    def export_event(self, device: int, event: int) -> bytes:
        return self._new_handle(self._event(event))

    def open_event(self, device: int, handle: bytes) -> int:
        with self.world.changed:
            state = self.world.handles.get(handle)
            self._refuse_unless(isinstance(state, EventState), "unknown event handle")
            assert isinstance(state, EventState)
            self._refuse_unless(
                all(state is not mine for mine in self._events.values()), "an event cannot be opened by its own process"
            )
            number = next(self.world.numbers)
            self._events[number] = state
            return number

    def record_event(self, device: int, event: int, stream: int) -> None:
        with self.world.changed:
            on, state = self._stream(device, stream), self._event(event)
            self._refuse_unless(state.device == device, "event of another device")
            state.record = (on, on.put)
            self.world.note("record_event", event)

    def stream_wait_event(self, device: int, stream: int, event: int) -> None:
        record = self._event(event).record
        self._put(device, stream, "stream_wait_event", event, lambda: self.world.run_until(record))

    def event_done(self, device: int, event: int) -> bool:
        """Progress is seen at the next query: an event that nobody waits for still comes to pass."""
        with self.world.changed:
            record = self._event(event).record
            if record is None or record[0].ran >= record[1]:
                return True
            if not self.world.paused:
                self.world.run_until(record)
            return False

    def wait_event(self, device: int, event: int) -> None:
        with self.world.changed:
            record = self._event(event).record
            if record is None:
                return
            self.world.changed.wait_for(lambda: not self.world.paused)
            self.world.run_until(record)
            self.world.note("wait_event", event)

    def copy_async(self, device: int, destination: int, source: int, nbytes: int, stream: int) -> None:
        to, at = self._memory(device, destination, nbytes), self._memory(device, source, nbytes)
        staging = any(start <= source < start + len(memory) for start, memory in self._host_allocations.items())
        before = at.copy() if staging else None  # no earlier copy of the stream may write there, so nobody may

        def run() -> None:
            if not self._all_alive(destination, source):
                return
            if before is not None and not np.array_equal(at, before):
                self.world.violations.append("a staging buffer was changed before its copy happened")
            self._refuse_unless(not np.may_share_memory(to, at), "source and destination overlap")
            to[:] = at

        self._put(device, stream, "copy_async", destination, run)

    def gather(
        self, device: int, rows: int, row_count: int, row_bytes: int, index: int, count: int, into: int, stream: int
    ) -> None:
        self._put_kernel("gather", device, (rows, row_count, row_bytes), index, (into, count), stream)

    def scatter(
        self, device: int, rows: int, row_count: int, row_bytes: int, index: int, count: int, source: int, stream: int
    ) -> None:
        self._put_kernel("scatter", device, (rows, row_count, row_bytes), index, (source, count), stream)

    def _put_kernel(
        self,
        name: str,
        device: int,
        table: tuple[int, int, int],
        index: int,
        packed_at: tuple[int, int],
        stream: int,
    ) -> None:
        (rows, row_count, row_bytes), (start, count) = table, packed_at
        packed = self._memory(device, start, count * row_bytes).reshape(count, row_bytes)
        picks = self._memory(device, index, count * 8)
        self._refuse_unless(rows % 8 == 0 and row_bytes % 8 == 0, "misaligned address")

        def run() -> None:
            if not self._all_alive(index, start):
                return
            for number, row in enumerate(self._checked_rows(picks, row_count).tolist()):
                memory = self._memory(device, rows + row * row_bytes, row_bytes)
                self._refuse_unless(self._reaches(device, rows + row * row_bytes), "an illegal memory access")
                to, at = (packed[number], memory) if name == "gather" else (memory, packed[number])
                to[:] = at

        self._put(device, stream, name, rows, run)

    def tensor(self, device: int, address: int, nbytes: int) -> "torch.Tensor":
        from torch.utils.dlpack import from_dlpack

        return from_dlpack(self._memory(device, address, nbytes))

    def kernel(self, device: int, stream: int, run: Callable[[], None]) -> None:
        """For tests: the work of an engine's own kernel."""
        self._put(device, stream, "kernel", stream, run)

    def _put(self, device: int, stream: int, name: str, about: int, run: Callable[[], None]) -> None:
        with self.world.changed:
            state = self._stream(device, stream)
            self._refuse_unless(len(state.pending) < LAUNCHES_BEFORE_BLOCKING, "the launch would block the process")
            state.pending.append(Operation(name, run))
            state.put += 1
            self.world.note(name, about)

    def _memory(self, device: int, address: int, nbytes: int) -> Bytes:
        if address < FIRST_DEVICE_ADDRESS:
            return self._page_locked(address, nbytes)
        for start, allocation in (self._allocations | self._opened).items():
            if start <= address < start + len(allocation.memory):
                self._refuse_unless(allocation.device == device, "memory of another device")
                self._refuse_unless(address + nbytes <= start + len(allocation.memory), "a range leaves its allocation")
                return allocation.memory[address - start : address - start + nbytes]
        raise UnavailableError("fake cuda: an illegal memory access: freed, or never allocated")

    def _page_locked(self, address: int, nbytes: int) -> Bytes:
        inside = any(start <= address and address + nbytes <= end for start, end in self._host.items())
        self._refuse_unless(inside, "an asynchronous copy of host memory that is not page-locked in one registration")
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def _all_alive(self, *addresses: int) -> bool:
        """Whether memory of work that runs now still is what it was when the work was put; else it is left out."""
        for address in addresses:
            host = any(start <= address < end for start, end in self._host.items())
            known = (self._allocations | self._opened).items()
            if not host and not any(a <= address < a + len(x.memory) and not x.freed for a, x in known):
                self.world.violations.append("work ran on memory that was freed or is no longer page-locked")
                return False
        return True

    def _reaches(self, device: int, address: int) -> bool:
        """Whether a kernel may use the address."""
        if address >= FIRST_DEVICE_ADDRESS:
            return True
        start = max((start for start in self._host if start <= address), default=0)
        return self.reaches_host and self._host_devices.get(start, device) == device

    def _checked_rows(self, picks: Bytes, row_count: int) -> npt.NDArray[np.int64]:
        rows = picks.view(np.int64)
        self._refuse_unless(bool((rows >= 0).all() and (rows < row_count).all()), "a row outside of its table")
        return rows

    def _stream(self, device: int, stream: int) -> StreamState:
        state = self._streams.get(stream)
        self._refuse_unless(state is not None and state.device == device, "a stream that is unknown, or elsewhere")
        assert state is not None
        return state

    def _event(self, event: int) -> EventState:
        state = self._events.get(event)
        self._refuse_unless(state is not None, "an event that is unknown or destroyed")
        assert state is not None
        return state

    def _new_handle(self, target: Allocation | EventState) -> bytes:
        with self.world.changed:
            handle = next(self.world.numbers).to_bytes(IPC_HANDLE_BYTES, "little")
            self.world.handles[handle] = target
            return handle

    def _refuse_unless(self, allowed: bool, message: str) -> None:
        if not allowed:
            raise UnavailableError(f"fake cuda: {message}")
