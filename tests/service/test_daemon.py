"""The daemon in this process: its sockets, health, reflection, metrics, and how it starts and stops."""

import gc
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service import own_process
from hybridkv.service import watchdog as watchdog_module
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.config import Config
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.replies import DrainReport
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError
from hybridkv.tiers.namespace import Namespace
from tests.service.fake_host import FakeHost, fake, fake_of
from tests.service.wire import TIMEOUT_S, Wire, wired, write

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def daemon(fake_daemon: DaemonThread) -> DaemonThread:
    return fake_daemon


def path_of(daemon: DaemonThread) -> Path:
    return Path(daemon.address.removeprefix("unix://"))


def changed(config: Config, **fields: object) -> Config:
    return config.model_copy(update={"daemon": config.daemon.model_copy(update=fields)})


def test_sockets_are_for_the_user_alone(daemon: DaemonThread) -> None:
    path = path_of(daemon)
    for file in (path, path.with_name(path.name + ".side"), path.with_name(path.name + ".lock")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_stopped_daemon_leaves_nothing(config: Config) -> None:
    others = set(threading.enumerate())
    with DaemonThread(config, make_host=fake) as daemon:
        path, host = path_of(daemon), fake_of(daemon)
    assert host.closed
    assert list(path.parent.iterdir()) == []
    assert not [thread for thread in set(threading.enumerate()) - others if thread.name.startswith("hybridkv")]


def test_a_second_daemon_is_refused_with_the_pid_and_the_first_stays(
    daemon: DaemonThread, config: Config, wire: Wire
) -> None:
    with pytest.raises(UnavailableError, match=f"in use by pid {os.getpid()}"):
        DaemonThread(config, make_host=fake).__enter__()
    assert wire.admin.Check(pb.CheckRequest(), timeout=TIMEOUT_S).violations == []


def test_the_socket_of_a_dead_daemon_is_taken_over(config: Config) -> None:
    path = Path(config.daemon.socket.removeprefix("unix://"))
    path.parent.mkdir()
    for name in (path.name, path.name + ".side"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path.with_name(name)))
    path.with_name(path.name + ".lock").write_text("4194303\n")
    with DaemonThread(config, make_host=fake) as daemon, AdminClient(daemon.address) as client:
        assert client.check() == []


def test_a_file_that_is_no_socket_is_left_alone(config: Config) -> None:
    path = Path(config.daemon.socket.removeprefix("unix://"))
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(UnavailableError, match="is no socket"):
        DaemonThread(config, make_host=fake).__enter__()
    assert path.read_text() == "precious"


def test_a_start_that_fails_leaves_nothing(config: Config) -> None:
    hosts: list[FakeHost] = []

    def make(given: Config) -> Host:
        hosts.append(FakeHost(given))
        return cast(Host, hosts[-1])

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for fields in (
            {"metrics_port": port},
            {"tcp_address": f"127.0.0.1:{port}", "tcp_insecure": True},
        ):
            with pytest.raises(UnavailableError, match=f"daemon.({'|'.join(fields)}).*{port}"):
                DaemonThread(changed(config, **fields), make_host=make).__enter__()
    assert [host.closed for host in hosts] == [True, True]
    assert list(Path(config.daemon.socket.removeprefix("unix://")).parent.iterdir()) == []


def test_tls_files_are_named_when_they_cannot_be_read(config: Config, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    bad = changed(config, tcp_address="127.0.0.1:0", tls_cert_path=missing, tls_key_path=missing)
    with pytest.raises(InvalidArgumentError, match=r"daemon\.tls_key_path.*none\.pem"):
        DaemonThread(bad, make_host=fake).__enter__()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tcp_serves_with_tls(config: Config, tmp_path: Path) -> None:
    cert, secret = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject]
    subprocess.run([*command, "-out", cert, "-keyout", secret], check=True, capture_output=True)
    tls = changed(config, tcp_address="localhost:0", tls_cert_path=str(cert), tls_key_path=str(secret))
    with DaemonThread(tls, make_host=fake) as daemon:
        address = f"localhost:{daemon.daemon.tcp_port}"
        with AdminClient(address, credentials=grpc.ssl_channel_credentials(cert.read_bytes())) as client:
            assert client.check() == []
        with AdminClient(address) as plain, pytest.raises(UnavailableError):
            plain.check()


def test_tcp_serves_but_offers_no_regions(config: Config, space: Namespace) -> None:
    with DaemonThread(changed(config, tcp_address="127.0.0.1:0", tcp_insecure=True), make_host=fake) as daemon:
        assert daemon.daemon.tcp_port
        with wired(f"127.0.0.1:{daemon.daemon.tcp_port}") as wire:
            assert wire.attach(space).reply.side_socket == ""


def test_reflection_lists_the_services(wire: Wire) -> None:
    found = ProtoReflectionDescriptorDatabase(wire.channel)
    assert {"hybridkv.v1.Session", "hybridkv.v1.KVCache", "hybridkv.v1.Admin", "grpc.health.v1.Health"} <= set(
        found.get_services()
    )
    assert found.FindFileContainingSymbol("hybridkv.v1.KVCache").name == "hybridkv/proto/hybridkv.proto"


def health(wire: Wire, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(wire.channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S).status)


def test_health_answers_per_service_and_component(wire: Wire) -> None:
    for service in ("", "hybridkv.v1.Session", "hybridkv.v1.KVCache", "hybridkv.v1.Admin", "hybridkv.disk"):
        assert health(wire, service) == SERVING
    with pytest.raises(grpc.RpcError) as caught:
        health(wire, "nobody")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_watchers_hear_of_a_component_that_fails_and_comes_back(
    wire: Wire, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog_module, "INTERVAL_S", 0.01)
    host = fake_of(daemon)
    stub = health_pb2_grpc.HealthStub(wire.channel)
    request = health_pb2.HealthCheckRequest(service="hybridkv.disk")
    watches = [stub.Watch(request, timeout=TIMEOUT_S) for _ in range(3)]
    assert [next(watch).status for watch in watches] == [SERVING] * 3
    watches.pop().cancel()
    host.components = {"disk": (False, "no space left")}
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * 2
    host.components = {"disk": (True, "")}
    assert [next(watch).status for watch in watches] == [SERVING] * 2


def test_a_daemon_may_open_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(hard, 4096) - 1
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        own_process.allow_descriptors()
        assert few < resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_probe_that_fails_is_not_healthy(wire: Wire, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog_module, "INTERVAL_S", 0.01)
    stub = health_pb2_grpc.HealthStub(wire.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=TIMEOUT_S)
    assert next(watch).status == SERVING
    fake_of(daemon).components = None  # type: ignore[assignment]
    assert next(watch).status == NOT_SERVING


def test_a_tier_that_is_off_does_not_stop_the_services(
    wire: Wire, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog_module, "INTERVAL_S", 0.01)
    stub = health_pb2_grpc.HealthStub(wire.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="hybridkv.disk"), timeout=TIMEOUT_S)
    assert next(watch).status == SERVING
    fake_of(daemon).components = {"loop": (True, ""), "disk": (False, "no space left")}
    assert next(watch).status == NOT_SERVING
    assert health(wire, "hybridkv.v1.KVCache") == SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=TIMEOUT_S)
    assert next(watch).status == SERVING
    fake_of(daemon).components = {"loop": (False, "stuck"), "disk": (True, "")}
    assert next(watch).status == NOT_SERVING
    assert health(wire, "hybridkv.v1.KVCache") == NOT_SERVING


def test_a_draining_daemon_attaches_nobody(config: Config, space: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    with DaemonThread(config, make_host=fake, drain=True) as daemon, wired(daemon.address) as wire:
        host, go = fake_of(daemon), threading.Event()
        drain = host.drain

        def held(timeout_s: float) -> DrainReport:
            go.wait(TIMEOUT_S)
            return drain(timeout_s)

        monkeypatch.setattr(host, "drain", held)
        stream = wire.attach(space)
        stopper = threading.Thread(target=daemon.stop)
        stopper.start()
        assert next(stream.call).draining
        assert health(wire, "hybridkv.v1.KVCache") == NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            wire.attach(space)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "draining" in str(caught.value.details())
        go.set()
        stopper.join()


def test_a_second_request_ends_the_drain(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with DaemonThread(config, make_host=fake, drain=True) as daemon:
        host, go, begun = fake_of(daemon), threading.Event(), threading.Event()

        def held(timeout_s: float) -> DrainReport:
            begun.set()
            go.wait(TIMEOUT_S)
            return DrainReport(0, 0)

        monkeypatch.setattr(host, "drain", held)
        stopper = threading.Thread(target=daemon.stop)
        stopper.start()
        assert begun.wait(TIMEOUT_S)
        daemon.stop()
        stopper.join()
        assert not go.is_set()
        assert host.closed
        go.set()


def test_a_drain_that_fails_does_not_stop_the_stop(
    config: Config, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DaemonThread(config, make_host=fake, drain=True) as daemon:
        host = fake_of(daemon)

        def broken(_: float) -> None:
            raise OSError("disk gone")

        monkeypatch.setattr(host, "drain", broken)
        daemon.stop()
    assert host.closed
    assert "disk gone" in caplog.text


def test_the_admin_client_reads_and_acts(daemon: DaemonThread, config: Config, wire: Wire, space: Namespace) -> None:
    stream = wire.attach(space)
    write(wire, stream.session, 1, 2, 3)
    with AdminClient(daemon.address) as client:
        assert client.stats()["tiers"]["cpu"]["blocks"] == 3
        assert {entry.key: entry.value for entry in client.config()}["limits.keys_per_call_count"] == 128
        assert client.drain(1.0).written == 3
        assert client.clear(bytes(32)) == 0
        assert client.clear(space.fingerprint) == 3
        fake_of(daemon).violations = ["law 1: x"]
        assert client.check() == ["law 1: x"]
        with pytest.raises(InvalidArgumentError, match="fingerprint"):
            client.clear(b"short")
        for timeout_s in (-1.0, 1e9):
            with pytest.raises(InvalidArgumentError, match="timeout_s"):
                client.drain(timeout_s)


def test_an_absent_daemon_is_unavailable(tmp_path: Path) -> None:
    with AdminClient(f"unix://{tmp_path}/none.sock") as client, pytest.raises(UnavailableError):
        client.stats()


def test_collections_spare_what_a_daemon_began_with() -> None:
    before = gc.get_freeze_count()
    try:
        own_process.spare_collections()
        assert gc.get_freeze_count() > before + 1000
    finally:
        gc.unfreeze()


_HOLES = """
import ctypes
from hybridkv.service.own_process import give_back_freed_memory
def own_bytes():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) << 10
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
held = [libc.malloc(32768) for _ in range(4000)]
for at in held:
    ctypes.memset(at, 1, 32768)
full = own_bytes()
for number, at in enumerate(held):
    if number % 100:
        libc.free(at)
before = own_bytes()
give_back_freed_memory()
print(full, before, own_bytes())
"""


def test_freed_memory_between_what_lives_goes_back_to_the_host() -> None:
    done = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True)
    full, before, after = map(int, done.stdout.split())
    assert full - before < 32 << 20, "else the heap gives back by itself, and nothing is shown"
    assert before - after > 64 << 20
