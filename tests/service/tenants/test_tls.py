"""TLS and client certificates on TCP: who signs, whose name, and what an expired or foreign one is worth."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hybridkv.service.admin_client import AdminClient
from hybridkv.service.client import KV, connect
from hybridkv.service.client.aio import connect_async
from hybridkv.service.config import load_config
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import InvalidArgumentError, UnauthenticatedError, UnavailableError
from tests.service.tenants.certificates import Authority, Signed
from tests.service.tenants.conftest import TOKENS, WRONG, chain_of, make_space, store, tenant_config

SOON_S = 1.0
"""How long a connection is tried that can never be made."""


@dataclasses.dataclass
class Secure:
    """A daemon on TCP with mutual TLS; the certificates that may, and may not, connect."""

    daemon: DaemonThread
    ca: Authority
    other: Authority
    made: dict[str, Signed]

    @property
    def address(self) -> str:
        return f"localhost:{self.daemon.daemon.tcp_port}"

    def connect(self, name: str | None, timeout_s: float = 10.0, **how: Any) -> KV:
        pair = {} if name is None else {"cert": self.made[name].cert, "key": self.made[name].key}
        return connect(self.address, make_space(), timeout_s=timeout_s, **({"ca": self.ca.cert} | pair | how))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("tls")
    ca, other = Authority(folder, "ca"), Authority(folder, "other")
    server = ca.sign("daemon", names="DNS:localhost,IP:127.0.0.1")
    made = {
        "alice": ca.sign("alice-node"),
        "bob": ca.sign("whatever", names="DNS:bob.example,URI:spiffe://cluster/bob", stem="bob"),
        "nobody": ca.sign("nobody"),
        "expired": ca.sign("alice-node", days=-1, stem="expired"),
        "foreign": other.sign("alice-node"),
        "both": ca.sign("alice-node", names="URI:spiffe://cluster/bob", stem="both"),
    }
    config = tenant_config(
        folder,
        daemon__tcp_address="localhost:0",
        daemon__tls_cert_path=str(server.cert),
        daemon__tls_key_path=str(server.key),
        daemon__tls_client_ca_path=str(ca.cert),
        tenants__alice__certificate_name="alice-node",
        tenants__bob__certificate_name="spiffe://cluster/bob",
    )
    with DaemonThread(config) as running:
        yield Secure(running, ca, other, made)
        assert running.host.check() == []


@pytest.mark.parametrize("name", ["alice", "bob"])
def test_a_certificate_says_who_calls(secure: Secure, name: str) -> None:
    with secure.connect(name) as kv:
        assert kv.stats()["tenant"] == name
        assert not kv.mapped
        store(kv, keys := chain_of(kv, 2))
        assert kv.lookup(keys).prefix == 2


def test_the_asyncio_client_and_the_admin_client_bring_certificates_too(secure: Secure) -> None:
    pair = secure.made["bob"]

    async def tenant() -> object:
        space = make_space()
        async with connect_async(secure.address, space, ca=secure.ca.cert, cert=pair.cert, key=pair.key) as kv:
            return (await kv.stats())["tenant"]

    assert asyncio.run(tenant()) == "bob"
    credentials = grpc.ssl_channel_credentials(
        secure.ca.cert.read_bytes(), pair.key.read_bytes(), pair.cert.read_bytes()
    )
    with AdminClient(secure.address, credentials=credentials, token=TOKENS["bob"]) as admin:
        assert admin.stats()["tenant"] == "bob"


def test_a_token_and_a_certificate_of_two_tenants_are_nobody(secure: Secure) -> None:
    with secure.connect("nobody", token=TOKENS["bob"]) as kv:
        assert kv.stats()["tenant"] == "bob"
    for name, token in (("alice", TOKENS["bob"]), ("alice", WRONG), ("nobody", WRONG)):
        with pytest.raises(UnauthenticatedError):
            secure.connect(name, token=token)


@pytest.mark.parametrize("name", ["nobody", "both"])
def test_a_certificate_that_names_no_tenant_or_two_is_refused(secure: Secure, name: str) -> None:
    with pytest.raises(UnauthenticatedError):
        secure.connect(name)


@pytest.mark.parametrize("name", ["expired", "foreign", None])
def test_without_a_good_certificate_there_is_no_connection(secure: Secure, name: str | None) -> None:
    with pytest.raises(UnavailableError, match="cannot attach"):
        secure.connect(name, timeout_s=SOON_S)


def test_a_daemon_that_another_authority_signed_is_not_trusted(secure: Secure) -> None:
    with pytest.raises(UnavailableError, match="cannot attach"):
        secure.connect("alice", timeout_s=SOON_S, ca=secure.other.cert)


def test_a_plain_connection_to_a_tls_port_is_none(secure: Secure) -> None:
    with pytest.raises(UnavailableError):
        connect(secure.address, make_space(), timeout_s=SOON_S, token=TOKENS["alice"])


def test_a_user_is_no_proof_on_tcp(secure: Secure) -> None:
    """The `local` tenant is whoever runs the tests, on the Unix socket only."""
    with pytest.raises(UnauthenticatedError):
        secure.connect("nobody")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"daemon.tls_client_ca_path": "/ca.pem"}, "daemon.tls_client_ca_path: needs tls_cert_path"),
        ({"tenants.a.certificate_name": "x", "tenants.b.certificate_name": "x"}, "tenants: two tenants have one"),
        ({"tenants.a.cpu_bytes": "1GiB"}, "tenants.a: needs a token_path, a certificate_name or a uid$"),
        ({"tenants.A.uid": 1}, "tenants: 'A' is no name: must be a to z, 0 to 9, _ and -, a letter first, at most 32$"),
        ({"daemon.isolation": "strict"}, "tenants: daemon.isolation"),
        ({"daemon.socket_mode": "0777"}, "daemon.socket_mode: must be '0600', '0660' or '0666'"),
    ],
)
def test_what_makes_no_sense_stops_the_start(keys: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said.replace(".", r"\.")):
        load_config(overrides=keys, env={})


def test_an_authority_that_is_not_there_is_named(tmp_path: Path, secure: Secure) -> None:
    pair = secure.made["alice"]
    config = tenant_config(
        tmp_path,
        daemon__tcp_address="localhost:0",
        daemon__tls_cert_path=str(pair.cert),
        daemon__tls_key_path=str(pair.key),
        daemon__tls_client_ca_path=str(tmp_path / "none.pem"),
    )
    with pytest.raises(InvalidArgumentError, match=r"^daemon.tls_client_ca_path: .*No such file"):
        DaemonThread(config).__enter__()
