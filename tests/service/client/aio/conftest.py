"""A daemon with real sockets, and asyncio handles on it: through regions, and over streams."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridkv.service.client.aio import AsyncKV, connect_async
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.listening import side_socket_path, socket_path
from hybridkv.tiers.keys import Keys
from tests.service.client.conftest import content, make_config, make_space

Scenario = Callable[[AsyncKV], Awaitable[Any]]


class Server:
    """A daemon, and scenarios run against it, each on a loop of its own."""

    def __init__(self, daemon: DaemonThread, mode: str) -> None:
        self.daemon = daemon
        self.host = daemon.host
        self.mode = mode

    @property
    def mapped(self) -> bool:
        return self.mode == "regions"

    def connect(self, **given: Any) -> AsyncKV:
        return connect_async(self.daemon.address, make_space(), **{"timeout_s": 10.0} | given)

    def run(self, scenario: Scenario, **given: Any) -> Any:
        """`scenario` with a handle; afterwards nothing is held and the laws hold."""

        async def main() -> Any:
            async with self.connect(**given) as kv:
                return await scenario(kv)

        found = asyncio.run(asyncio.wait_for(main(), 60))
        self.check_nothing_is_left()
        return found

    def check_nothing_is_left(self) -> None:
        assert self.host.check() == []
        left = self.host.stats()
        assert (left["leases"], left["reservations"], left["sessions"]) == (0, 0, 0)


@pytest.fixture(params=["regions", "streams"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with DaemonThread(make_config(tmp_path)) as daemon:
        if request.param == "streams":
            side_socket_path(socket_path(daemon.address)).unlink()
        yield Server(daemon, request.param)


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Server]:
    with DaemonThread(make_config(tmp_path)) as daemon:
        yield Server(daemon, "regions")


async def store(kv: AsyncKV, keys: Keys, parent: bytes | None = None) -> None:
    """Write and publish the blocks of `keys`."""
    async with kv.reserve(keys, parent=parent) as slots:
        for i in slots.new:
            slots.array(i)[:] = content(keys[i], kv.space.layout.block_bytes)
        await slots.seal()


def chain_of(kv: AsyncKV, count: int, first_token: int = 0) -> Keys:
    return kv.keys(list(range(first_token, first_token + count * kv.space.layout.block_tokens)))
