"""One store per directory: an exclusive flock that dies with its process."""

import errno
import fcntl
import os
import weakref
from pathlib import Path

from hybridkv.tiers.errors import UnavailableError

LOCK_NAME = "lock"


class DirectoryLock:
    """Holds the lock of a directory from `take` to `release`. The file stays; what counts is the lock on it.

    A forked child does not hold it: there the descriptor is closed, which leaves the parent's lock alone.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        self._fd: int | None = None
        _taken.add(self)

    def take(self) -> None:
        """Take the lock and write our pid, or raise UnavailableError with the pid of whoever holds it.

        On a full disk the pid is left out: it is for whoever is refused, and what is stored can still be served.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_pid(fd)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise UnavailableError(f"{self._path.parent} is in use by process {holder}") from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def in_place(self) -> bool:
        """Whether the file we hold is still the one in the directory."""
        if self._fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return False

    def release(self) -> None:
        """Give the lock up; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _write_pid(fd: int) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


_taken: "weakref.WeakSet[DirectoryLock]" = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_taken):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
