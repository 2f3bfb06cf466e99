"""What the CUDA device needs of CUDA. `cuda_torch` is the real one; tests put a recording fake in its place."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

IPC_HANDLE_BYTES = 64
IPC_ALIGN_BYTES = 2 << 20
"""CUDA cuts smaller allocations out of one larger block, and a handle would share that whole block."""


class CudaRuntime(Protocol):
    """Addresses, streams and events are integers; sizes are bytes. Thread-safe.

    Failures raise ResourceExhaustedError (out of device memory) or UnavailableError, which name the call.
    """

    def device_count(self) -> int: ...
    def device_uuid(self, device: int) -> str: ...
    def memory_info(self, device: int) -> tuple[int, int]:
        """Free and total bytes."""

    def kernels_reach_host(self, device: int) -> bool:
        """Whether kernels may use the host's own addresses of memory that was page-locked through this device."""

    def malloc(self, device: int, nbytes: int) -> int:
        """An allocation of its own: only multiples of IPC_ALIGN_BYTES may be exported."""

    def free(self, device: int, address: int) -> None: ...
    def malloc_host(self, device: int, nbytes: int) -> int:
        """Page-locked host memory."""

    def free_host(self, device: int, address: int) -> None: ...
    def register_host(self, device: int, address: int, nbytes: int, read_only: bool) -> None:
        """For all devices; `device` only spares making another one's context. `read_only`: a mapping that cannot be
        written, which CUDA refuses otherwise.
        """

    def unregister_host(self, device: int, address: int) -> None: ...

    def export_memory(self, device: int, address: int) -> bytes: ...
    def open_memory(self, device: int, handle: bytes) -> int:
        """Not in the process that exported it: CUDA refuses that."""

    def close_memory(self, device: int, address: int) -> None: ...

    def create_stream(self, device: int) -> int: ...
    def destroy_stream(self, device: int, stream: int) -> None: ...
    def current_stream(self, device: int) -> int:
        """The stream torch uses in this thread."""

    def create_event(self, device: int) -> int:
        """An interprocess event, without timing; waiting for it puts the thread to sleep."""

    def destroy_event(self, device: int, event: int) -> None: ...
    def export_event(self, device: int, event: int) -> bytes: ...
    def open_event(self, device: int, handle: bytes) -> int: ...
    def record_event(self, device: int, event: int, stream: int) -> None: ...
    def stream_wait_event(self, device: int, stream: int, event: int) -> None:
        """Work put on `stream` from now on waits for the event's last record before this call; none: no wait."""

    def event_done(self, device: int, event: int) -> bool: ...
    def wait_event(self, device: int, event: int) -> None:
        """Block until the last record is reached; at once when there is none."""

    def copy_async(self, device: int, destination: int, source: int, nbytes: int, stream: int) -> None:
        """Host memory must be page-locked, in one registration, and stay until the stream has passed."""

    def gather(
        self, device: int, rows: int, row_count: int, row_bytes: int, index: int, count: int, into: int, stream: int
    ) -> None:
        """into[i] = rows[index[i]], i < count, by a kernel; `index` is int64 in device memory.

        Only the rows that are named must be memory: the table may span several allocations, or lie in page-locked
        host memory where `kernels_reach_host`.
        """

    def scatter(
        self, device: int, rows: int, row_count: int, row_bytes: int, index: int, count: int, source: int, stream: int
    ) -> None:
        """rows[index[i]] = source[i], i < count, by a kernel; the table as for `gather`."""

    def tensor(self, device: int, address: int, nbytes: int) -> "torch.Tensor":
        """torch.uint8 [nbytes] over device memory, which it does not own."""
