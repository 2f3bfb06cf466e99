"""A daemon in this process, and fake engines on it that leave nothing behind."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridkv.connectors.vllm.groups import Group
from hybridkv.service.config import load_config
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from tests.connectors.vllm.rig import FakeEngine

MakeEngine = Callable[..., FakeEngine]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonThread]:
    """Checks the laws and that nothing is held when the engines of the test are closed."""
    config = load_config(
        overrides={
            "daemon.socket": f"unix://{tmp_path}/d/kv.sock",
            "cpu.shm_dir": str(tmp_path),
            "cpu.capacity_bytes": "16MiB",
            "limits.keys_per_call_count": 8,
        },
        env={},
    )
    with DaemonThread(config) as running:
        yield running


@pytest.fixture
def host(daemon: DaemonThread) -> Host:
    return daemon.host


@pytest.fixture
def make_engine(daemon: DaemonThread) -> Iterator[MakeEngine]:
    made: list[FakeEngine] = []

    def make(*groups: Group, settings: dict[str, Any] | None = None, **space: Any) -> FakeEngine:
        made.append(FakeEngine(daemon.address, groups, settings, **space))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    left = daemon.host.stats()
    assert daemon.host.check() == []
    assert (left["leases"], left["reservations"], left["sessions"]) == (0, 0, 0)
