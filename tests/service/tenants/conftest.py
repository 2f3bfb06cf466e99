"""Daemons with tenants: `alice` and `bob` by tokens, `root` is the operator, `local` is whoever runs the tests."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hybridkv.service.admin_client import AdminClient
from hybridkv.service.client import KV, connect
from hybridkv.service.config import Config, load_config
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from tests.service.client.conftest import content

BLOCK_BYTES = 4096
BLOCK_TOKENS = 16
TOKENS = {name: f"{name}-0123456789abcdef" for name in ("alice", "bob", "root")}
WRONG = "alice-0123456789abcdee"


def make_space(salt: str = "") -> Namespace:
    return Namespace(model="m", layout=BlockLayout.opaque(BLOCK_BYTES, BLOCK_TOKENS, "test"), salt=salt)


def secret(folder: Path, name: str, *tokens: str) -> str:
    """A token file."""
    path = folder / f"{name}.token"
    path.write_text("\n".join(tokens or (TOKENS[name],)) + "\n")
    path.chmod(0o600)
    return str(path)


def tenant_config(folder: Path, **overrides: object) -> Config:
    """Small tiers in `folder`, four tenants."""
    given: dict[str, object] = {
        "daemon.socket": f"unix://{folder}/d/kv.sock",
        "daemon.grace_s": 0.2,
        "cpu.shm_dir": str(folder),
        "cpu.capacity_bytes": "4MiB",
        "cpu.high_watermark": 1.0,
        "cpu.low_watermark": 1.0,
        "limits.keys_per_call_count": 128,
        "limits.part_bytes": "16KiB",
        **{f"tenants.{name}.token_path": secret(folder, name) for name in TOKENS},
        "tenants.root.role": "operator",
        "tenants.local.uid": os.getuid(),
    }
    return load_config(overrides=given | {key.replace("__", "."): value for key, value in overrides.items()}, env={})


@dataclass
class Rig:
    """A daemon and ways to it."""

    daemon: DaemonThread
    folder: Path
    opened: list[KV] = field(default_factory=list)

    @property
    def host(self) -> Host:
        return self.daemon.host

    @property
    def address(self) -> str:
        return self.daemon.address

    def connect(self, name: str, space: Namespace | None = None) -> KV:
        """A session of this tenant; `local` gives no token."""
        kv = connect(self.address, space or make_space(), timeout_s=10.0, token=TOKENS.get(name))
        self.opened.append(kv)
        return kv

    def admin(self, name: str) -> AdminClient:
        return AdminClient(self.address, token=TOKENS.get(name))

    def finish(self) -> None:
        """Nothing is held, everything adds up, and nobody keeps a block."""
        for kv in self.opened:
            kv.close()
        self.opened.clear()
        assert self.host.check() == []
        left = self.host.stats()
        assert (left["leases"], left["reservations"], left["sessions"]) == (0, 0, 0)
        self.host.clear()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("tenants")
    with DaemonThread(tenant_config(folder)) as running:
        yield Rig(running, folder)


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    """The module's daemon; each test leaves it as it found it."""
    yield shared
    shared.finish()


def chain_of(kv: KV, count: int, first_token: int = 0) -> Keys:
    return kv.keys(list(range(first_token, first_token + count * BLOCK_TOKENS)))


def store(kv: KV, keys: Keys, salt: bytes = b"") -> None:
    """Write and publish the blocks of `keys`; `salt` makes the bytes other ones."""
    with kv.reserve(keys, timeout_s=5.0) as slots:
        for i in slots.new:
            slots.array(i)[:] = content(salt + keys[i])
        slots.seal()
