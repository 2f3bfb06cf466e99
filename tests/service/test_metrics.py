"""The Prometheus endpoint shows what stats shows."""

import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.config import Config
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.metrics import StatsCollector
from hybridkv.tiers.namespace import Namespace
from tests.service.wire import TIMEOUT_S, read, some_keys, wired, write

TREE: dict[str, Any] = {
    "uptime_s": 1.5,
    "sessions": 2,
    "loop_errors": 1,
    "loops": {"migrator": {"alive": True, "busy_s": 0.5, "rounds": 3, "errors": 1}},
    "ages": {"lease_s": 2.5},
    "tiers": {"gpu0": {"used_bytes": 4096, "quarantined_bytes": 0}, "disk": {"used_bytes": 8192}},
    "hits": {"gpu": 3, "cpu": 2, "disk": 1},
    "outcomes": {"hit": 6, "miss": 4},
    "moves": [
        {"from": "cpu", "to": "disk", "reason": "idle", "outcome": "done", "count": 2, "bytes": 8192},
        {"from": "cpu", "to": None, "reason": "reclaim", "outcome": "evicted", "count": 1, "bytes": 4096},
    ],
    "lanes": {"cpu-disk": {"queued": 7, "bytes_in_flight": 4096, "errors": 1, "alive": True}},
    "counters": {"second_seals": 5},
    "disk_store": {"state": "on", "reason": "", "physical_bytes": 12288, "blocks_corrupt": 1},
    "calls": [{"method": "KVCache.Acquire", "status": "OK", "count": 9}],
    "health": {"disk": {"ok": False, "reason": "full"}, "loop": {"ok": True, "reason": ""}},
}
LINES = [
    "hybridkv_uptime_seconds 1.5",
    "hybridkv_sessions 2.0",
    'hybridkv_loop_errors_total{loop="migrator"} 1.0',
    'hybridkv_oldest_seconds{hold="lease"} 2.5',
    'hybridkv_tier_used_bytes{tier="gpu0"} 4096.0',
    'hybridkv_tier_used_bytes{tier="disk"} 8192.0',
    'hybridkv_tier_quarantined_bytes{tier="gpu0"} 0.0',
    'hybridkv_hits_total{tier="gpu"} 3.0',
    'hybridkv_acquired_keys_total{outcome="miss"} 4.0',
    'hybridkv_moves_total{from="cpu",outcome="done",reason="idle",to="disk"} 2.0',
    'hybridkv_moves_total{from="cpu",outcome="evicted",reason="reclaim",to=""} 1.0',
    'hybridkv_moved_bytes_total{from="cpu",outcome="done",reason="idle",to="disk"} 8192.0',
    'hybridkv_lane_queued{lane="cpu-disk"} 7.0',
    'hybridkv_lane_errors_total{lane="cpu-disk"} 1.0',
    'hybridkv_lane_alive{lane="cpu-disk"} 1.0',
    'hybridkv_events_total{event="second_seals"} 5.0',
    "hybridkv_disk_physical_bytes 12288.0",
    'hybridkv_disk_events_total{event="blocks_corrupt"} 1.0',
    'hybridkv_calls_total{method="KVCache.Acquire",status="OK"} 9.0',
    'hybridkv_healthy{component="disk"} 0.0',
    'hybridkv_healthy{component="loop"} 1.0',
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def exposed(tree: dict[str, Any]) -> list[str]:
    registry = CollectorRegistry()
    registry.register(StatsCollector(lambda: tree))
    return generate_latest(registry).decode().splitlines()


def test_every_family_is_told_once() -> None:
    """A second TYPE line of one name is an error to strict parsers."""
    families = [line.split()[2] for line in exposed(TREE) if line.startswith("# TYPE ")]
    assert sorted(set(families)) == sorted(families)


def test_every_figure_has_its_line() -> None:
    lines = exposed(TREE)
    assert [line for line in LINES if line not in lines] == []


def test_an_empty_tree_is_no_error() -> None:
    assert [line for line in exposed({}) if not line.startswith("#")] == []


def test_a_scrape_reads_the_running_daemon(config: Config, space: Namespace, tmp_path: Path) -> None:
    port = free_port()
    section = config.daemon.model_copy(update={"metrics_port": port})
    disk = config.disk.model_copy(update={"path": str(tmp_path / "disk")})
    full = config.model_copy(update={"daemon": section, "disk": disk})
    url = f"http://127.0.0.1:{port}/metrics"
    with DaemonThread(full) as daemon, wired(daemon.address) as wire:
        stream = wire.attach(space)
        write(wire, stream.session, 1, 2)
        read(wire, stream.session, 1, 2, 3)
        lease = pb.AcquireRequest(session=stream.session, **some_keys(1))
        wire.kv.Acquire(lease, timeout=TIMEOUT_S)
        lines = urllib.request.urlopen(url, timeout=TIMEOUT_S).read().decode().splitlines()
    for line in (
        'hybridkv_tier_blocks{tier="cpu"} 2.0',
        'hybridkv_tier_capacity_bytes{tier="cpu"} 4.194304e+06',
        'hybridkv_hits_total{tier="cpu"} 3.0',
        'hybridkv_acquired_keys_total{outcome="miss"} 1.0',
        'hybridkv_calls_total{method="KVCache.Write",status="OK"} 1.0',
        'hybridkv_events_total{event="sealed"} 2.0',
        'hybridkv_healthy{component="disk"} 1.0',
        "hybridkv_leases 1.0",
        "hybridkv_sessions 1.0",
    ):
        assert line in lines
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=TIMEOUT_S)
