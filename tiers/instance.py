"""The folder of one daemon's regions, and the lock that proves the daemon alive.

`<shm_dir>/hybridkv-<uid>-<name>/` holds the region files and a file `lock`, under an exclusive flock for as long as
the daemon lives. The kernel drops that lock with the process, however it ends, so what lies in a folder whose lock is
free belongs to a dead daemon and nobody else.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
import weakref
from pathlib import Path

from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError, UnavailableError
from hybridkv.tiers.process import boot_id, own_start_time

_log = logging.getLogger(__name__)

LOCK_NAME = "lock"
REGION_SUFFIX = ".region"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class InstanceDir:
    """The claimed folder of a running daemon. Made by `claim_instance`; `close` gives it up.

    `stale` holds the region files of a dead predecessor that were kept for the caller to take over, by path;
    `was_discarded`: there were some, and they were removed.
    A forked child does not hold the lock.
    """

    def __init__(self, path: Path, lock_fd: int, stale: tuple[Path, ...], was_discarded: bool = False) -> None:
        self.path = path
        self.stale = stale
        self.was_discarded = was_discarded
        self._lock_fd: int | None = lock_fd
        _claimed.add(self)

    def region_path(self, name: str) -> Path:
        """Where the region `name` ("cpu.data", "gpu0.headers") has its file."""
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError("name", f"{name!r} does not match {_NAME.pattern}")
        return self.path / (name + REGION_SUFFIX)

    def discard(self) -> None:
        """Remove what a predecessor left."""
        for region in self.stale:
            region.unlink(missing_ok=True)

    def close(self, *, keep: bool = False) -> None:
        """Remove the region files (all of them, unless `keep`) and the folder, then drop the lock. May be repeated."""
        if self._lock_fd is None:
            return
        if not keep:
            _remove_regions(self.path)
            with contextlib.suppress(OSError):  # others' files stay; the next claim copes with them
                (self.path / LOCK_NAME).unlink()
                self.path.rmdir()
        self._forget()

    def _forget(self) -> None:
        """Close the descriptor without unlocking: in a forked child the lock is still the parent's."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __repr__(self) -> str:
        return f"InstanceDir({self.path}, {'closed' if self._lock_fd is None else 'claimed'})"


_claimed: "weakref.WeakSet[InstanceDir]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for claimed in list(_claimed):
        claimed._forget()


os.register_at_fork(after_in_child=_forget_in_child)


def claim_instance(shm_dir: Path, name: str, *, keep: bool = False) -> InstanceDir:
    """Claim the folder of instance `name` for this process and clear away what a dead predecessor left.

    With `keep` the predecessor's regions stay and are listed in `stale`. Raises UnavailableError naming the pid when a
    living daemon has the folder (nothing of it is touched), or when the folder cannot be made or is not ours.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError("instance", f"{name!r} does not match {_NAME.pattern}")
    path = shm_dir / f"hybridkv-{os.getuid()}-{name}"
    try:
        lock_fd = _locked(path)
    except OSError as error:
        raise UnavailableError(f"{path}: cannot be claimed: {error.strerror}") from error
    try:
        found = any(path.glob("*" + REGION_SUFFIX))
        if not keep:
            _remove_regions(path)
        stale = tuple(sorted(path.glob("*" + REGION_SUFFIX)))
        _sign(lock_fd, path)
    except OSError as error:
        os.close(lock_fd)
        raise UnavailableError(f"{path}: stale regions cannot be cleared: {error.strerror}") from error
    return InstanceDir(path, lock_fd, stale, found and not keep)


def _locked(path: Path) -> int:
    """The descriptor of the folder's lock file, locked. Tries again when a closing owner removed the file meanwhile."""
    while True:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        _check_ours(path)
        lock = path / LOCK_NAME
        try:
            fd = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # the folder went after mkdir found it
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(lock), os.fstat(fd)):
                return fd
        except BlockingIOError as error:
            refusal = _refusal(path, fd)
            os.close(fd)
            raise refusal from error
        except FileNotFoundError:
            pass
        os.close(fd)


def _check_ours(path: Path) -> None:
    """In a folder that everybody can write to, another user may have made ours first."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise UnavailableError(f"{path}: is not a folder of user {os.getuid()}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.chmod(path, 0o700)


def _sign(fd: int, path: Path) -> None:
    """Who has the lock, for those whom it refuses. Written over what was there, whose room it has; a full file system costs
    them the name and nobody the start, which may need no more room than the regions there have already."""
    line = f"{os.getpid()} {own_start_time()} {boot_id().hex()}\n".encode()
    try:
        os.pwrite(fd, line, 0)
        os.ftruncate(fd, len(line))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(fd, 0)
        _log.warning("%s: the lock cannot be signed: %s", path, error.strerror)


def _refusal(path: Path, fd: int) -> HybridKVError:
    words = os.pread(fd, 128, 0).split()
    owner = f"pid {int(words[0])}" if words and words[0].isdigit() else "a process that has not signed it"
    return UnavailableError(f"{path}: in use by {owner}")


def _remove_regions(path: Path) -> None:
    for region in path.glob("*" + REGION_SUFFIX):
        region.unlink(missing_ok=True)
