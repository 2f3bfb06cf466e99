"""The three ways a client can reach blocks; every test that asks for `backend` runs on each."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.service.client import KV, connect
from hybridkv.service.client.link import Link
from hybridkv.service.client.local import LocalDial
from hybridkv.service.config import Config, load_config
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.listening import side_socket_path, socket_path
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

MODES = ("embedded", "regions", "streams")
BLOCK_BYTES = 4096
BLOCK_TOKENS = 16
LIMIT = 128


@dataclass
class Backend:
    """A host and ways to it. `clock` is the host's; it moves only when a test moves it."""

    mode: str
    host: Host
    clock: ManualClock
    address: str
    opened: list[KV] = field(default_factory=list)

    def connect(self, space: Namespace, timeout_s: float = 10.0) -> KV:
        if self.mode == "embedded":
            kv = KV(space, Link(LocalDial(self.host, space), timeout_s, None))
        else:
            kv = connect(self.address, space, timeout_s=timeout_s)
        self.opened.append(kv)
        return kv

    @property
    def mapped(self) -> bool:
        return self.mode != "streams"


def make_config(folder: Path, **overrides: object) -> Config:
    """Small tiers in `folder`, nothing from the environment."""
    given: dict[str, object] = {
        "daemon.socket": f"unix://{folder}/d/kv.sock",
        "cpu.shm_dir": str(folder),
        "cpu.capacity_bytes": "4MiB",
        "limits.keys_per_call_count": LIMIT,
        "limits.part_bytes": "16KiB",
    }
    return load_config(overrides=given | {key.replace("__", "."): value for key, value in overrides.items()}, env={})


def make_space(salt: str = "", block_bytes: int = BLOCK_BYTES) -> Namespace:
    return Namespace(model="m", layout=BlockLayout.opaque(block_bytes, BLOCK_TOKENS, "test"), salt=salt)


@pytest.fixture
def space() -> Namespace:
    return make_space()


@pytest.fixture(params=MODES)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Checks the laws and that nothing is held when the test is over and its handles are closed."""
    clock, config = ManualClock(), make_config(tmp_path)
    make_host: Callable[[Config], Host] = lambda given: Host(given, clock=clock)  # noqa: E731
    with ExitStack() as stack:
        if request.param == "embedded":
            host, address = make_host(config), ""
            stack.callback(host.close)
        else:
            daemon = stack.enter_context(DaemonThread(config, make_host=make_host))
            host, address = daemon.host, daemon.address
            if request.param == "streams":
                side_socket_path(socket_path(address)).unlink()
        running = Backend(request.param, host, clock, address)
        yield running
        for kv in running.opened:
            kv.close()
        assert host.check() == []
        left = host.stats()
        assert (left["leases"], left["reservations"], left["sessions"]) == (0, 0, 0)


@pytest.fixture
def kv(backend: Backend, space: Namespace) -> KV:
    return backend.connect(space)


def chain_of(kv: KV, count: int, first_token: int = 0) -> Keys:
    """A chain of `count` blocks; different first tokens give different chains."""
    return kv.keys(list(range(first_token, first_token + count * BLOCK_TOKENS)))


def content(key: bytes, nbytes: int = BLOCK_BYTES) -> npt.NDArray[np.uint8]:
    """A block's bytes, made from its key: whose bytes they are can be told from them."""
    return np.random.default_rng(int.from_bytes(key, "little")).integers(0, 256, nbytes, np.uint8)


def store(kv: KV, keys: Keys, parent: bytes | None = None) -> None:
    """Write and publish the blocks of `keys`."""
    with kv.reserve(keys, parent=parent) as slots:
        for i in slots.new:
            slots.array(i)[:] = content(keys[i], kv.space.layout.block_bytes)
        slots.seal()


def check_content(keys: Keys, rows: npt.NDArray[np.uint8]) -> None:
    """Every row is its key's block."""
    for key, row in zip(keys, rows, strict=True):
        assert np.array_equal(row, content(key, rows.shape[1]))
