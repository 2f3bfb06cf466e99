"""Shared file mappings whose life is that of the last NumPy view, and that a forked child does not inherit.

`mmap.mmap` is not used, for three reasons: it keeps a second descriptor of the file that a forked child cannot close
(a long-lived child would keep a dead daemon's whole tier in memory), closing it raises while views exist, and in a
child of a `MADV_DONTFORK` mapping its destructor would unmap whatever the child has placed at that address since.
"""

import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

_MAP_FIXED_NOREPLACE = 0x100000
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_live: dict[int, int] = {}  # address -> length of every mapping of this process
_fork_lock = threading.RLock()  # no fork between a mapping's birth and its MADV_DONTFORK


class Mapping:
    """A shared mapping of a whole file. Not inherited by fork; unmapped when this object and all its views are gone.

    In a forked child the range is reserved without access, so that a view the child inherited faults instead of
    reading what the child's allocator has put there.
    """

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        """Map `nbytes` of `fd` from offset 0. Raises OSError. The descriptor may be closed afterwards."""
        self.nbytes = nbytes
        self.writable = writable
        with _fork_lock:
            self.address = _map_shared(fd, nbytes, writable)
            try:
                self.advise(mmap.MADV_DONTFORK)
            except OSError:
                _libc.munmap(self.address, nbytes)
                raise
            _live[self.address] = nbytes
        weakref.finalize(self, _unmap, self.address, nbytes, os.getpid()).atexit = False  # views may outlive atexit

    def advise(self, advice: int) -> None:
        """madvise() over the whole range. Raises OSError."""
        if _libc.madvise(self.address, self.nbytes, advice) != 0:
            raise _last_error("madvise")

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, not self.writable)}

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes as a flat array, without a copy; it keeps the mapping alive."""
        return np.asarray(self)


def _map_shared(fd: int, nbytes: int, writable: bool) -> int:
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address: int | None = _libc.mmap(None, nbytes, prot, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _MAP_FAILED:
        raise _last_error("mmap")
    return address


def _last_error(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")


def _unmap(address: int, nbytes: int, pid: int) -> None:
    if os.getpid() != pid:  # a forked child never had it; the address may be in other use there
        return
    _live.pop(address, None)
    _libc.munmap(address, nbytes)


def _reserve_in_child() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE | _MAP_NORESERVE
    for address, nbytes in list(_live.items()):
        with contextlib.suppress(ValueError):
            _libc.mmap(address, nbytes, _PROT_NONE, flags, -1, 0)  # refused = the child is already using the range
    _live.clear()
    _fork_lock.release()


os.register_at_fork(before=_fork_lock.acquire, after_in_parent=_fork_lock.release, after_in_child=_reserve_in_child)
