"""A daemon in this process, and SGLang backends on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridkv.connectors.sglang import HybridKVHiCache
from hybridkv.service.in_thread import DaemonThread
from tests.connectors.sglang_pool import StorageConfig
from tests.service.client.conftest import make_config

Backend = Callable[..., HybridKVHiCache]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonThread]:
    """Checks the laws and that nothing is held when the test is over."""
    with DaemonThread(make_config(tmp_path, **{"limits.keys_per_call_count": 128})) as running:
        yield running
        assert running.host.check() == []
        left = running.host.stats()
        assert (left["leases"], left["reservations"]) == (0, 0)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    """Makes backends for a pool; `options` go to extra_config.hybridkv, `config` to SGLang's own fields."""
    made: list[HybridKVHiCache] = []
    address = make_config(tmp_path).daemon.socket

    def make(pool: Any, options: dict[str, Any] | None = None, **config: Any) -> HybridKVHiCache:
        ours = {"address": address, "daemon_timeout_s": 5.0, "retry_s": 1e-6} | (options or {})
        one = HybridKVHiCache(StorageConfig(**config, extra_config={"hybridkv": ours}), {})
        one.register_mem_pool_host(pool)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
