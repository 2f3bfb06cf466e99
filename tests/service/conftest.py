"""Fixtures of the service's tests: a config in a temporary folder, and a daemon in this process."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridkv.service.config import Config, load_config
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

if TYPE_CHECKING:
    from hybridkv.service.in_thread import DaemonThread
    from tests.service.wire import Wire


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Small tiers, everything in `tmp_path`."""
    return load_config(
        overrides={
            "daemon.socket": f"unix://{tmp_path}/d/kv.sock",
            "daemon.grace_s": 0.2,
            "cpu.shm_dir": str(tmp_path),
            "cpu.capacity_bytes": "4MiB",
            "limits.keys_per_call_count": 128,
            "limits.part_bytes": "16KiB",
        },
        env={},
    )


@pytest.fixture
def space() -> Namespace:
    return make_space()


@pytest.fixture
def other_space() -> Namespace:
    return make_space(salt="another tenant")


def make_space(salt: str = "") -> Namespace:
    return Namespace(model="m", layout=BlockLayout.opaque(4096, 16, "test"), salt=salt)


@pytest.fixture
def daemon(config: Config) -> Iterator["DaemonThread"]:
    """A daemon over a real host; its accounting must be sound when the test is over."""
    from hybridkv.service.in_thread import DaemonThread

    with DaemonThread(config) as running:
        yield running
        assert running.host.check() == []


@pytest.fixture
def fake_daemon(config: Config) -> Iterator["DaemonThread"]:
    """A daemon over a host on dictionaries, whose answers a test can hold back and spoil."""
    from hybridkv.service.in_thread import DaemonThread
    from tests.service.fake_host import fake

    with DaemonThread(config, make_host=fake) as running:
        yield running


@pytest.fixture
def wire(daemon: "DaemonThread") -> Iterator["Wire"]:
    from tests.service.wire import wired

    with wired(daemon.address) as connected:
        yield connected
