"""What goes wrong around the SGLang backend: it answers False or 0, never raises, and never publishes half a page."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridkv.connectors.sglang import HybridKVHiCache
from hybridkv.service.client.memory import Stack
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.listening import side_socket_path, socket_path
from tests.connectors.conftest import Backend
from tests.connectors.sglang_pool import FakePool, StorageConfig, page_keys
from tests.connectors.test_sglang import same
from tests.service.client.conftest import make_config
from tests.service.client.processes import daemon_process, kill

KEYS = page_keys(list(range(16 * 8)), 16)
QUICK = {"daemon_timeout_s": 0.2}


def test_without_a_daemon_everything_is_a_miss_and_is_said_once(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    pool = FakePool("page_first", seed=1)
    before = pool.kv_buffer.clone()
    with caplog.at_level(logging.WARNING):
        one = backend(pool, {"daemon_timeout_s": 0.2, "retry_s": 600.0})
        assert one.batch_exists(KEYS) == 0
        assert one.batch_get_v1(KEYS[:2], pool.indices(0, 1)) == [False, False]
        assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [False, False]
        assert one.get(KEYS[0]) is None
        assert one.set(KEYS[0], pool.get_data_page(0)) is False
        one.clear()
    assert one.counts() == {"calls": 6, "failed": 1, "skipped": 6}
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "no daemon, going on without (asked again every 600 s)"
    ]
    assert same(pool.kv_buffer, before)


def test_a_daemon_that_dies_and_comes_back(tmp_path: Path, backend: Backend) -> None:
    pool = FakePool("layer_first", seed=2)
    with daemon_process(tmp_path) as process:
        one = backend(pool, QUICK)
        assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [True, True]
        kill(process)
        assert one.batch_exists(KEYS) == 0
        assert one.batch_get_v1(KEYS[:2], pool.indices(2, 3)) == [False, False]
        assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [False, False]
    with daemon_process(tmp_path):
        assert one.batch_exists(KEYS) == 0, "what was in memory only is gone"
        assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [True, True]
        assert one.batch_get_v1(KEYS[:2], pool.indices(6, 7)) == [True, True]
        assert same(pool.get_data_page(7 * 16), pool.get_data_page(16))


def test_pages_outlive_the_daemon_on_disk(tmp_path: Path, backend: Backend) -> None:
    pool = FakePool("page_first", seed=3)
    disk: dict[str, object] = {"disk.path": str(tmp_path / "disk"), "disk.capacity_bytes": "64MiB"}
    with daemon_process(tmp_path, **disk):
        assert backend(pool).batch_set_v1(KEYS[:4], pool.indices(0, 1, 2, 3)) == [True] * 4
    before = pool.kv_buffer.clone()
    pool.fill(4)
    with daemon_process(tmp_path, **disk):
        one = backend(pool)
        assert one.batch_exists(KEYS) == 4
        assert one.batch_get_v1(KEYS[:4], pool.indices(0, 1, 2, 3)) == [True] * 4
    assert same(pool.kv_buffer[:, :64], before[:, :64])


def test_the_bytes_are_right_where_nothing_is_mapped(daemon: DaemonThread, backend: Backend) -> None:
    side_socket_path(socket_path(daemon.address)).unlink()
    source, target = FakePool("page_head", seed=5), FakePool("page_head")
    assert backend(source).batch_set_v1(KEYS[:3], source.indices(7, 0, 3)) == [True] * 3
    assert backend(target).batch_get_v1(KEYS[:4], target.indices(0, 1, 2, 3)) == [True, True, True, False]
    for there, here in ((7, 0), (0, 1), (3, 2)):
        assert same(target.get_data_page(here * 16), source.get_data_page(there * 16))


def test_no_room_is_false_for_the_pages_that_did_not_fit(tmp_path: Path, backend: Backend) -> None:
    """Pages in use cannot make room for others: a request of another worker holds all but two of the slots."""
    pool = FakePool("page_first", page_size=32, pages=300, seed=6)
    keys = page_keys(list(range(32 * 300)), 32)
    with DaemonThread(make_config(tmp_path)) as daemon:
        one = backend(pool, {"store_timeout_s": 0.1})
        slots = (4 << 20) // (32 * 2048)
        assert all(one.batch_set_v1(keys[: slots - 2], pool.indices(*range(slots - 2))))
        with one._guarded._open_kv() as holder, holder.acquire([bytes.fromhex(k) for k in keys[: slots - 2]]) as lease:
            assert lease.prefix == slots - 2
            stored = one.batch_set_v1(keys[slots - 2 : slots + 2], pool.indices(*range(slots - 2, slots + 2)))
            fits = sum(stored)
            assert 0 < fits < 4
            assert stored == [True] * fits + [False] * (4 - fits)
            assert one.batch_exists(keys[slots - 2 :]) == fits
        assert daemon.host.check() == []


def test_a_write_that_fails_is_not_published(
    daemon: DaemonThread, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = FakePool("page_first", seed=7)
    one = backend(pool)
    assert one._pool is not None
    read = one._pool.pages.read
    monkeypatch.setattr(one._pool.pages, "read", _half_way(read))
    assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [False, False]
    assert one.batch_exists(KEYS) == 0
    assert one.counts()["bugs"] == 1
    monkeypatch.setattr(one._pool.pages, "read", read)
    assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [True, True]


def _half_way(copy: Callable[..., None]) -> Callable[..., None]:
    def copy_half(pages: Any, stacks: Any) -> None:
        copy(pages, [Stack(stack.indices[:1], stack.blocks, stack.rows[:1]) for stack in stacks])
        raise RuntimeError("the pool is gone")

    return copy_half


@pytest.mark.parametrize(
    "keys", [["short"], ["g" * 64], ["é" * 64], [KEYS[0], KEYS[1][:-1]]], ids=["short", "no hex", "no ascii", "odd"]
)
def test_keys_that_are_none(daemon: DaemonThread, backend: Backend, keys: list[str]) -> None:
    pool = FakePool("page_first", seed=8)
    one = backend(pool)
    pages = pool.indices(*range(len(keys)))
    assert one.batch_exists(keys) == 0
    assert one.batch_set_v1(keys, pages) == [False] * len(keys)
    assert one.batch_get_v1(keys, pages) == [False] * len(keys)
    assert one.counts() == {"calls": 3, "failed": 3}


def test_indices_that_do_not_fit_touch_nothing(daemon: DaemonThread, backend: Backend) -> None:
    pool = FakePool("page_first", seed=9)
    one = backend(pool)
    assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [True, True]
    before = pool.kv_buffer.clone()
    wrong = [pool.indices(0), pool.indices(0, 8), pool.indices(0, 1) + 1, pool.indices(0, 1) - 32, torch.zeros(0)]
    for indices in wrong:
        assert one.batch_get_v1(KEYS[:2], indices) == [False, False]
        assert one.batch_set_v1(KEYS[2:4], indices) == [False, False]
    assert one.batch_exists(KEYS) == 2
    assert same(pool.kv_buffer, before)


def test_values_that_are_no_pages_are_not_stored(daemon: DaemonThread, backend: Backend) -> None:
    pool = FakePool("page_first", seed=10)
    one = backend(pool)
    page = pool.get_data_page(0)
    for value in (None, page[:-1], b"bytes", page.reshape(2, -1).t()):
        assert one.set(KEYS[0], value) is False
    assert one.batch_set(KEYS[:2], [page]) is False
    assert not one.exists(KEYS[0])
    assert one.set(KEYS[0], page) is True
    assert one.get(KEYS[0], page[:-1]) is None


def test_before_a_pool_is_registered_everything_is_a_miss(daemon: DaemonThread) -> None:
    one = HybridKVHiCache(StorageConfig(extra_config={"hybridkv": {"address": daemon.address}}))
    assert one.batch_exists(KEYS) == 0
    assert one.batch_get_v1(KEYS[:1], torch.arange(16)) == [False]
    one.close()
    one.close()
    assert one.batch_exists(KEYS) == 0


def test_a_page_is_padded_with_zeros_to_its_block(daemon: DaemonThread, backend: Backend) -> None:
    """Slots that held other blocks of the same size before: 18 tokens fill a block, 17 leave half of the last 512 bytes."""
    full = FakePool("page_first", 18, dtype=torch.uint8, heads=0, seed=11)
    odd = FakePool("page_first", 17, dtype=torch.uint8, heads=0, seed=12)
    before, after = backend(full), backend(odd)
    assert all(before.batch_set_v1(KEYS, full.indices(*range(8))))
    before.clear()
    assert all(after.batch_set_v1(KEYS, odd.indices(*range(8))))
    assert after._space is not None
    layout = after._space.layout
    assert (layout.payload_bytes, layout.block_bytes) == (17 * 256, 18 * 256)
    with after._guarded._open_kv() as kv, kv.acquire([bytes.fromhex(key) for key in KEYS]) as lease:
        assert lease.prefix == 8
        assert not any(lease.array(i)[layout.payload_bytes :].any() for i in range(8))
