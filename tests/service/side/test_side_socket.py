"""The side socket with real processes: regions change hands, and deaths are proved."""

import asyncio
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from hybridkv.service.side.handles import handles_from_extra, handles_to_extra
from hybridkv.service.side.protocol import RegionKind
from hybridkv.service.side.server import RegionOffer, SideSocket
from hybridkv.tiers.device.base import AllocationHandle
from hybridkv.tiers.errors import (
    ForeignHoldError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from hybridkv.tiers.shm import SharedRegion
from tests.service.side.beside import NBYTES, SESSION, Daemon, fetch, run, worker


def test_regions_change_hands(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        assert stat.S_IMODE(side.path.stat().st_mode) == 0o600
        rw, ro = await fetch(side)
        assert (rw.name, rw.pool, rw.kind, rw.nbytes) == ("r.rw", 1, RegionKind.DATA_RW, NBYTES)
        assert (ro.kind, ro.extra) == (RegionKind.DATA_RO, {"numa_node": 0})
        daemon.region.array[3] = 9
        with SharedRegion.attach(ro.take_fd(), NBYTES, False) as mapped:
            assert mapped.array[3] == 9
        assert daemon.calls == [("mapped", os.getpid())]
        rw.close()
        with pytest.raises(UnavailableError, match="taken"):
            rw.take_fd()

    run(folder, scenario)


def test_device_memory_travels_as_handles_and_may_be_asked_for_again(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        handles = [AllocationHandle("cuda", "GPU-1", n << 28, 1 << 28, bytes([n % 256]) * 64) for n in range(1000)]
        for count in (0, 1, 1000):
            extra = handles_to_extra("GPU-1", handles[:count])
            daemon.on_devices = [RegionOffer("gpu0", 0, RegionKind.CUDA, None, 1 << 40, extra)]
            rw, ro, device = await fetch(side)
            assert handles_from_extra(device.extra) == handles[:count]
            with pytest.raises(UnavailableError, match="gpu0"):
                device.take_fd()
            with SharedRegion.attach(ro.take_fd(), NBYTES, False) as mapped:
                assert mapped.array.nbytes == NBYTES
            rw.close()

    run(folder, scenario)


def test_another_process_writes_and_its_kill_is_proved(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        async with worker(side) as process:
            assert daemon.region.array[0] == 1
            assert await daemon.heard(1) == [("mapped", process.pid)]
            assert side.watch_count == 1
            process.send_signal(signal.SIGKILL)
            assert await daemon.heard(2) == [("mapped", process.pid), ("gone", SESSION)]
            assert side.watch_count == 0

    run(folder, scenario)


FORK = """
if os.fork() == 0:
    print(writable.closed and readable.closed, flush=True)
input()
"""


def test_a_closed_connection_is_no_proof_and_a_forked_child_no_sign_of_life(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        async with worker(side, deed=FORK) as process:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "True\n"
            for region in await fetch(side, SESSION + 1):  # the daemon went on; the worker's connection is long closed
                region.close()
            assert daemon.calls == [("mapped", process.pid), ("mapped", os.getpid())]
            process.kill()  # the child waits on, with stdin and stdout of its parent
            assert (await daemon.heard(3))[2:] == [("gone", SESSION)]

    run(folder, scenario)


def test_a_session_is_gone_with_the_last_of_its_processes(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        async with worker(side) as first, worker(side) as second, worker(side, SESSION + 1) as third:
            await daemon.heard(3)
            first.kill()
            first.wait()
            third.kill()  # its proof comes after the first one's, and its callback fails
            assert (await daemon.heard(4))[3:] == [("gone", SESSION + 1)]
            second.kill()
            assert (await daemon.heard(5))[4:] == [("gone", SESSION)]

    run(folder, scenario)


def test_asking_twice_is_one_watch(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        for _ in range(3):
            for region in await fetch(side):
                region.close()
        assert side.watch_count == 1

    run(folder, scenario)


def test_a_clean_end_is_forgotten(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        async with worker(side) as gone, worker(side, SESSION + 1) as other:
            side.forget(SESSION)
            gone.kill()
            gone.wait()
            other.kill()
            assert (await daemon.heard(3))[2:] == [("gone", SESSION + 1)]

    run(folder, scenario)


def test_wrong_sessions_and_tokens_get_nothing_and_are_told_why(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        with pytest.raises(NotFoundError, match="session 99"):
            await fetch(side, 99)
        with pytest.raises(ForeignHoldError):
            await fetch(side, SESSION, bytes(16))
        with pytest.raises(UnavailableError, match="failed to hand"):
            await fetch(side, 13)
        assert daemon.calls == []
        assert side.watch_count == 0
        assert "a bug" in caplog.text
        assert len(await fetch(side)) == 2

    run(folder, scenario)


def test_a_living_socket_is_not_taken_a_dead_one_is_replaced(folder: Path) -> None:
    async def scenario(daemon: Daemon, side: SideSocket) -> None:
        with pytest.raises(UnavailableError, match="another process listens"):
            await SideSocket(side.path, daemon).start()
        assert len(await fetch(side)) == 2

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "side.sock"))
    run(folder, scenario)


def test_a_file_in_the_way_is_kept(folder: Path) -> None:
    (folder / "file").write_text("mine")

    async def main() -> None:
        daemon = Daemon(folder)
        with pytest.raises(UnavailableError, match="no socket"):
            await SideSocket(folder / "file", daemon).start()
        with pytest.raises(InvalidArgumentError, match="side_socket"):
            await SideSocket(folder / ("x" * 120), daemon).start()
        daemon.close()

    asyncio.run(main())
    assert (folder / "file").read_text() == "mine"
