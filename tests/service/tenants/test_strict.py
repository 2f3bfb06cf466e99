"""`daemon.isolation = "strict"`: no process but the daemon has a byte of another tenant, by any descriptor or any call."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.client import connect
from hybridkv.service.codec import namespace_to_wire
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.listening import side_socket_path, socket_path
from hybridkv.service.side.client import fetch_regions
from hybridkv.tiers.errors import FailedPreconditionError
from tests.service.client.conftest import content
from tests.service.tenants.conftest import (
    BLOCK_BYTES,
    TOKENS,
    Rig,
    chain_of,
    make_space,
    store,
    tenant_config,
)
from tests.service.tenants.test_isolation import bearer
from tests.service.wire import TIMEOUT_S, Wire, parts, payload, some_keys, wired

MARK = b"a block of alice, which nobody else may see"
_never = threading.Event()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("strict")
    with DaemonThread(tenant_config(folder, daemon__isolation="strict", gpu__devices="host:0",
                                    gpu__capacity_bytes="4MiB")) as running:  # fmt: skip
        yield Rig(running, folder)


def test_blocks_are_copied_over_streams_and_read_back(rig: Rig) -> None:
    kv = rig.connect("alice")
    assert not kv.mapped
    store(kv, keys := chain_of(kv, 5))
    rows = np.zeros((5, BLOCK_BYTES), np.uint8)
    assert kv.read(keys, rows).all()
    assert all(np.array_equal(row, content(key)) for row, key in zip(rows, keys, strict=True))


def test_the_side_socket_hands_nothing_over_even_to_the_owner(rig: Rig) -> None:
    kv = rig.connect("local")
    side = side_socket_path(socket_path(rig.address))
    live = kv._link.live
    assert live is not None
    with pytest.raises(FailedPreconditionError, match="isolation is strict: no worker maps memory"):
        fetch_regions(side, live.attached.session, live.attached.token, 5.0)
    assert "strict" in live.transport.unmapped_reason


def test_a_worker_process_has_no_descriptor_and_no_mapping_of_a_tiers_memory(rig: Rig) -> None:
    """Everything a worker of bob has open or mapped, while alice's block lies in the tier: none of it is a region's file,
    and none that it can read holds her bytes."""
    alice = rig.connect("alice")
    keys = chain_of(alice, 1)
    with alice.reserve(keys, timeout_s=5.0) as slots:
        slots.array(0)[:] = np.resize(np.frombuffer(MARK, np.uint8), BLOCK_BYTES)
        slots.seal()
    regions = [path for path in rig.folder.rglob("*.region") if path.is_file()]
    assert any(MARK in path.read_bytes() for path in regions)
    done = subprocess.run(
        [sys.executable, "-c", _WORKER, rig.address, TOKENS["bob"], str(rig.folder)],
        env={**os.environ, "HYBRIDKV_TEST_MARK": MARK.hex()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["unmapped", "0", "0"]


_WORKER = """
import os, stat, sys
from hybridkv.service.client import connect
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
address, token, folder = sys.argv[1:]
space = Namespace(model="m", layout=BlockLayout.opaque(4096, 16, "test"))
with connect(address, space, token=token, timeout_s=30.0) as kv:
    kv.lookup(kv.keys(list(range(16))))
    mark = bytes.fromhex(os.environ["HYBRIDKV_TEST_MARK"])
    held = found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            held += folder in target and not target.endswith((".sock", ".side"))
            if stat.S_ISREG(os.stat(f"/proc/self/fd/{name}").st_mode):
                found += mark in open(f"/proc/self/fd/{name}", "rb").read()
        except OSError:
            continue
    held += sum(folder in line for line in open("/proc/self/maps"))
    print("mapped" if kv.mapped else "unmapped", held, found)
"""


@pytest.fixture
def wire(rig: Rig) -> Iterator[Wire]:
    with wired(rig.address) as connected:
        yield connected


def attach(wire: Wire, name: str) -> tuple[Any, int]:
    first = pb.AttachRequest(space=namespace_to_wire(make_space()))
    call = wire.session.Attach(_held_open(first), metadata=bearer(name), timeout=30.0)
    return call, int(next(call).session)


def _held_open(first: pb.AttachRequest) -> Iterator[pb.AttachRequest]:
    yield first
    _never.wait(30.0)


def test_what_a_slot_held_before_cannot_be_published_and_read(rig: Rig, wire: Wire) -> None:
    """Bob's write is given a slot that alice's bytes lie in still. He seals it from another call before he sends a byte, by
    its number, which he guesses: refused; and his stream publishes nothing but what it carried."""
    alice = rig.connect("alice")
    with alice.reserve(chain_of(alice, 40), timeout_s=5.0) as slots:
        for i in slots.new:
            slots.array(i)[:] = np.resize(np.frombuffer(MARK, np.uint8), BLOCK_BYTES)
        slots.seal()
    alice.remove(chain_of(alice, 40))
    call, session = attach(wire, "bob")
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[pb.WritePart]:
        data = payload(1)
        yield pb.WritePart(session=session, wait_s=5.0, **some_keys(1))
        begun.set()
        go_on.wait(TIMEOUT_S)
        yield pb.WritePart(data=data)

    writing = wire.kv.Write.future(slowly(), timeout=TIMEOUT_S, metadata=bearer("bob"))
    assert begun.wait(TIMEOUT_S)
    while not (reservations := list(rig.host.directory.state.ledger.reservations)):
        _never.wait(0.002)
    for number in reservations:
        with pytest.raises(grpc.RpcError) as caught:
            wire.kv.Seal(pb.SealRequest(session=session, reservation=number), metadata=bearer("bob"))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    go_on.set()
    assert list(writing.result().outcomes) == [1]
    got = list(wire.kv.Read(pb.ReadRequest(session=session, **some_keys(1)), timeout=TIMEOUT_S, metadata=bearer("bob")))
    assert b"".join(part.data for part in got[1:]) == payload(1)
    call.cancel()
    rig.host.detach(session)


def test_a_write_that_stops_half_way_publishes_nothing(rig: Rig, wire: Wire) -> None:
    call, session = attach(wire, "bob")
    with pytest.raises(grpc.RpcError):
        wire.kv.Write(parts(session, [7], payload(7)[:100]), timeout=TIMEOUT_S, metadata=bearer("bob"))
    found = wire.kv.Lookup(pb.LookupRequest(session=session, **some_keys(7)), metadata=bearer("bob"))
    assert list(found.states) == [3]
    call.cancel()
    rig.host.detach(session)


def test_sequences_need_mapped_memory(rig: Rig) -> None:
    with pytest.raises(FailedPreconditionError, match="mapped memory"):
        rig.connect("alice").open_sequence(list(range(32)))


def test_the_files_of_the_regions_are_the_daemons_own(rig: Rig, tmp_path: Path) -> None:
    files = [path for path in rig.folder.rglob("*") if path.is_file() and not path.name.endswith(".token")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_shared_is_the_default_and_maps(tmp_path: Path) -> None:
    config = tenant_config(tmp_path)
    assert config.daemon.isolation == "shared"
    with DaemonThread(config) as daemon, connect(daemon.address, make_space(), token=TOKENS["alice"]) as kv:
        assert kv.mapped
