"""A tenant that calls anything with anything, in the namespace and with the sessions of another: as `test_fuzz_calls.py`."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.states import Tier
from tests.service.conftest import make_space
from tests.service.hostile.world import Attacker, Neighbour, hostile_config
from tests.service.tenants.conftest import secret
from tests.service.tenants.test_isolation import bearer
from tests.service.wire import Wire

CALLS = 400
QUOTAS = {Tier.GPU: 128 << 10, Tier.CPU: 256 << 10, Tier.DISK: 1 << 20}


class _Channel:
    """A channel every call of which is a tenant's."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        self._channel = channel
        self._metadata = bearer(name)

    def __getattr__(self, kind: str) -> Any:
        """Of `unary_unary` and its like, which make calls."""
        found = getattr(self._channel, kind)
        if kind == "close":
            return found
        return lambda *path, **how: partial(found(*path, **how), metadata=self._metadata)


class TenantWire(Wire):
    """A bare client of one tenant."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(address)
        self.channel: Any = _Channel(self.channel, name)
        self.session = pb_grpc.SessionStub(self.channel)  # type: ignore[no-untyped-call]
        self.kv = pb_grpc.KVCacheStub(self.channel)  # type: ignore[no-untyped-call]
        self.admin = pb_grpc.AdminStub(self.channel)  # type: ignore[no-untyped-call]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonThread]:
    with DaemonThread(hostile_config(tmp_path, _tenants(tmp_path))) as running:
        yield running


def _tenants(folder: Path) -> dict[str, object]:
    tokens = {f"tenants.{name}.token_path": secret(folder, name) for name in ("alice", "bob")}
    quotas = {f"tenants.alice.{tier.name.lower()}_bytes": nbytes for tier, nbytes in QUOTAS.items()}
    return {**tokens, **quotas}


def test_a_tenant_disturbs_no_other_and_keeps_to_its_quotas(daemon: DaemonThread) -> None:
    """`Admin.Clear` among its calls: it clears what is its own."""
    alice, bob = TenantWire(daemon.address, "alice"), TenantWire(daemon.address, "bob")
    neighbour = Neighbour(bob, make_space(), patient=False)
    attacker = Attacker(alice, make_space(), Random(3), excluded=set())
    for stream in attacker.streams:
        daemon.host.on_mapped(stream.session, os.getpid())  # without it, it may neither reserve nor have sequences
    attacker.mutator.note("session", *[neighbour.stream.session] * 4)
    attacker.mutator.note("lease", *[neighbour.lease] * 4)
    quotas = daemon.host.directory.state.quotas
    assert quotas is not None
    account = quotas.names.index("alice")
    for number in range(CALLS):
        attacker.call()
        used = {tier: int(quotas.used[account, tier]) for tier in QUOTAS}
        assert all(used[tier] <= QUOTAS[tier] for tier in QUOTAS), used
        if number % 25 == 0:
            neighbour.round()
    reached = {name for name, code in attacker.codes if code == "OK"}
    assert len(reached) > 10, f"it gets no further than the door: {reached}"
    assert not {name for name in reached if name.startswith("Admin.")} - {"Admin.Stats", "Admin.Explain", "Admin.Clear"}
    neighbour.round()
    attacker.leave()
    neighbour.stream.detach()
    for wire in (alice, bob):
        wire.channel.close()
    assert daemon.host.check() == []
