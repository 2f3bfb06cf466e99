"""Which processes map a session's regions, and when the last of them has ended."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from hybridkv.service.side.peers import Peer
from hybridkv.tiers.errors import ResourceExhaustedError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Watch:
    session: int
    pid: int
    pidfd: int


class Watches:
    """One pidfd per (session, process). Belongs to one event loop.

    A pid names its process here: it cannot be reused before its pidfd became readable, and the watch goes then. Only
    pid 0 names nobody: that is how processes of a foreign pid namespace look, and each gets a watch of its own.
    """

    def __init__(self, on_gone: Callable[[int], None], limit: int) -> None:
        """`on_gone(session)` is called on the loop when the session's last process has ended."""
        self._on_gone = on_gone
        self._limit = limit
        self._by_session: dict[int, list[_Watch]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, session: int, peer: Peer) -> None:
        """Watch the peer for this session; once per process, however often it asks. The peer keeps its own pidfd.

        Raises ResourceExhaustedError at the limit, OSError.
        """
        if peer.pid and any(watch.pid == peer.pid for watch in self._by_session.get(session, ())):
            return
        if self._count >= self._limit:
            raise ResourceExhaustedError("side socket watches", f"{self._count}; the limit is {self._limit}")
        watch = _Watch(session, peer.pid, os.dup(peer.pidfd))
        asyncio.get_running_loop().add_reader(watch.pidfd, self._ended, watch)
        self._by_session.setdefault(session, []).append(watch)
        self._count += 1

    def forget(self, session: int) -> None:
        """Stop watching the session's processes; nothing is called."""
        for watch in list(self._by_session.get(session, ())):
            self._drop(watch)

    def close(self) -> None:
        """Stop watching all."""
        for session in list(self._by_session):
            self.forget(session)

    def _ended(self, watch: _Watch) -> None:
        self._drop(watch)
        if watch.session in self._by_session:
            return
        try:
            self._on_gone(watch.session)
        except Exception:  # a callback's bug must not keep the others' proofs from coming
            _log.exception("side socket: on_gone of session %d", watch.session)

    def _drop(self, watch: _Watch) -> None:
        asyncio.get_running_loop().remove_reader(watch.pidfd)
        os.close(watch.pidfd)
        self._count -= 1
        watches = self._by_session[watch.session]
        watches.remove(watch)
        if not watches:
            del self._by_session[watch.session]
