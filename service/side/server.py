"""The daemon's end of the side socket.

One task per connection, bounded in number, bytes and seconds: a peer that sends garbage, half a message or nothing
costs its own connection and nobody else's. The connection ends after its reply; what stays is the watch on the peer's
pidfd, because only the end of the process proves that nobody writes through its mappings any more.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hybridkv.service.identities import Identities
from hybridkv.service.side import protocol
from hybridkv.service.side.peers import Peer, peer_pid
from hybridkv.service.side.protocol import MAX_REQUEST_BYTES, PREFIX, RegionInfo, RegionKind, Request
from hybridkv.service.side.watches import Watches
from hybridkv.tiers.errors import (
    HybridKVError,
    InternalError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)

_log = logging.getLogger(__name__)

_MAX_PATH_BYTES = 107
_BACKLOG = 128
_ACCEPT_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class RegionOffer:
    """A region as the daemon offers it. `fd` stays the daemon's; for DATA_RO and HEADERS it must be open read-only, for
    CUDA there is none."""

    name: str
    pool: int
    kind: RegionKind
    fd: int | None
    nbytes: int
    extra: dict[str, Any] = field(default_factory=dict)


class RegionSource(Protocol):
    """What the side socket asks of the daemon. Called on the event loop, where no call may block, but for `regions`."""

    def regions(self, session: int, token: bytes) -> Sequence[RegionOffer]:
        """Raises NotFoundError on an unknown session, ForeignHoldError on a wrong token (`hmac.compare_digest`).

        Called on a thread of its own: handles of device memory may take milliseconds.
        """

    def on_mapped(self, session: int, pid: int) -> None:
        """The process is about to get the regions: from here on its slots need the proof. Comes before `on_gone`."""

    def on_gone(self, session: int) -> None:
        """Every process that got the session's regions has ended. Comes once per series of `on_mapped`."""


@dataclass(frozen=True, slots=True)
class SideLimits:
    """Bounds. `watch_count` is that of (session, process) pairs, which live as long as the process."""

    connection_count: int = 64
    connections_per_process: int = 8
    watch_count: int = 4096
    exchange_timeout_s: float = 5.0


class SideSocket:
    """Serves regions on the Unix socket `path`. All methods belong to one event loop."""

    def __init__(
        self,
        path: Path,
        source: RegionSource,
        limits: SideLimits | None = None,
        *,
        identities: Identities | None = None,
        mode: int = 0o600,
    ) -> None:
        """`identities`: the daemon's tenants, to whose users regions and tokens are given; `mode` is the socket file's."""
        self.path = path
        self._identities = identities
        self._mode = mode
        self.refused_count = 0
        self._source = source
        self._limits = limits or SideLimits()
        self._watches = Watches(source.on_gone, self._limits.watch_count)
        self._listener: socket.socket | None = None
        self._identity: os.stat_result | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._exchanges: dict[asyncio.Task[None], int] = {}  # task -> the peer's pid

    async def start(self) -> None:
        """Listen. Raises UnavailableError when a living process listens there, InvalidArgumentError on a long path."""
        self._listener = _bound(self.path, self._mode)
        self._identity = os.stat(self.path)
        self._listener.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept(self._listener), name="side-socket")

    async def close(self) -> None:
        """Stop listening, end what is under way, stop watching (no `on_gone` comes after this). May be repeated."""
        tasks = [*self._exchanges, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._accepting = None
        self._watches.close()
        if self._listener is None or self._identity is None:
            return
        self._listener.close()
        self._listener = None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.path), self._identity):
                os.unlink(self.path)

    def forget(self, session: int) -> None:
        """Stop watching a session's processes: it ended cleanly and holds nothing. No `on_gone` comes for it."""
        self._watches.forget(session)

    @property
    def watch_count(self) -> int:
        """Processes watched now."""
        return len(self._watches)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors: what is open closes by its timeout
                _log.warning("side socket: accept: %s", error)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        """Start the exchange, unless there are too many, of this process or in all."""
        pid = peer_pid(connection)
        theirs = sum(of_pid == pid for of_pid in self._exchanges.values())
        if len(self._exchanges) >= self._limits.connection_count or theirs >= self._limits.connections_per_process:
            self.refused_count += 1
            connection.close()
            return
        connection.setblocking(False)
        task = asyncio.create_task(self._exchange(connection))
        self._exchanges[task] = pid
        task.add_done_callback(self._exchanges.pop)

    async def _exchange(self, connection: socket.socket) -> None:
        """One request, one reply. Whatever goes wrong ends here."""
        with connection:
            try:
                async with asyncio.timeout(self._limits.exchange_timeout_s):
                    await self._serve(connection)
            except (HybridKVError, OSError, EOFError, TimeoutError) as error:
                self.refused_count += 1
                _log.info("side socket: connection dropped: %s", error or type(error).__name__)

    async def _serve(self, connection: socket.socket) -> None:
        peer = Peer.of(connection)
        try:
            tenants = frozenset[int]() if self._identities is None else self._identities.uids
            if not peer.may_have_regions(tenants):
                raise UnavailableError(f"uid {peer.uid} (pid {peer.pid}) is not served")
            request = await _request(connection)
            try:
                offers = (self._token_for(peer), []) if request is None else await self._offers(request, peer)
            except HybridKVError as error:
                await _send(connection, protocol.packed_error(error), [])
                raise
            await _send(connection, *offers)
        finally:
            peer.close()

    def _token_for(self, peer: Peer) -> bytes:
        if self._identities is None:
            raise UnauthenticatedError("the daemon has no tenants")
        return protocol.packed_token(self._identities.issued_to(peer.uid))

    async def _offers(self, request: Request, peer: Peer) -> tuple[bytes, list[int]]:
        """The reply and its descriptors. From here on the process counts as one that maps them, come what may."""
        try:
            offers = await asyncio.to_thread(self._source.regions, request.session, request.token)
            infos = [RegionInfo(offer.name, offer.pool, offer.kind, offer.nbytes, offer.extra) for offer in offers]
            reply = protocol.packed_regions(infos)
            self._watches.add(request.session, peer)
            self._source.on_mapped(request.session, peer.pid)
        except HybridKVError:
            raise
        except Exception as error:  # a bug of ours: the peer gets an answer, the socket goes on
            _log.exception("side socket: regions of session %d", request.session)
            raise InternalError("the daemon failed to hand its regions over; see its log") from error
        return reply, [offer.fd for offer in offers if offer.fd is not None]


def _bound(path: Path, mode: int) -> socket.socket:
    """A socket bound at `path`, not listening yet: until then nobody can connect, so that the mode comes in time."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise InvalidArgumentError("side_socket", f"{path}: longer than {_MAX_PATH_BYTES} bytes")
    _remove_dead(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(os.fspath(path))
        os.chmod(path, mode)
    except OSError as error:
        listener.close()
        raise UnavailableError(f"{path}: cannot listen: {error.strerror}") from error
    return listener


def _remove_dead(path: Path) -> None:
    """Remove a socket that a dead daemon left; never one that somebody listens on, nor a file of another kind."""
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise UnavailableError(f"{path}: exists and is no socket")
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # its backlog is full: somebody is there
        raise UnavailableError(f"{path}: another process listens there")


async def _request(connection: socket.socket) -> Request | None:
    length = protocol.body_length(await _exactly(connection, PREFIX.size), MAX_REQUEST_BYTES)
    return Request.parse(await _exactly(connection, length))


async def _exactly(connection: socket.socket, nbytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    got = bytearray()
    while len(got) < nbytes:
        part = await loop.sock_recv(connection, nbytes - len(got))
        if not part:
            raise EOFError(f"the peer left after {len(got)} of {nbytes} bytes")
        got += part
    return bytes(got)


async def _send(connection: socket.socket, message: bytes, fds: list[int]) -> None:
    """The descriptors go with the first bytes; nothing was sent before, so that the first part never has to wait."""
    sent = socket.send_fds(connection, [message], fds) if fds else connection.send(message)
    if sent < len(message):
        await asyncio.get_running_loop().sock_sendall(connection, message[sent:])
