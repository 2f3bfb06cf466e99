"""The only calls into CUDA.

Memory, copies, streams, events and IPC go to the CUDA runtime library that torch has loaded: torch's own allocator
would keep what is freed, cut allocations out of larger ones, and share them by pickle. Torch is used for what only it
can do: tensors over our memory, and the gather and scatter of small blocks.

Never called under a lock of the directory: each call is cheap but `malloc`, `free`, `register_host` (milliseconds) and
the waits.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from hybridkv.tiers.device.cuda_runtime import IPC_HANDLE_BYTES
from hybridkv.tiers.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError

if TYPE_CHECKING:
    import torch

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_NOT_READY = 600  # cudaErrorNotReady
_MEMCPY_DEFAULT = 4  # the direction follows from the addresses
_HOST_REGISTER_PORTABLE = 1  # page-locked for every device, not only the current one
_HOST_REGISTER_READ_ONLY = 8
_HOST_ALLOC_PORTABLE = 1
_STREAM_NON_BLOCKING = 1  # no implicit order with the legacy default stream of other code in the process
_EVENT_BLOCKING_SYNC, _EVENT_DISABLE_TIMING, _EVENT_INTERPROCESS = 1, 2, 4
_IPC_LAZY_PEER_ACCESS = 1
_PROBE_BYTES = 4096
_CAN_USE_HOST_POINTER = 91  # cudaDevAttrCanUseHostPointerForRegisteredMem


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * IPC_HANDLE_BYTES),)


class _DeviceMemory:
    """What torch reads to lay a tensor over memory that it does not own."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
        }


_P, _SIZE, _INT, _UINT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
_QUICK = frozenset(
    {"cudaSetDevice", "cudaGetLastError", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventQuery", "cudaMemcpyAsync"}
)
"""Called with the interpreter lock held. They return in microseconds (the stream bounds what is in flight, so that the
launch queue never fills), while giving the lock up costs a switch interval (5 ms) beside one busy Python thread."""

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudaSetDevice": (_INT,),
    "cudaGetLastError": (),
    "cudaDeviceGetAttribute": (ctypes.POINTER(_INT), _INT, _INT),
    "cudaMemGetInfo": (ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE)),
    "cudaMalloc": (ctypes.POINTER(_P), _SIZE),
    "cudaFree": (_P,),
    "cudaHostAlloc": (ctypes.POINTER(_P), _SIZE, _UINT),
    "cudaFreeHost": (_P,),
    "cudaHostRegister": (_P, _SIZE, _UINT),
    "cudaHostUnregister": (_P,),
    "cudaIpcGetMemHandle": (ctypes.POINTER(_IpcHandle), _P),
    "cudaIpcOpenMemHandle": (ctypes.POINTER(_P), _IpcHandle, _UINT),
    "cudaIpcCloseMemHandle": (_P,),
    "cudaStreamCreateWithFlags": (ctypes.POINTER(_P), _UINT),
    "cudaStreamDestroy": (_P,),
    "cudaEventCreateWithFlags": (ctypes.POINTER(_P), _UINT),
    "cudaEventDestroy": (_P,),
    "cudaIpcGetEventHandle": (ctypes.POINTER(_IpcHandle), _P),
    "cudaIpcOpenEventHandle": (ctypes.POINTER(_P), _IpcHandle),
    "cudaEventRecord": (_P, _P),
    "cudaStreamWaitEvent": (_P, _P, _UINT),
    "cudaEventQuery": (_P,),
    "cudaEventSynchronize": (_P,),
    "cudaMemcpyAsync": (_P, _P, _SIZE, _INT, _P),
}


class TorchCudaRuntime:
    """The real one. Raises UnavailableError when torch, a GPU or the runtime library is missing."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise UnavailableError("cuda: torch is not installed") from error
        if not torch.cuda.is_available():
            raise UnavailableError("cuda: torch finds no usable GPU")
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._torch = torch
        self._functions = _load_functions()
        self._uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]

    def device_count(self) -> int:
        return len(self._uuids)

    def device_uuid(self, device: int) -> str:
        return self._uuids[device]

    def memory_info(self, device: int) -> tuple[int, int]:
        free, total = _SIZE(), _SIZE()
        self._call(device, "cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def kernels_reach_host(self, device: int) -> bool:
        answer = _INT()
        self._call(device, "cudaDeviceGetAttribute", ctypes.byref(answer), _CAN_USE_HOST_POINTER, device)
        return bool(answer.value) and self._torch_reaches_host(device)

    def _torch_reaches_host(self, device: int) -> bool:
        """Torch asks CUDA to which device an address belongs, and its answer for host memory is not documented."""
        address = self.malloc_host(device, _PROBE_BYTES)
        try:
            self.tensor(device, address, _PROBE_BYTES)
        except UnavailableError:
            return False
        finally:
            self.free_host(device, address)
        return True

    def malloc(self, device: int, nbytes: int) -> int:
        return self._made(device, "cudaMalloc", nbytes)

    def free(self, device: int, address: int) -> None:
        self._call(device, "cudaFree", address)

    def malloc_host(self, device: int, nbytes: int) -> int:
        return self._made(device, "cudaHostAlloc", nbytes, _HOST_ALLOC_PORTABLE)

    def free_host(self, device: int, address: int) -> None:
        self._call(device, "cudaFreeHost", address)

    def register_host(self, device: int, address: int, nbytes: int, read_only: bool) -> None:
        flags = _HOST_REGISTER_PORTABLE | (_HOST_REGISTER_READ_ONLY if read_only else 0)
        self._call(device, "cudaHostRegister", address, nbytes, flags)

    def unregister_host(self, device: int, address: int) -> None:
        self._call(device, "cudaHostUnregister", address)

    def export_memory(self, device: int, address: int) -> bytes:
        handle = _IpcHandle()
        self._call(device, "cudaIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle)

    def open_memory(self, device: int, handle: bytes) -> int:
        return self._made(device, "cudaIpcOpenMemHandle", _ipc_handle(handle), _IPC_LAZY_PEER_ACCESS)

    def close_memory(self, device: int, address: int) -> None:
        self._call(device, "cudaIpcCloseMemHandle", address)

    def create_stream(self, device: int) -> int:
        return self._made(device, "cudaStreamCreateWithFlags", _STREAM_NON_BLOCKING)

    def destroy_stream(self, device: int, stream: int) -> None:
        self._call(device, "cudaStreamDestroy", stream)

    def current_stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def create_event(self, device: int) -> int:
        flags = _EVENT_BLOCKING_SYNC | _EVENT_DISABLE_TIMING | _EVENT_INTERPROCESS
        return self._made(device, "cudaEventCreateWithFlags", flags)

    def destroy_event(self, device: int, event: int) -> None:
        self._call(device, "cudaEventDestroy", event)

    def export_event(self, device: int, event: int) -> bytes:
        handle = _IpcHandle()
        self._call(device, "cudaIpcGetEventHandle", ctypes.byref(handle), event)
        return bytes(handle)

    def open_event(self, device: int, handle: bytes) -> int:
        return self._made(device, "cudaIpcOpenEventHandle", _ipc_handle(handle))

    def record_event(self, device: int, event: int, stream: int) -> None:
        self._call(device, "cudaEventRecord", event, stream)

    def stream_wait_event(self, device: int, stream: int, event: int) -> None:
        self._call(device, "cudaStreamWaitEvent", stream, event, 0)

    def event_done(self, device: int, event: int) -> bool:
        return self._call(device, "cudaEventQuery", event, allowed=_NOT_READY) == 0

    def wait_event(self, device: int, event: int) -> None:
        self._call(device, "cudaEventSynchronize", event)

    def copy_async(self, device: int, destination: int, source: int, nbytes: int, stream: int) -> None:
        self._call(device, "cudaMemcpyAsync", destination, source, nbytes, _MEMCPY_DEFAULT, stream)

    def gather(
        self, device: int, rows: int, row_count: int, row_bytes: int, index: int, count: int, into: int, stream: int
    ) -> None:
        with self._on(device, stream):
            table, picks = self._table(device, rows, row_count, row_bytes), self._index(device, index, count)
            self._torch.index_select(table, 0, picks, out=self._table(device, into, count, row_bytes))

    def scatter(
        self, device: int, rows: int, row_count: int, row_bytes: int, index: int, count: int, source: int, stream: int
    ) -> None:
        with self._on(device, stream):
            table, picks = self._table(device, rows, row_count, row_bytes), self._index(device, index, count)
            table.index_copy_(0, picks, self._table(device, source, count, row_bytes))

    def tensor(self, device: int, address: int, nbytes: int) -> "torch.Tensor":
        with _translating(device):
            laid = self._torch.as_tensor(_DeviceMemory(address, nbytes), device=f"cuda:{device}")
        if laid.data_ptr() != address:  # torch takes the memory for another device's, and copies it over
            raise UnavailableError(f"torch: memory at {address:#x} is not taken for device {device}'s")
        return laid

    def _table(self, device: int, address: int, rows: int, row_bytes: int) -> "torch.Tensor":
        flat = self.tensor(device, address, rows * row_bytes)
        return flat.view(self._torch.int64).view(rows, row_bytes // 8)  # words, not bytes: an eighth of the elements

    def _index(self, device: int, address: int, count: int) -> "torch.Tensor":
        return self.tensor(device, address, count * 8).view(self._torch.int64)

    @contextlib.contextmanager
    def _on(self, device: int, stream: int) -> Iterator[None]:
        """Torch's work goes to `stream`, and its errors are ours."""
        external = self._torch.cuda.ExternalStream(stream, device=device)  # type: ignore[no-untyped-call]
        with _translating(device), self._torch.cuda.stream(external):
            yield

    def _made(self, device: int, name: str, *arguments: Any) -> int:
        made = _P()
        self._call(device, name, ctypes.byref(made), *arguments)
        return int(made.value or 0)

    def _call(self, device: int, name: str, *arguments: Any, allowed: int = 0) -> int:
        """Make the device current in this thread, call, translate the answer."""
        for function, values in (("cudaSetDevice", (device,)), (name, arguments)):
            code = int(self._functions[function](*values))
            if code not in (0, allowed):
                raise self._translated(device, function, code)
        return code

    def _translated(self, device: int, name: str, code: int) -> ResourceExhaustedError | UnavailableError:
        self._functions["cudaGetLastError"]()  # forget it: torch would report our failure as its own
        text = self._functions["cudaGetErrorString"](code).decode()
        message = f"{name}: {text} ({code}), device {device}"
        return ResourceExhaustedError("GPU memory", message) if code == _OUT_OF_MEMORY else UnavailableError(message)


@contextlib.contextmanager
def _translating(device: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what torch raises for every CUDA failure
        raise UnavailableError(f"torch: {error}, device {device}") from error


@cache
def torch_runtime() -> TorchCudaRuntime:
    """The process's one real runtime. Raises UnavailableError, and then tries again the next time."""
    return TorchCudaRuntime()


def _ipc_handle(payload: bytes) -> _IpcHandle:
    if len(payload) != IPC_HANDLE_BYTES:
        raise InvalidArgumentError("handle", f"{len(payload)} bytes; a CUDA handle has {IPC_HANDLE_BYTES}")
    return _IpcHandle.from_buffer_copy(payload)


def _load_functions() -> dict[str, Any]:
    """The functions of the libcudart that torch has mapped: a second one beside it would be another version's."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libcudart" in line}
    path = min(paths, default="libcudart.so")
    try:
        waiting, quick = ctypes.CDLL(path), ctypes.PyDLL(path)
    except OSError as error:
        raise UnavailableError(f"cuda: the runtime library cannot be loaded: {error}") from error
    functions: dict[str, Any] = {}
    for name, arguments in _SIGNATURES.items():
        function = getattr(quick if name in _QUICK else waiting, name)
        function.argtypes, function.restype = arguments, _INT
        functions[name] = function
    text = quick.cudaGetErrorString
    text.argtypes, text.restype = (_INT,), ctypes.c_char_p
    return functions | {"cudaGetErrorString": text}
