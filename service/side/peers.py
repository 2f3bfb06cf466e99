"""Who is at the other end of a Unix socket: its user, its pid, and a pidfd that tells when it has ended."""

import contextlib
import os
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from hybridkv.tiers.errors import UnavailableError

_SO_PEERPIDFD = 77  # Linux 6.5; not in the socket module yet
_UCRED = struct.Struct("iII")  # pid, uid, gid


@dataclass(frozen=True, slots=True)
class Peer:
    """A connected process. `pidfd` is owned by this object; it becomes readable when the process has ended."""

    pid: int
    uid: int
    pidfd: int

    @classmethod
    def of(cls, connection: socket.socket) -> Self:
        """Raises UnavailableError when the process is gone already, or cannot be watched."""
        pid, uid = _credentials(connection)
        try:
            return cls(pid, uid, _pidfd(connection, pid))
        except OSError as error:
            raise UnavailableError(f"pid {pid}: cannot be watched: {error.strerror}") from error

    def close(self) -> None:
        os.close(self.pidfd)

    def may_have_regions(self, tenants: Collection[int] = ()) -> bool:
        """Regions go to processes of the daemon's own user, to root, who could take them anyway, and to the users that
        `tenants` are."""
        return self.uid in (os.getuid(), 0) or self.uid in tenants


def peer_pid(connection: socket.socket) -> int:
    """The pid of the process that connected; 0 when it is of a pid namespace that is not visible here."""
    return _credentials(connection)[0]


def _credentials(connection: socket.socket) -> tuple[int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return pid, uid


def _pidfd(connection: socket.socket, pid: int) -> int:
    """By way of the socket where the kernel can: a pid may be another process's by the time it is looked up."""
    with contextlib.suppress(OSError):
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        os.set_inheritable(pidfd, False)
        return pidfd
    return os.pidfd_open(pid)
