"""The daemon dies and another one comes: clients say so, attach again, and nothing stale is believed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hybridkv.service.client import connect
from hybridkv.service.listening import side_socket_path, socket_path
from hybridkv.tiers.errors import ExpiredError, UnavailableError
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, make_config, store
from tests.service.client.processes import daemon_process, kill


def keep_side_socket(address: str) -> None:
    """Blocks go through regions."""


def remove_side_socket(address: str) -> None:
    """Blocks go through streams."""
    side_socket_path(socket_path(address)).unlink()


@pytest.mark.parametrize("prepare", [keep_side_socket, remove_side_socket])
def test_kill_and_restart(tmp_path: Path, space: Namespace, prepare: Callable[[str], None]) -> None:
    address = make_config(tmp_path).daemon.socket
    told: list[tuple[int, int]] = []
    with daemon_process(tmp_path) as first:
        prepare(address)
        kv = connect(address, space, timeout_s=20.0, on_epoch_change=lambda old, new: told.append((old, new)))
        keys, before = chain_of(kv, 3), kv.epoch
        store(kv, keys)
        lease = kv.acquire(keys)
        slots = kv.reserve(chain_of(kv, 2, first_token=9000))
        view, tensor = lease.array(1), lease.view(2)
        kill(first)
    with daemon_process(tmp_path):
        prepare(address)
        assert kv.lookup(keys).states.tolist() == [Outcome.MISS] * 3
        assert kv.epoch != before
        assert (told, kv.epoch_changes) == ([(before, kv.epoch)], 1)
        assert (lease.valid, slots.valid) == (False, False)
        with pytest.raises(ExpiredError):
            lease.array(0)
        with pytest.raises(ExpiredError):
            slots.seal()
        check_content(keys[1:2], view[None])  # the mapping lives as long as its views
        check_content(keys[2:], tensor.numpy()[None])
        lease.release()
        slots.abort()
        store(kv, keys)
        out = np.zeros((3, BLOCK_BYTES), np.uint8)
        assert kv.read(keys, out).tolist() == [Outcome.HIT] * 3
        check_content(keys, out)
        kv.close()


def test_no_daemon_is_unavailable_and_the_handle_recovers(tmp_path: Path, space: Namespace) -> None:
    address = make_config(tmp_path).daemon.socket
    with daemon_process(tmp_path) as first:
        kv = connect(address, space, timeout_s=0.3)
        keys = chain_of(kv, 1)
        lease = kv.acquire(keys)
        kill(first)
    with pytest.raises(UnavailableError):
        kv.lookup(keys)
    assert not lease.valid
    with daemon_process(tmp_path):
        assert kv.lookup(keys).prefix == 0
        assert kv.epoch_changes == 1
        kv.close()
