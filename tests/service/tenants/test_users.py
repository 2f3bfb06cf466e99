"""Tenants that are other users than the daemon's: needs root, to become them."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridkv.service.client import connect
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.listening import side_socket_path, socket_path
from hybridkv.service.side.client import fetch_regions, fetch_token
from hybridkv.tiers.errors import HybridKVError
from tests.service.tenants.conftest import make_space, tenant_config

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root becomes other users")

CAROL, MALLORY = 60001, 60002


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonThread]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "d").mkdir(mode=0o755)
        config = tenant_config(folder, daemon__socket_mode="0666", tenants__carol__uid=CAROL)
        with DaemonThread(config) as running:
            yield running


def as_user(uid: int, action: Callable[[], str]) -> str:
    """What `action` returns, or the class of its error, in a process of that user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            said = action()
        except HybridKVError as error:
            said = type(error).__name__
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def test_a_user_is_the_tenant_that_the_config_says(daemon: DaemonThread) -> None:
    side = side_socket_path(socket_path(daemon.address))
    token = as_user(CAROL, lambda: fetch_token(side, 5.0))
    with connect(daemon.address, make_space(), token=token) as kv:
        assert kv.stats()["tenant"] == "carol"


def test_a_user_that_is_no_tenant_gets_neither_a_token_nor_regions(daemon: DaemonThread) -> None:
    """Not even with the secret of somebody's session: the connection ends without an answer."""
    side = side_socket_path(socket_path(daemon.address))
    assert as_user(MALLORY, lambda: fetch_token(side, 5.0)) == "UnavailableError"
    with connect(daemon.address, make_space()) as kv:
        live = kv._link.live
        assert live is not None
        session, secret = live.attached.session, live.attached.token
        stolen = as_user(MALLORY, lambda: f"{len(fetch_regions(side, session, secret, 5.0))} regions")
        shared = as_user(CAROL, lambda: f"{len(fetch_regions(side, session, secret, 5.0))} regions")
    assert (stolen, shared) == ("UnavailableError", "3 regions")
