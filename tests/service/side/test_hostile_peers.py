"""What a peer on either end may send or leave out: it costs its own connection and nobody else's."""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from hybridkv.service.side.client import fetch_regions
from hybridkv.service.side.peers import Peer
from hybridkv.service.side.protocol import Request
from hybridkv.service.side.server import SideSocket
from hybridkv.tiers.errors import (
    DeadlineExceededError,
    UnavailableError,
)
from tests.service.side.beside import NBYTES, PATIENCE_S, SESSION, TOKEN, Daemon, fetch, run, worker

HOSTILE = {
    "nothing": b"",
    "half a prefix": b"\0\0",
    "half a message": b"\0\0\0\x40{",
    "a huge length": b"\xff\xff\xff\xff",
    "garbage": b"\0\0\0\x08\x80\x81\x82\x83\x84\x85\x86\x87",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "too much": Request(SESSION, TOKEN).packed() + b"x" * 100_000,
}


@pytest.mark.parametrize("deed", HOSTILE)
def test_hostile_peers_cost_their_own_connection_only(folder: Path, deed: str) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        def attack() -> None:
            with socket.socket(socket.AF_UNIX) as peer, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.connect(str(side.path))
                peer.settimeout(PATIENCE_S)
                peer.sendall(HOSTILE[deed])
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass

        await asyncio.to_thread(attack)
        for region in await fetch(side):
            assert region.nbytes == NBYTES
            region.close()

    run(folder, scenario)


def test_a_silent_peer_is_dropped_after_the_timeout(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(side.path))
            peer.settimeout(PATIENCE_S)
            assert await asyncio.to_thread(peer.recv, 1) == b""
        assert side.refused_count == 1

    run(folder, scenario, exchange_timeout_s=0.05)


def test_one_process_cannot_take_all_connections(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
            for peer in idle:
                peer.connect(str(side.path))
            idle[2].settimeout(PATIENCE_S)
            assert await asyncio.to_thread(idle[2].recv, 1) == b""  # one too many of this process
            async with worker(side):  # another process is served
                assert side.refused_count == 1

    run(folder, scenario, connections_per_process=2, connection_count=16)


def test_too_many_connections_or_watches_are_refused(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        async with worker(side) as process:
            with pytest.raises(UnavailableError, match="the limit is 1"):
                await fetch(side)
            assert daemon.calls == [("mapped", process.pid)]
            with socket.socket(socket.AF_UNIX) as idle:
                idle.connect(str(side.path))
                with pytest.raises(UnavailableError):
                    await fetch(side)

    run(folder, scenario, watch_count=1, connection_count=1)


def test_other_users_are_not_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "may_have_regions", lambda peer, tenants: False)

    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        with pytest.raises(UnavailableError, match=r"without an answer|reset|pipe"):
            await fetch(side)
        assert daemon.calls == []

    run(folder, scenario)


@pytest.mark.parametrize(("uid", "served"), [(os.getuid(), True), (0, True), (54321, False)])
def test_only_the_own_user_and_root_are_served(uid: int, served: bool) -> None:
    assert Peer(pid=1, uid=uid, pidfd=-1).may_have_regions() == served


def test_a_daemon_that_does_not_answer_costs_the_deadline_not_more(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(folder / "s"))
        deaf.listen()
        with pytest.raises(DeadlineExceededError):
            fetch_regions(folder / "s", SESSION, TOKEN, 0.05)
    with pytest.raises(UnavailableError):
        fetch_regions(folder / "none", SESSION, TOKEN, 1.0)


@pytest.mark.parametrize("reply", [b"\0\0\0\x02[]", b"\xff\xff\xff\xff", b'\0\0\0\x19{"version":1,"regions":7}'])
def test_a_daemon_that_answers_nonsense_is_an_error_and_leaks_nothing(folder: Path, reply: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(str(folder / "s"))
        odd.listen()

        async def main() -> None:
            def answer() -> None:
                connection, _ = odd.accept()
                with connection:
                    socket.send_fds(connection, [reply], [odd.fileno()] * 3)
                    connection.recv(4096)

            answered = asyncio.create_task(asyncio.to_thread(answer))
            with pytest.raises(UnavailableError):
                await asyncio.to_thread(fetch_regions, folder / "s", SESSION, TOKEN, PATIENCE_S)
            await answered

        asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == before
