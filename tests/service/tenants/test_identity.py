"""Who a caller is: tokens, users and certificates; and what a caller that is nobody, or of the wrong role, is told."""

import asyncio
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.cli import app
from hybridkv.service.client import connect
from hybridkv.service.client.aio import connect_async
from hybridkv.service.daemon import Daemon
from hybridkv.service.identities import Identities
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.listening import side_socket_path, socket_path
from hybridkv.service.side.client import fetch_token
from hybridkv.tiers.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError
from tests.service.tenants.conftest import TOKENS, WRONG, Rig, chain_of, make_space, secret, store, tenant_config
from tests.service.wire import TIMEOUT_S, wired


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize("token", [WRONG, "alice-0123456789abcdef0", "x" * 16])
def test_a_wrong_token_is_refused_and_not_repeated(rig: Rig, token: str) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        connect(rig.address, make_space(), token=token)
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", TOKENS["alice"]),), (("authorization", "Basic x"),), bearer(""),
     bearer(TOKENS["alice"]) * 2, bearer(TOKENS["alice"]) + bearer(TOKENS["bob"])],
)  # fmt: skip
def test_no_call_is_served_without_one_proof(rig: Rig, metadata: tuple[tuple[str, str], ...]) -> None:
    with wired(rig.address) as wire:
        for method, request in (
            (wire.kv.Lookup, pb.LookupRequest(session=1)),
            (wire.admin.Stats, pb.StatsRequest()),
            (wire.admin.Drain, pb.DrainRequest()),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                method(request, timeout=TIMEOUT_S, metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError):
            wire.attach(make_space())


def test_a_user_of_the_unix_socket_is_known_without_a_token(rig: Rig) -> None:
    kv = rig.connect("local")
    assert kv.stats()["tenant"] == "local"
    assert kv.mapped


def test_a_token_for_a_user_is_given_to_that_user_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    side = side_socket_path(socket_path(rig.address))
    assert fetch_token(side, 5.0)
    identities = rig.daemon.daemon._identities
    assert identities is not None
    monkeypatch.setattr(identities, "_by_uid", {})
    with pytest.raises(UnauthenticatedError, match="no tenant"):
        fetch_token(side, 5.0)
    with pytest.raises(UnauthenticatedError):
        connect(rig.address, make_space())


def test_the_asyncio_client_proves_itself_too(rig: Rig) -> None:
    async def figures(token: str | None) -> object:
        async with connect_async(rig.address, make_space(), token=token) as kv:
            return (await kv.stats())["tenant"]

    assert [asyncio.run(figures(token)) for token in (TOKENS["bob"], None)] == ["bob", "local"]
    with pytest.raises(UnauthenticatedError):
        asyncio.run(figures(WRONG))


def test_a_token_file_serves_client_and_command_line(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = secret(tmp_path, "alice")
    with connect(rig.address, make_space(), token_file=path) as kv:
        assert kv.stats()["tenant"] == "alice"
    monkeypatch.setenv("HYBRIDKV_TOKEN_FILE", path)
    with AdminClient(rig.address) as admin:
        assert admin.stats()["tenant"] == "alice"
    Path(path).chmod(0o644)
    with pytest.raises(InvalidArgumentError, match="must be 0600"):
        AdminClient(rig.address)


def test_the_command_line_shows_each_its_own(rig: Rig, tmp_path: Path) -> None:
    def shown(command: str, name: str) -> str:
        options = ["--socket", rig.address, "--token-file", secret(tmp_path, name)]
        result = CliRunner().invoke(app, [*command.split(), *options])
        return str(result.output)

    for command in ("stats", "top --once --interval-s 0.2"):
        assert "alice" in shown(command, "alice")
        assert "bob" not in shown(command, "alice")
    assert all(name in shown("stats", "root") for name in ("alice", "bob", "cpu-cpu.demand"))
    assert "daemon at" in shown("doctor", "root")
    assert shown("config show --running", "alice") == "hybridkv: Admin.GetConfig: tenant alice is no operator\n"
    assert "daemon.isolation" in shown("config show --running", "root")


@pytest.mark.parametrize(
    "arguments",
    [{"token": "short"}, {"token": "a b" * 8}, {"token": "t" * 16, "token_file": "/t"}, {"cert": "/c"}],
)
def test_what_cannot_be_a_proof_is_named(arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^(token|token_file|cert):"):
        connect("unix:///nowhere", make_space(), **arguments)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ roles


def test_a_worker_is_no_operator(rig: Rig) -> None:
    with rig.admin("alice") as admin:
        for refused in (
            admin.config, admin.check, lambda: admin.drain(1.0), lambda: admin.update_config({"cpu.policy": "fifo"}),
        ):  # fmt: skip
            with pytest.raises(PermissionDeniedError, match="tenant alice is no operator"):
                refused()
    with rig.admin("root") as admin:
        assert admin.check() == []
        assert admin.update_config({"migration.cooldown_s": 4.0}).version == 2


def test_every_admin_call_but_three_is_an_operators() -> None:
    """What a later version adds is closed until somebody opens it."""
    from hybridkv.service.servicers.gate import _OF_WORKERS

    methods = {f"Admin.{one.name}" for one in pb.DESCRIPTOR.services_by_name["Admin"].methods}
    assert methods >= _OF_WORKERS == {"Admin.Stats", "Admin.Explain", "Admin.Clear"}


def test_page_sizes_of_all_are_the_operators(rig: Rig) -> None:
    from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc

    with wired(rig.address) as wire:
        stub = pb_grpc.SequencesStub(wire.channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as caught:
            stub.AdjustPageSize(pb.AdjustPageSizeRequest(page_blocks=2), metadata=bearer(TOKENS["bob"]))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        stub.AdjustPageSize(pb.AdjustPageSizeRequest(page_blocks=1), metadata=bearer(TOKENS["root"]))


def test_health_is_open_and_reflection_is_not_there(rig: Rig) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with wired(rig.address) as wire:
        health = health_pb2_grpc.HealthStub(wire.channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# ------------------------------------------------------------------------------------------------ token files


def test_a_token_file_that_others_may_read_stops_the_daemon(tmp_path: Path) -> None:
    config = tenant_config(tmp_path)
    (tmp_path / "bob.token").chmod(0o640)
    with pytest.raises(InvalidArgumentError, match=r"tenants.bob.token_path: .*others may read it \(mode 0640\)"):
        DaemonThread(config).__enter__()


@pytest.mark.parametrize(
    "text", ["", "\n\n", "too-short\n", "with a space in the middle\n", "tokén-0123456789abcdef\n"]
)
def test_a_bad_token_file_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    config = tenant_config(tmp_path)
    (tmp_path / "bob.token").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"^tenants.bob.token_path: ") as caught:
        Identities(config)
    assert not text.strip() or text.strip() not in str(caught.value)


def test_two_tenants_with_one_token_are_refused(tmp_path: Path) -> None:
    config = tenant_config(tmp_path)
    secret(tmp_path, "bob", TOKENS["alice"])
    with pytest.raises(InvalidArgumentError, match="has a token of tenant alice too"):
        Identities(config)


def test_tokens_are_changed_by_a_reload_two_at_a_time(tmp_path: Path) -> None:
    """An old and a new token serve together; a file that is bad changes nothing."""
    identities = Identities(tenant_config(tmp_path))
    new = "alice-fedcba9876543210"
    secret(tmp_path, "alice", TOKENS["alice"], new)
    identities.use_tokens(identities.read_tokens())
    assert [found.name for token in (TOKENS["alice"], new) if (found := identities._of_token(token))] == ["alice"] * 2
    secret(tmp_path, "alice", new)
    identities.use_tokens(identities.read_tokens())
    assert identities._of_token(TOKENS["alice"]) is None
    (tmp_path / "alice.token").write_text("bad")
    with pytest.raises(InvalidArgumentError):
        identities.read_tokens()
    assert identities._of_token(new) is not None


def test_a_daemon_reads_its_token_files_again_when_it_reloads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from hybridkv.service.config import LoadedConfig

    config = tenant_config(tmp_path)
    caplog.set_level("INFO", "hybridkv.service.daemon")

    async def scenario() -> list[bool]:
        daemon = Daemon(config, load=lambda: LoadedConfig(config, {}))
        await daemon.start()
        try:
            assert daemon._identities is not None
            secret(tmp_path, "alice", "alice-fedcba9876543210")
            await asyncio.to_thread(daemon.reload)
            return [daemon._identities._of_token(token) is None for token in (TOKENS["alice"], TOKENS["bob"])]
        finally:
            daemon.request_stop()
            daemon.request_stop()
            await daemon.stop(drain=False)

    assert asyncio.run(scenario()) == [True, False]
    assert "config reloaded: version 1, 0 keys changed, token files read again" in caplog.messages


def test_the_config_shows_the_path_of_a_token_and_never_the_token(rig: Rig) -> None:
    with rig.admin("root") as admin:
        shown = {entry.key: entry.value for entry in admin.config()}
    assert shown["tenants.alice.token_path"] == str(rig.folder / "alice.token")
    assert not any(token in repr(shown) for token in TOKENS.values())
    assert "0123456789abcdef" not in repr(rig.daemon.daemon._identities)


def test_without_tenants_there_is_one_owner_and_no_question(tmp_path: Path) -> None:
    config = tenant_config(tmp_path).model_copy(update={"tenants": {}})
    with DaemonThread(config) as daemon:
        with connect(daemon.address, make_space()) as kv, connect(daemon.address, make_space(), token=WRONG) as other:
            store(kv, keys := chain_of(kv, 1))
            assert other.lookup(keys).prefix == 1
        with AdminClient(daemon.address) as admin:
            assert admin.check() == []
