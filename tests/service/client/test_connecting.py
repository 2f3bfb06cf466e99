"""Ways in: a host of one's own, TCP, and a session that the daemon forgot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.client import connect, open
from hybridkv.service.client.calls import Calls
from hybridkv.service.client.transport import LostError
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import (
    DeadlineExceededError,
    ExpiredError,
    InvalidArgumentError,
    NamespaceMismatchError,
)
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, Tier
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, make_config, make_space, store
from tests.service.client.processes import daemon_process


def test_open_serves_blocks_in_this_process_and_leaves_nothing(tmp_path: Path, space: Namespace) -> None:
    with open(make_config(tmp_path), space) as kv:
        keys = chain_of(kv, 3)
        store(kv, keys)
        out = np.zeros((3, BLOCK_BYTES), np.uint8)
        assert kv.read(keys, out).tolist() == [Outcome.HIT] * 3
        check_content(keys, out)
        assert kv.mapped
    assert list(tmp_path.glob("hybridkv-*")) == []


def test_open_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="block_bytes"):
        open(make_config(tmp_path), make_space(block_bytes=1 << 20))
    assert list(tmp_path.glob("hybridkv-*")) == []


def test_stored_blocks_outlive_a_host_with_a_disk_tier(tmp_path: Path, space: Namespace) -> None:
    config = make_config(tmp_path, disk__path=str(tmp_path / "disk"), disk__capacity_bytes="32MiB")
    with open(config, space) as kv:
        keys = chain_of(kv, 5)
        store(kv, keys)
    with open(config, space) as kv:
        found = kv.lookup(keys)
        assert (found.prefix, found.tiers.tolist()) == (5, [Tier.DISK] * 5)
        with kv.acquire(keys) as lease:
            assert lease.wait(10.0).tolist() == [Outcome.HIT] * 5
            check_content(keys, np.stack([lease.array(i) for i in range(5)]))


@pytest.mark.parametrize("how", ["acquire", "read"])
def test_waiting_for_blocks_on_disk(tmp_path: Path, space: Namespace, how: str) -> None:
    disk = {"disk__path": str(tmp_path / "disk"), "disk__capacity_bytes": "32MiB"}
    address = make_config(tmp_path).daemon.socket
    with daemon_process(tmp_path, **disk), connect(address, space, timeout_s=20.0) as kv:
        keys = chain_of(kv, 5)
        store(kv, keys)
    with daemon_process(tmp_path, **disk), connect(address, space, timeout_s=20.0) as kv:
        out = np.zeros((5, BLOCK_BYTES), np.uint8)
        if how == "read":
            assert kv.read(keys, out, timeout_s=10.0).tolist() == [Outcome.HIT] * 5
        else:
            with kv.acquire(keys, tier="cpu", timeout_s=10.0) as lease:
                assert lease.read_into(out).tolist() == [Outcome.HIT] * 5
        check_content(keys, out)


def test_tcp_goes_through_streams(tmp_path: Path, space: Namespace) -> None:
    config = make_config(tmp_path, daemon__tcp_address="127.0.0.1:0", daemon__tcp_insecure=True)
    with DaemonThread(config) as daemon, connect(f"127.0.0.1:{daemon.daemon.tcp_port}", space) as kv:
        assert not kv.mapped
        assert "side socket" in kv.unmapped_reason
        keys = chain_of(kv, 2)
        store(kv, keys)
        with kv.acquire(keys) as lease:
            check_content(keys, np.stack([lease.array(i) for i in range(2)]))


def test_daemon_that_computes_another_fingerprint_refuses(tmp_path: Path, space: Namespace) -> None:
    object.__setattr__(space, "fingerprint", b"\1" * 32)
    with DaemonThread(make_config(tmp_path)) as daemon:
        with pytest.raises(NamespaceMismatchError, match="0101"):
            connect(daemon.address, space)


def test_session_that_the_daemon_forgot_is_attached_anew(tmp_path: Path, space: Namespace) -> None:
    with DaemonThread(make_config(tmp_path)) as daemon, connect(daemon.address, space) as kv:
        keys, before = chain_of(kv, 2), kv.session
        store(kv, keys)
        lease = kv.acquire(keys)
        daemon.host.detach(before)
        with pytest.raises(ExpiredError):
            lease.wait(0.0)
        assert kv.lookup(keys).prefix == 2
        assert kv.session != before
        assert kv.epoch_changes == 0


class OneStream:
    """What `Calls` asks of an Attach stream."""

    lost = False


def test_reply_of_another_epoch_ends_the_session() -> None:
    calls = Calls(7, OneStream())
    replies = [pb.TouchReply(epoch=7), pb.TouchReply(epoch=8)]

    def touch(request: Any, timeout: float, metadata: Any) -> Any:
        return replies.pop(0)

    assert calls(touch, None, 1.0).epoch == 7
    assert not calls.lost
    with pytest.raises(LostError, match="epoch is 8"):
        calls(touch, None, 1.0)
    assert calls.lost
    with pytest.raises(LostError):
        calls(touch, None, 1.0)


def test_call_without_time_is_not_made() -> None:
    with pytest.raises(DeadlineExceededError):
        Calls(7, OneStream())(lambda request, timeout, metadata: pytest.fail("was called"), None, 0.0)


def test_channel_closed_by_another_thread_is_a_lost_session() -> None:
    def closed(request: Any, timeout: float, metadata: Any) -> Any:
        raise ValueError("Cannot invoke RPC on closed channel!")

    with pytest.raises(LostError, match="closed channel"):
        Calls(7, OneStream())(closed, None, 1.0)
