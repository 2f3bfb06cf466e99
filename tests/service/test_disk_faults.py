"""A disk tier that fails under a serving daemon: it turns itself off and says so, the others serve on, it comes back."""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, generate_latest

from hybridkv.migration import disk_watch
from hybridkv.service import daemon as daemon_module
from hybridkv.service import watchdog
from hybridkv.service.client import connect
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.metrics import StatsCollector
from hybridkv.tiers import points
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.disk.codec import PAGE_BYTES
from hybridkv.tiers.errors import HybridKVError, UnavailableError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import Outcome, Priority, Reason, Tier
from tests.migration.gates import failing_at
from tests.service.client.conftest import chain_of, check_content, content, make_config, make_space, store
from tests.service.client.processes import daemon_process, kill

BLOCK_BYTES = 16 << 10
BLOCKS = 4
PATIENCE_S = 20.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Scene:
    """A daemon with a disk tier, a client of it, and what its operator sees."""

    def __init__(self, folder: Path, daemon: DaemonThread) -> None:
        self.disk = folder / "disk"
        self.host = daemon.host
        self.stats = daemon.daemon.stats
        self.address = daemon.address
        self.kv = connect(daemon.address, make_space(block_bytes=BLOCK_BYTES), timeout_s=PATIENCE_S)

    def settle(self) -> None:
        assert self.host.migrator.quiesce(PATIENCE_S)
        assert self.host.check() == []

    def tick(self) -> None:
        """A background pass, and what the disk writer does then."""
        self.host.tick()
        self.settle()

    def lower(self, keys: Keys) -> None:
        """Bring blocks down from the CPU tier, as far as that can be done."""
        directory = self.host.directory
        with directory.lock:
            rows = [int(row) for row in directory.sealed(0, keys.as_list()) if row != NO_ROW]
            self.host.migrator.reclaim.lower(
                self.host.memory.cpu_index, rows[::-1], Reason.PRESSURE, Priority.BACKGROUND
            )
        self.settle()

    def stored(self, first_token: int, *, on_disk: bool) -> Keys:
        keys = chain_of(self.kv, BLOCKS, first_token)
        store(self.kv, keys)
        if on_disk:
            self.lower(keys)
            assert set(self.kv.lookup(keys).tiers.tolist()) == {Tier.DISK}
        return keys

    def read(self, keys: Keys) -> list[int]:
        """Outcomes; whatever is a HIT has its own bytes."""
        out = np.zeros((len(keys), BLOCK_BYTES), np.uint8)
        states = self.kv.read(keys, out, timeout_s=PATIENCE_S)
        found = np.flatnonzero(states == Outcome.HIT)
        check_content(keys.at(found), out[found])
        return [int(state) for state in states]

    def told(self) -> tuple[bool, str, float]:
        """Whether the disk is well: by the health service, why not by the stats, and by the metrics."""
        ok, reason = self.host.health()["disk"]
        wanted = SERVING if ok else NOT_SERVING
        with grpc.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="hybridkv.disk"), timeout=PATIENCE_S)
            assert any(answer.status == wanted for answer in watch)  # the first may be older than what is watched
            assert stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=PATIENCE_S).status == SERVING
        registry = CollectorRegistry()
        registry.register(StatsCollector(self.stats))
        lines = generate_latest(registry).decode().splitlines()
        (line,) = [line for line in lines if line.startswith('hybridkv_healthy{component="disk"}')]
        return ok, reason, float(line.split()[-1])


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(watchdog, "INTERVAL_S", 0.01)
    monkeypatch.setattr(daemon_module, "BEAT_S", 0.01)
    config = make_config(
        tmp_path,
        cpu__capacity_bytes="4MiB",
        disk__path=str(tmp_path / "disk"),
        disk__capacity_bytes="16MiB",
        migration__chain_prefetch_max_blocks=0,
    )
    make_host: Callable[..., Host] = lambda given: Host(given, clock=ManualClock(), start_loop=False)  # noqa: E731
    with DaemonThread(config, make_host=make_host) as daemon:
        made = Scene(tmp_path, daemon)
        with made.kv:
            yield made
        made.settle()


@contextmanager
def failing(code: int, *steps: str) -> Iterator[None]:
    """Writes to the disk (and `steps`) end with this error."""
    handlers = [
        failing_at(step, OSError(code, os.strerror(code)), times=1_000) for step in ("disk.put.before_commit", *steps)
    ]

    def handler(passed: str) -> None:
        for each in handlers:
            each(passed)

    with points.listening(handler):
        yield


@pytest.mark.parametrize(
    ("code", "state", "readable"),
    [(errno.ENOSPC, "read_only", True), (errno.EROFS, "read_only", True), (errno.EIO, "off", False)],
)
def test_a_disk_that_cannot_be_written(
    scene: Scene, caplog: pytest.LogCaptureFixture, code: int, state: str, readable: bool
) -> None:
    there, above = scene.stored(0, on_disk=True), scene.stored(9_000, on_disk=False)
    with caplog.at_level(logging.WARNING, disk_watch.__name__), failing(code):
        scene.lower(above)
        ok, reason, metric = scene.told()
        assert (ok, metric) == (False, 0.0)
        assert reason.startswith(f"{state}: ")
        assert os.strerror(code) in reason
        assert f"disk tier is {state}: " in caplog.text
        assert scene.read(above) == [Outcome.HIT] * BLOCKS, "the tiers above serve on"
        scene.stored(20_000, on_disk=False)
        assert scene.read(there) == [Outcome.HIT if readable else Outcome.MISS] * BLOCKS
    caplog.clear()
    with caplog.at_level(logging.WARNING, disk_watch.__name__):
        scene.tick()
    assert scene.told() == (True, "", 1.0)
    assert "disk tier is on" in caplog.text
    assert scene.read(there) == [Outcome.HIT] * BLOCKS
    scene.lower(above)
    assert set(scene.kv.lookup(above).tiers.tolist()) == {Tier.DISK}


def test_a_disk_that_vanished(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Its blocks are lost, and said to be; a new start of the tier is empty and works."""
    there, above = scene.stored(0, on_disk=True), scene.stored(9_000, on_disk=False)
    shutil.rmtree(scene.disk)
    with caplog.at_level(logging.WARNING, disk_watch.__name__):
        scene.tick()
        ok, reason, metric = scene.told()
        assert (ok, metric) == (False, 0.0)
        assert "vanished" in reason
        assert "disk tier is off: " in caplog.text
        assert scene.read(above) == [Outcome.HIT] * BLOCKS
        scene.tick()
    assert scene.told() == (True, "", 1.0)
    assert f"{BLOCKS} blocks were lost" in caplog.text
    assert scene.stats()["counters"]["copies_lost"] == BLOCKS
    assert scene.read(there) == [Outcome.MISS] * BLOCKS
    scene.lower(above)
    assert set(scene.kv.lookup(above).tiers.tolist()) == {Tier.DISK}
    assert scene.read(above) == [Outcome.HIT] * BLOCKS


def rot(data: bytearray, at: int) -> None:
    """One bit of the payload."""
    data[at + BLOCK_BYTES // 2] ^= 4


def cut(data: bytearray, at: int) -> None:
    """The payload's second half never reached the disk: its pages read as zeros."""
    data[at + BLOCK_BYTES // 2 : at + BLOCK_BYTES] = bytes(BLOCK_BYTES // 2)


@pytest.mark.parametrize("damage", [rot, cut])
def test_a_damaged_payload_is_a_miss_and_is_mended_by_the_next_write(
    scene: Scene, damage: Callable[[bytearray, int], None]
) -> None:
    keys = scene.stored(0, on_disk=True)
    (path,) = scene.disk.glob("seg-*/data.mdb")
    data = bytearray(path.read_bytes())
    damage(data, data.index(content(keys[2], BLOCK_BYTES).tobytes()))
    with path.open("r+b") as file:
        file.write(data)
    assert scene.read(keys) == [Outcome.HIT, Outcome.HIT, Outcome.MISS, Outcome.HIT]
    scene.settle()
    assert scene.stats()["counters"]["copies_lost"] == 1
    assert scene.stats()["disk_store"]["blocks_corrupt"] == 1
    assert scene.told() == (True, "", 1.0), "one rotten block is no failing disk"
    store(scene.kv, keys)
    assert scene.read(keys) == [Outcome.HIT] * BLOCKS
    scene.lower(keys)
    assert scene.read(keys) == [Outcome.HIT] * BLOCKS


def test_a_second_daemon_on_the_same_directory_is_refused_and_the_first_serves_on(scene: Scene, tmp_path: Path) -> None:
    there = scene.stored(0, on_disk=True)
    (tmp_path / "other").mkdir()
    config = make_config(tmp_path / "other", disk__path=str(scene.disk), disk__capacity_bytes="16MiB")
    with pytest.raises(UnavailableError, match=rf"disk\.path: .*in use by process {os.getpid()}"):
        DaemonThread(config).__enter__()
    assert scene.read(there) == [Outcome.HIT] * BLOCKS
    assert scene.told() == (True, "", 1.0)


def scribble(path: Path) -> None:
    """Every page of the trees is another's."""
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // PAGE_BYTES):
        start = page * PAGE_BYTES
        if data[start + 10] & 0x03 and data[start : start + 8] == page.to_bytes(8, "little"):
            data[start : start + PAGE_BYTES] = b"\xa5" * PAGE_BYTES
    path.write_bytes(data)


def truncated(path: Path) -> None:
    os.truncate(path, 6 * PAGE_BYTES)


def test_a_damaged_tree_may_end_the_daemon_and_the_next_start_serves_the_rest(tmp_path: Path) -> None:
    """Blocks of three sizes lie in three segments; two of them are damaged under a running daemon."""
    spaces = [make_space(block_bytes=size) for size in (BLOCK_BYTES, 2 * BLOCK_BYTES, 4 * BLOCK_BYTES)]
    disk = {"disk__path": str(tmp_path / "disk"), "disk__capacity_bytes": "32MiB"}
    with DaemonThread(make_config(tmp_path, **disk), drain=True) as first:
        for space in spaces:
            with connect(first.address, space) as kv:
                store(kv, chain_of(kv, BLOCKS))
    with daemon_process(tmp_path, **disk) as second:
        address = make_config(tmp_path).daemon.socket
        for space, damage in zip(spaces, (scribble, truncated), strict=False):
            (path,) = (tmp_path / "disk").glob(f"seg-*-{space.layout.block_bytes}/data.mdb")
            damage(path)
            with suppress(HybridKVError):  # that was the end of the daemon
                assert served(address, space, timeout_s=1.0) <= BLOCKS
        kill(second)
    with DaemonThread(make_config(tmp_path, **disk)) as third:
        assert [served(third.address, space) for space in spaces] == [0, 0, BLOCKS]
        assert third.host.check() == []
        assert third.daemon.stats()["disk_store"]["segments_aside"] == 2
    assert len(list((tmp_path / "disk" / "aside").iterdir())) == 2


def served(address: str, space: Namespace, timeout_s: float = PATIENCE_S) -> int:
    """How many blocks of the chain are served; whatever is, has its own bytes."""
    size = space.layout.block_bytes
    with connect(address, space, timeout_s=timeout_s) as kv:
        keys, out = chain_of(kv, BLOCKS), np.zeros((BLOCKS, size), np.uint8)
        found = np.flatnonzero(kv.read(keys, out, timeout_s=timeout_s) == Outcome.HIT)
        check_content(keys.at(found), out[found])
        return len(found)
