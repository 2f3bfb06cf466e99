"""Health tells the truth: what hangs, is dead or fails is seen, although it hangs; and no error ends a loop."""

import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hybridkv.service import probes, watchdog
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.config import load_config
from hybridkv.service.daemon import Daemon
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.replies import DrainReport
from hybridkv.service.servicers.watch import Watchers
from hybridkv.service.watching import WatchKind
from hybridkv.tiers import points
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.loops import Pulse
from hybridkv.tiers.namespace import Namespace
from tests.migration.gates import PATIENCE_S, Gate
from tests.service.conftest import make_space
from tests.service.test_metrics import free_port
from tests.service.wire import TIMEOUT_S, Wire, key, read, wired, write

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[DaemonThread]:
    folder = tmp_path_factory.mktemp("health")
    config = load_config(
        overrides={
            "daemon.socket": f"unix://{folder}/kv.sock",
            "daemon.metrics_port": port,
            "cpu.shm_dir": str(folder),
            "cpu.capacity_bytes": "1MiB",
            "gpu.devices": ["host:0"],
            "gpu.capacity_bytes": "256KiB",
            "disk.path": str(folder / "disk"),
            "disk.capacity_bytes": "16MiB",
            "migration.interval_s": 0.02,
            "migration.host_pressure_high": 1.0,
        },
        env={},
    )
    patch = pytest.MonkeyPatch()
    patch.setattr(watchdog, "INTERVAL_S", 0.02)
    patch.setattr("hybridkv.service.daemon.BEAT_S", 0.02)
    with patch.context(), DaemonThread(config) as running:
        yield running
        assert running.host.check() == []
    patch.undo()


@pytest.fixture
def kv(shared: DaemonThread) -> Iterator[Wire]:
    with wired(shared.address) as connected:
        yield connected


@pytest.fixture
def mine(request: pytest.FixtureRequest) -> Namespace:
    return make_space(salt=request.node.name)


def until(true: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError(what)


def status(wire: Wire, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(wire.channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S).status)


def http(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def pulse_of(daemon: DaemonThread, name: str) -> Pulse:
    return next(pulse for pulse in daemon.host.migrator.pulses if pulse.name == name)


def loops(daemon: DaemonThread) -> dict[str, Any]:
    found: dict[str, Any] = daemon.daemon.stats()["loops"]
    return found


# ---------------------------------------------------------------------------------------------------- errors


@contextmanager
def raising(owner: Any, name: str, error: BaseException) -> Iterator[None]:
    """The method raises once."""
    real, patch, left = getattr(owner, name), pytest.MonkeyPatch(), [error]

    def once(*args: Any, **how: Any) -> Any:
        if left:
            raise left.pop()
        return real(*args, **how)

    patch.setattr(owner, name, once)
    try:
        yield
        until(lambda: not left, f"{name} was not called")
    finally:
        patch.undo()


def work_on(kv: Wire, space: Namespace, daemon: DaemonThread, numbers: range) -> None:
    """Every lane and the carver have something to do, and do it."""
    stream = kv.attach(space)
    assert write(kv, stream.session, *numbers) == [1] * len(numbers)
    with AdminClient(daemon.address) as client:
        client.drain(TIMEOUT_S)
    assert read(kv, stream.session, *numbers)[0] == [1] * len(numbers)
    stream.detach()


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_no_error_stops_a_loop(shared: DaemonThread, kv: Wire, mine: Namespace, kind: type[BaseException]) -> None:
    """One error in each loop: it is counted, the loop goes on, and everything works afterwards."""
    host, error = shared.host, kind("injected")
    before = {name: row["errors"] for name, row in loops(shared).items()}
    writer, lane = (host.migrator.lanes.lane(*way) for way in ((1, 2), (0, 1)))
    disk_writer: Any = writer.mover
    with raising(host.migrator, "on_tick", error), raising(disk_writer, "tend", error):
        writer.wake()
    with raising(lane, "_start_batch", error):
        lane.wake()
    with raising(host.migrator.carver, "_return_due", error):
        host.migrator.carver.idle()
    if kind is RuntimeError:
        with raising(Daemon, "_tell_health", error):
            pass
        with raising(Watchers, "look", error), AdminClient(shared.address) as client:
            events = client.watch(kinds=[WatchKind.CLEARED])
            next(events)
            client.clear(mine.fingerprint)
            work_on(kv, mine, shared, range(2))
            client.clear(mine.fingerprint)
            assert next(events).kind is WatchKind.CLEARED
            events.close()
    work_on(kv, mine, shared, range(10, 20))
    until(lambda: all(row["alive"] for row in loops(shared).values()), "a loop is dead")
    grown = {name for name, row in loops(shared).items() if row["errors"] > before.get(name, 0)}
    own = {"event loop", "watch"} if kind is RuntimeError else set()
    assert {"migrator", "cpu-disk", "gpu0-cpu.demand", "carver"} | own <= grown
    until(lambda: status(kv, "") == SERVING, "it does not recover")


def test_a_probe_that_raises_does_not_end_the_watchdog(shared: DaemonThread, kv: Wire) -> None:
    with raising(shutil, "disk_usage", RuntimeError("injected")):
        until(lambda: not shared.daemon.live, "the failed probe does not show")
        until(lambda: status(kv, "hybridkv.probe") == NOT_SERVING, "its own name does not tell")
    until(lambda: shared.daemon.live, "it does not come back")
    until(lambda: status(kv, "hybridkv.probe") == SERVING, "its own name does not tell that it is well again")
    assert status(kv, "hybridkv.live") == SERVING


# ---------------------------------------------------------------------------------------------------- stuck


def test_a_stuck_lane_is_seen_and_is_well_again(
    shared: DaemonThread, kv: Wire, mine: Namespace, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = kv.attach(mine)
    write(kv, stream.session, 1)
    assert http(port, "/healthz")[0] == http(port, "/readyz")[0] == 200
    monkeypatch.setattr(pulse_of(shared, "cpu-disk"), "stuck_after_s", 0.05)
    gate = Gate("disk.put.before_commit", "hybridkv-cpu-disk")
    with points.listening(gate), AdminClient(shared.address) as client:
        draining = threading.Thread(target=client.drain, args=(TIMEOUT_S,))
        draining.start()
        gate.wait_held()
        until(lambda: status(kv, "hybridkv.loops") == NOT_SERVING, "the stuck writer is not seen")
        until(lambda: status(kv, "hybridkv.live") == NOT_SERVING, "liveness does not go by it")
        assert status(kv, "hybridkv.ready") == status(kv, "hybridkv.v1.KVCache") == NOT_SERVING
        code, text = http(port, "/healthz")
        assert code == 503
        assert "loops: cpu-disk has been in one round for" in text
        assert client.stats()["loops"]["cpu-disk"]["busy_s"] > 0.05
        gate.open()
        draining.join(PATIENCE_S)
    until(lambda: status(kv, "hybridkv.live") == SERVING, "it does not recover")
    assert http(port, "/readyz")[0] == 200
    stream.detach()


def test_a_stuck_event_loop_is_seen_over_http(shared: DaemonThread, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC cannot answer then, for that is the loop's; the probes can."""
    pulse = next(iter(shared.daemon._watchdog.pulses))  # type: ignore[union-attr]
    monkeypatch.setattr(pulse, "stuck_after_s", 0.1)
    go, loop = threading.Event(), shared._loop
    assert loop is not None
    loop.call_soon_threadsafe(go.wait, PATIENCE_S)
    try:
        until(lambda: http(port, "/healthz")[0] == 503, "the stuck event loop is not seen")
        assert "event_loop: event loop was last heard of" in http(port, "/readyz")[1]
    finally:
        go.set()
    until(lambda: http(port, "/healthz")[0] == 200, "it does not recover")


def test_a_lock_that_is_never_given_back_is_seen(
    shared: DaemonThread, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "LOCKED_FOR_S", 0.05)
    with shared.host.directory.lock:
        until(lambda: http(port, "/healthz")[0] == 503, "the held lock is not seen")
        assert "directory: the directory's lock has been held" in http(port, "/healthz")[1]
    until(lambda: http(port, "/healthz")[0] == 200, "it does not recover")


def test_a_probe_that_hangs_is_seen(shared: DaemonThread, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "STALE_AFTER_S", 0.1)
    go = threading.Event()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: go.wait(PATIENCE_S) and None)
    try:
        until(lambda: http(port, "/healthz")[0] == 503, "the hanging probe is not seen")
        assert "probe: the last look at the host ended" in http(port, "/healthz")[1]
    finally:
        go.set()
        monkeypatch.undo()
    until(lambda: http(port, "/healthz")[0] == 200, "it does not recover")


# ---------------------------------------------------------------------------------------------------- details


def test_ready_is_not_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that drains is alive, and takes no work."""
    config = load_config(
        overrides={
            "daemon.socket": f"unix://{tmp_path}/kv.sock",
            "cpu.shm_dir": str(tmp_path),
            "cpu.capacity_bytes": "1MiB",
        },
        env={},
    )
    go = threading.Event()
    with DaemonThread(config, drain=True) as daemon, wired(daemon.address) as wire:

        def held(timeout_s: float) -> DrainReport:
            go.wait(TIMEOUT_S)
            return DrainReport(0, 0)

        monkeypatch.setattr(daemon.host, "drain", held)
        assert status(wire, "hybridkv.ready") == status(wire, "hybridkv.live") == SERVING
        stopper = threading.Thread(target=daemon.stop)
        stopper.start()
        until(lambda: status(wire, "hybridkv.ready") == NOT_SERVING, "it is ready though it drains")
        assert status(wire, "hybridkv.live") == SERVING
        assert daemon.daemon.live
        assert not daemon.daemon.ready
        go.set()
        stopper.join()


def test_old_holds_and_missing_room_are_told(shared: DaemonThread, kv: Wire, mine: Namespace) -> None:
    host = shared.host
    stream = kv.attach(mine)
    write(kv, stream.session, 1)
    lease = host.acquire(stream.session, Keys.of([key(1)]))
    assert lease.wait(PATIENCE_S)
    found = host.stats()["ages"]
    assert isinstance(found, dict)
    assert 0 < found["lease_s"] < PATIENCE_S
    assert found["quarantined_s"] == 0.0
    held = host.directory.state.ledger.leases[lease.reply().lease]
    with host.directory.lock:
        held.haunts, held.lapsed_at = [(0, 0)], host.clock.now() - probes.HAUNTED_FOR_S - 5
        ok, reason = probes.health(host)["holds"]
        held.haunts = []
    assert not ok
    assert "605 s for a worker whose hold lapsed" in reason
    host.release(stream.session, held.id)
    stream.detach()


def test_shared_memory_that_is_gone_is_told(shared: DaemonThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_path: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(shutil, "disk_usage", gone)
    ok, reason = shared.host.health()["shared_memory"]
    assert not ok
    assert "No such file" in reason
