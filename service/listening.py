"""The daemon's Unix socket: one daemon per path, and who may connect by the mode of its file.

Beside the socket lies `<socket>.lock`, under an exclusive flock for as long as the daemon lives. A socket file whose
lock is free belongs to a dead daemon and is replaced; one whose lock is held is left alone.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridkv.tiers.errors import UnavailableError

SCHEME = "unix://"
LOCK_SUFFIX = ".lock"
SIDE_SUFFIX = ".side"


def socket_path(address: str) -> Path:
    """The file of a "unix:///path" address."""
    return Path(address.removeprefix(SCHEME))


def side_socket_path(path: Path) -> Path:
    """Where the side socket of a daemon on `path` listens."""
    return path.with_name(path.name + SIDE_SUFFIX)


class SocketClaim:
    """The right to listen at `path`, held by this process until `close`.

    Made before the server binds. Raises UnavailableError naming the pid when a living daemon has it, or when the
    folder cannot be made or the path is something else than a socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path.with_name(path.name + LOCK_SUFFIX)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = self._locked()
        except OSError as error:
            raise UnavailableError(f"daemon.socket: {path} cannot be claimed: {error.strerror}") from error
        try:
            self._remove_stale()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def close(self) -> None:
        """Remove the socket and give up the claim. May be called again."""
        if self._lock_fd < 0:
            return
        for path in (self.path, self._lock_path):
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _locked(self) -> int:
        """The lock file's descriptor, locked. Tries again when a closing owner removed the file meanwhile."""
        while True:
            fd = os.open(self._lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(self._lock_path), os.fstat(fd)):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                    return fd
            except FileNotFoundError:
                pass
            except BlockingIOError:
                owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
                os.close(fd)
                by = f"pid {owner}" if owner.isdigit() else "a process that is just starting"
                raise UnavailableError(f"daemon.socket: {self.path} is in use by {by}") from None
            os.close(fd)

    def _remove_stale(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise UnavailableError(f"daemon.socket: {self.path} exists and is no socket")
            self.path.unlink()


@contextmanager
def files_of_mode(mode: int) -> Iterator[None]:
    """Sockets bound meanwhile have no more than `mode` from their first moment. The umask is the process's: keep it short."""
    before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(before)
