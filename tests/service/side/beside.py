"""A side socket beside a small daemon, and workers that are real processes."""

import asyncio
import contextlib
import hmac
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from hybridkv.service.side.client import ReceivedRegion, fetch_regions
from hybridkv.service.side.protocol import RegionKind
from hybridkv.service.side.server import RegionOffer, SideLimits, SideSocket
from hybridkv.tiers.errors import (
    ForeignHoldError,
    NotFoundError,
)
from hybridkv.tiers.shm import SharedRegion

NBYTES = 1 << 16
TOKEN = bytes(range(16))
SESSION = 7
PATIENCE_S = 30.0


class Daemon:
    """Two regions for one session, and a record of the callbacks."""

    def __init__(self, folder: Path) -> None:
        self.region = SharedRegion.create(folder / "r", NBYTES)
        self.read_only_fd = self.region.read_only_fd()
        self.on_devices: list[RegionOffer] = []
        self.calls: list[tuple[str, int]] = []
        self.changed = asyncio.Event()

    def regions(self, session: int, token: bytes) -> list[RegionOffer]:
        if session == 13:
            raise ZeroDivisionError("a bug")
        if session not in (SESSION, SESSION + 1):
            raise NotFoundError(f"session {session}")
        if not hmac.compare_digest(token, TOKEN):
            raise ForeignHoldError("token")
        return [
            RegionOffer("r.rw", 1, RegionKind.DATA_RW, self.region.fd, NBYTES),
            RegionOffer("r.ro", 1, RegionKind.DATA_RO, self.read_only_fd, NBYTES, {"numa_node": 0}),
            *self.on_devices,
        ]

    def on_mapped(self, session: int, pid: int) -> None:
        self._note("mapped", pid)

    def on_gone(self, session: int) -> None:
        self._note("gone", session)
        if session == SESSION + 1:
            raise ZeroDivisionError("a bug")

    def _note(self, name: str, figure: int) -> None:
        self.calls.append((name, figure))
        self.changed.set()

    async def heard(self, count: int) -> list[tuple[str, int]]:
        """The calls, once there are `count`."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.calls) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.calls

    def close(self) -> None:
        os.close(self.read_only_fd)
        self.region.close()


Scenario = Callable[[Daemon, SideSocket], Coroutine[Any, Any, None]]


def run(folder: Path, scenario: Scenario, **limits: Any) -> None:
    """Run the scenario beside a listening side socket; afterwards nothing of it may be left."""

    async def main() -> None:
        daemon = Daemon(folder)
        side = SideSocket(folder / "side.sock", daemon, SideLimits(**limits))
        await side.start()
        try:
            await scenario(daemon, side)
        finally:
            await side.close()
            daemon.close()
        assert not side.path.exists()

    before = set(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert set(os.listdir("/proc/self/fd")) == before, "descriptors leaked"


async def fetch(side: SideSocket, session: int = SESSION, token: bytes = TOKEN) -> list[ReceivedRegion]:
    return await asyncio.to_thread(fetch_regions, side.path, session, token, PATIENCE_S)


WORKER = """
import os, sys
from hybridkv.service.side.client import fetch_regions
from hybridkv.tiers.shm import SharedRegion

rw, ro = fetch_regions(sys.argv[1], int(sys.argv[2]), bytes(range(16)), 30)
writable = SharedRegion.attach(rw.take_fd(), rw.nbytes, True)
readable = SharedRegion.attach(ro.take_fd(), ro.nbytes, False)
writable.array[0] += 1
print(readable.array[0], flush=True)
{deed}
"""


@contextlib.asynccontextmanager
async def worker(
    side: SideSocket, session: int = SESSION, deed: str = "input()"
) -> AsyncIterator["subprocess.Popen[str]"]:
    """A process that has fetched and mapped the session's regions, and written to them."""
    command = [sys.executable, "-c", WORKER.replace("{deed}", deed), str(side.path), str(session)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert int(await asyncio.to_thread(process.stdout.readline)) >= 1
            yield process
        finally:
            process.kill()
