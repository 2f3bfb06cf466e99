"""Regions: files on shared memory, mapped by the daemon and handed to workers as descriptors.

A region is sparse: `commit` takes room for a range before anyone touches it, so that a full file system is an error
of the call and not a SIGBUS of whoever writes first. Never `multiprocessing.shared_memory`: it deletes the segment
when an attaching process leaves.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.errors import (
    FailedPreconditionError,
    HybridKVError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from hybridkv.tiers.mapping import Mapping

PAGE_BYTES = mmap.PAGESIZE

_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class SharedRegion:
    """A file on shared memory and this process's mapping of it.

    `array` is the whole region as flat uint8; it is read-only when the mapping is. Views keep the mapping alive:
    `close` drops the region's own references and its descriptor, and the memory is unmapped when the last view dies.
    A forked child has neither mapping nor descriptor: there the region is closed and a view inherited faults.
    Calls may come from any thread; `close` must not race with other calls.
    """

    def __init__(self, fd: int, nbytes: int, *, writable: bool, path: Path | None) -> None:
        """Take over `fd`. Use `create` or `attach`. Raises OSError and then leaves `fd` to the caller."""
        self._mapping: Mapping | None = Mapping(fd, nbytes, writable=writable)
        self._array: npt.NDArray[np.uint8] | None = self._mapping.array()
        self._fd = fd
        self._closing = weakref.finalize(self, os.close, fd)
        self._closing.atexit = False
        self.nbytes = nbytes
        self.writable = writable
        self.path = path
        self._identity = os.fstat(fd)
        _regions.add(self)

    @classmethod
    def create(cls, path: Path, nbytes: int, *, huge_pages: bool = False) -> Self:
        """Make a new sparse file of mode 0600 and map it for reading and writing.

        Raises InvalidArgumentError unless `nbytes` is a positive multiple of the page size,
        FailedPreconditionError when `path` exists, ResourceExhaustedError, UnavailableError.
        """
        if nbytes <= 0 or nbytes % PAGE_BYTES:
            raise InvalidArgumentError("nbytes", f"{nbytes} is no positive multiple of {PAGE_BYTES}")
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileExistsError as error:
            raise FailedPreconditionError(f"{path}: exists already") from error
        except OSError as error:
            raise UnavailableError(f"{path}: cannot be created: {error.strerror}") from error
        try:
            os.ftruncate(fd, nbytes)
            region = cls(fd, nbytes, writable=True, path=path)
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            raise _translated(error, f"{path}: cannot be mapped", nbytes, None) from error
        if huge_pages:
            region.request_huge_pages()
        return region

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Map, for reading and writing, the whole of a region's file that is there already, and is this user's.

        Raises FailedPreconditionError.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise FailedPreconditionError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                raise FailedPreconditionError(f"{path}: is no file of user {os.getuid()}")
            if not found.st_size or found.st_size % PAGE_BYTES:
                raise FailedPreconditionError(f"{path}: {found.st_size} bytes are no region")
            return cls(fd, found.st_size, writable=True, path=path)
        except OSError as error:
            os.close(fd)
            raise FailedPreconditionError(f"{path}: cannot be mapped: {error.strerror}") from error
        except FailedPreconditionError:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int, writable: bool) -> Self:
        """Map a received descriptor, which the region owns from now on: it is closed when this raises, too.

        Raises FailedPreconditionError when the descriptor is no regular file of at least `nbytes` (reading past the
        end would be SIGBUS), or was opened read-only and `writable` is asked.
        """
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or not 0 < nbytes <= found.st_size:
                raise FailedPreconditionError(f"region: {nbytes} bytes claimed, the descriptor has {found.st_size}")
            return cls(fd, nbytes, writable=writable, path=None)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise FailedPreconditionError(f"region: the descriptor cannot be mapped: {error.strerror}") from error
        except FailedPreconditionError:
            os.close(fd)
            raise

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The whole region, flat. Raises FailedPreconditionError once closed."""
        if self._array is None:
            raise FailedPreconditionError(f"{self!r} is closed")
        return self._array

    @property
    def fd(self) -> int:
        """The region's descriptor, owned by the region. Raises FailedPreconditionError once closed."""
        if self._mapping is None:
            raise FailedPreconditionError(f"{self!r} is closed")
        return self._fd

    @property
    def closed(self) -> bool:
        return self._mapping is None

    def read_only_fd(self) -> int:
        """A new descriptor, open for reading only, owned by the caller: its receiver can never map it writable.

        A duplicate would not do: it shares the open file and with it the right to write. Raises UnavailableError.
        """
        try:
            return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnavailableError(f"{self!r}: cannot be opened read-only: {error.strerror}") from error

    def commit(self, offset: int, nbytes: int) -> None:
        """Take room for the range, all of it or none. A range that has room already keeps its bytes.

        Raises ResourceExhaustedError ("shared memory") when the file system or the memory limit is full,
        UnavailableError on any other failure. May take milliseconds: never call it under a lock.
        """
        self._check_range(offset, nbytes)
        try:
            os.posix_fallocate(self.fd, offset, nbytes)
        except OSError as error:
            raise _translated(error, f"{self!r}: no room", nbytes, self.fd) from error

    def release(self, offset: int, nbytes: int) -> None:
        """Give the range's room back; it reads as zeros afterwards. Both ends must be multiples of the page size.

        Raises UnavailableError. Whoever touches the range before the next `commit` risks SIGBUS.
        """
        self._check_range(offset, nbytes)
        if offset % PAGE_BYTES or nbytes % PAGE_BYTES:
            raise InvalidArgumentError("offset", f"{offset}+{nbytes} is not aligned to {PAGE_BYTES}")
        if _libc.fallocate(self.fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, offset, nbytes) != 0:
            code = ctypes.get_errno()
            raise UnavailableError(f"{self!r}: room cannot be given back: {os.strerror(code)}")

    def committed_bytes(self) -> int:
        """Bytes of room the file holds now."""
        return os.fstat(self.fd).st_blocks * 512

    def request_huge_pages(self) -> str | None:
        """Ask the kernel for huge pages; returns None when it may give them, else why not. Never fails."""
        try:
            if self._mapping is not None:
                self._mapping.advise(mmap.MADV_HUGEPAGE)
        except OSError as error:
            return f"madvise: {error.strerror}"
        return _shmem_huge_pages_off()

    def when_unmapped(self, call: Callable[[], None]) -> None:
        """`call` once this mapping is gone: closed, and without a view. On whatever thread dropped the last; not at exit, and
        not in a forked child. Raises FailedPreconditionError once closed."""
        if self._mapping is None:
            raise FailedPreconditionError(f"{self!r} is closed")
        born_in = os.getpid()
        weakref.finalize(self._mapping, lambda: call() if os.getpid() == born_in else None).atexit = False

    def close(self) -> None:
        """Drop the mapping and the descriptor; views that exist keep the memory mapped. May be called again."""
        self._mapping = self._array = None
        self._closing()

    def unlink(self) -> None:
        """Remove the file, if the one at `path` is still this region's. Those who map it keep it."""
        if self.path is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.path), self._identity):
                os.unlink(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "rw" if self.writable else "ro"
        return f"SharedRegion({self.path or 'received'}, {self.nbytes} bytes, {state})"

    def _check_range(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes <= 0 or offset + nbytes > self.nbytes:
            raise InvalidArgumentError("offset", f"{offset}+{nbytes} is outside of the region's {self.nbytes} bytes")


_regions: "weakref.WeakSet[SharedRegion]" = weakref.WeakSet()


def _close_in_child() -> None:
    for region in list(_regions):
        region.close()


os.register_at_fork(after_in_child=_close_in_child)


def _translated(error: OSError, doing: str, nbytes: int, fd: int | None) -> HybridKVError:
    if error.errno not in _NO_ROOM:
        return UnavailableError(f"{doing}: {error.strerror}")
    figures = f"{nbytes} bytes asked"
    if fd is not None:
        room = os.fstatvfs(fd)
        figures += f", {room.f_bavail * room.f_frsize} of {room.f_blocks * room.f_frsize} free"
    return ResourceExhaustedError("shared memory", f"{doing}: {error.strerror} ({figures})")


def _shmem_huge_pages_off() -> str | None:
    try:
        setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text()
    except OSError as error:
        return f"shmem_enabled: {error.strerror}"
    chosen = setting[setting.find("[") + 1 : setting.find("]")]
    return None if chosen in ("always", "within_size", "advise", "force") else f"shmem_enabled is {chosen!r}"
