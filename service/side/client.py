"""The worker's end of the side socket: ask once, get the descriptors, close.

The socket need not stay open: what proves the worker gone is its pidfd, which the daemon got with the connection.
"""

import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hybridkv.service.side import protocol
from hybridkv.service.side.protocol import MAX_REPLY_BYTES, PREFIX, MalformedError, RegionInfo, RegionKind, Request
from hybridkv.tiers.errors import DeadlineExceededError, UnavailableError

T = TypeVar("T")

_PART_BYTES = 64 << 10
_SPACE_FOR_FDS = socket.CMSG_SPACE(protocol.MAX_REGIONS * 4)

_connections: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
_received: "weakref.WeakSet[ReceivedRegion]" = weakref.WeakSet()


class ReceivedRegion:
    """A region that was handed over. Its descriptor is closed with it, unless `take_fd` took it first.

    Device memory has none: `fd` is None.
    """

    def __init__(self, info: RegionInfo, fd: int | None) -> None:
        self.name: str = info.name
        self.pool: int = info.pool
        self.kind: RegionKind = info.kind
        self.nbytes: int = info.nbytes
        self.extra: dict[str, Any] = info.extra
        self._fd = fd
        self._closing = weakref.finalize(self, _close, fd)
        self._closing.atexit = False
        _received.add(self)

    def take_fd(self) -> int:
        """The descriptor; it is the caller's from now on. Raises UnavailableError when it was taken, or closed, or
        there is none."""
        if self._closing.detach() is None or self._fd is None:
            raise UnavailableError(f"region {self.name}: its descriptor was taken")
        return self._fd

    def close(self) -> None:
        """Close the descriptor if nobody took it."""
        self._closing()

    def __repr__(self) -> str:
        return f"ReceivedRegion({self.name}, pool {self.pool}, {self.kind}, {self.nbytes} bytes)"


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def fetch_regions(path: Path | str, session: int, token: bytes, timeout_s: float) -> list[ReceivedRegion]:
    """Ask the daemon for the session's regions. Blocks for at most `timeout_s`.

    Raises NotFoundError or ForeignHoldError as the daemon says, DeadlineExceededError, and UnavailableError when there
    is no side socket or it answers nonsense: the caller then falls back on the payload streams.
    """

    def regions_of(reply: bytes, fds: list[int]) -> list[ReceivedRegion]:
        infos = protocol.parse_reply(reply)
        expected = sum(info.kind.has_descriptor for info in infos)
        if expected != len(fds):
            raise MalformedError(f"regions: {expected} named, {len(fds)} descriptors came")
        coming = iter(fds)
        return [ReceivedRegion(info, next(coming) if info.kind.has_descriptor else None) for info in infos]

    return _asked(path, Request(session, token).packed(), timeout_s, regions_of)


def fetch_token(path: Path | str, timeout_s: float) -> str:
    """Ask the daemon for a token of the tenant that this process's user is. Raises as `fetch_regions`, and
    UnauthenticatedError when it is none."""

    def token_of(reply: bytes, fds: list[int]) -> str:
        if fds:
            raise MalformedError("token: descriptors came with it")
        return protocol.parse_token(reply)

    return _asked(path, protocol.packed_identify(), timeout_s, token_of)


def _asked(path: Path | str, request: bytes, timeout_s: float, understood: Callable[[bytes, list[int]], T]) -> T:
    """What `understood` makes of the reply to one request and the descriptors that came with it, which are then its own."""
    deadline = time.monotonic() + timeout_s
    fds: list[int] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connections.add(connection)
        try:
            _set_timeout(connection, deadline)
            connection.connect(os.fspath(path))
            connection.sendall(request)
            return understood(_reply(connection, fds, deadline), fds)
        except BaseException as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, TimeoutError):
                raise DeadlineExceededError(f"side socket {path}: no answer within {timeout_s} s") from error
            if isinstance(error, OSError):
                raise UnavailableError(f"side socket {path}: {error.strerror or error}") from error
            raise


def _reply(connection: socket.socket, fds: list[int], deadline: float) -> bytes:
    """The body of the reply; the descriptors that come with it are appended to `fds`."""
    length: int | None = None
    got = bytearray()
    while length is None or len(got) < length + PREFIX.size:
        _set_timeout(connection, deadline)
        part, flags = _received_part(connection, fds)
        if flags & socket.MSG_CTRUNC:
            raise MalformedError("regions: more descriptors came than there is room for")
        if not part:
            raise UnavailableError("side socket: the daemon closed without an answer")
        got += part
        if length is None and len(got) >= PREFIX.size:
            length = protocol.body_length(bytes(got[: PREFIX.size]), MAX_REPLY_BYTES)
    return bytes(got[PREFIX.size : PREFIX.size + length])


def _received_part(connection: socket.socket, fds: list[int]) -> tuple[bytes, int]:
    part, ancillary, flags, _ = connection.recvmsg(_PART_BYTES, _SPACE_FOR_FDS, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = memoryview(data)[: len(data) // 4 * 4]
            fds.extend(whole.cast("i"))
    return part, flags


def _set_timeout(connection: socket.socket, deadline: float) -> None:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


def _close_in_child() -> None:
    """A forked child must hold neither the parent's connection nor a way to its regions."""
    for connection in list(_connections):
        connection.close()
    for region in list(_received):
        region.close()


os.register_at_fork(after_in_child=_close_in_child)
