"""GPU tiers on host devices, seen from a client."""

from pathlib import Path

import numpy as np

from hybridkv.service.client import KV, connect, open
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, Tier
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, content, make_config

DEVICES = {"gpu__devices": ("host:0", "host:1"), "gpu__capacity_bytes": "2MiB"}


def across_devices(kv: KV) -> None:
    keys = chain_of(kv, 4)
    with kv.reserve(keys, tier="gpu", device=0) as slots:
        for i in slots.new:
            slots.array(i)[:] = content(keys[i])
        slots.seal()
    assert kv.lookup(keys).tiers.tolist() == [Tier.GPU] * 4
    with kv.acquire(keys, tier="gpu", device=1, timeout_s=10.0) as there:
        assert there.states.tolist() == [Outcome.HIT] * 4
        check_content(keys, np.stack([there.array(i) for i in range(4)]))
        with kv.acquire(keys, tier="gpu", device=0, timeout_s=10.0) as here:
            assert here.prefix == 4
            assert here.array(0).ctypes.data != there.array(0).ctypes.data
    with kv.acquire(keys, tier="cpu", timeout_s=10.0) as below:
        check_content(keys, np.stack([below.array(i) for i in range(4)]))
    out = np.zeros((4, BLOCK_BYTES), np.uint8)
    assert kv.read(keys, out).tolist() == [Outcome.HIT] * 4
    check_content(keys, out)


def test_block_of_one_device_is_acquired_on_another_in_process(tmp_path: Path, space: Namespace) -> None:
    with open(make_config(tmp_path, **DEVICES), space) as kv:
        across_devices(kv)


def test_block_of_one_device_is_acquired_on_another_over_regions(tmp_path: Path, space: Namespace) -> None:
    with DaemonThread(make_config(tmp_path, **DEVICES)) as daemon:
        with connect(daemon.address, space, timeout_s=20.0) as kv:
            across_devices(kv)
        assert daemon.host.check() == []
