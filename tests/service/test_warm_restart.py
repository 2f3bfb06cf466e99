"""Daemon processes that follow one another on one socket: the CPU tier outlives them, and nothing of it is believed unseen."""

import logging
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.cli import app
from hybridkv.service.client import KV, connect
from hybridkv.service.client.attaching import check_server
from hybridkv.service.codec import namespace_to_wire
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.versions import check_versions
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome
from hybridkv.version import __version__
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, content, make_config, make_space, store
from tests.service.test_serve import WAIT_S, arguments, serving
from tests.service.wire import Stream, key, wired

HIT, MISS = int(Outcome.HIT), int(Outcome.MISS)


@pytest.fixture
def space() -> Namespace:
    return make_space()


@contextmanager
def daemon(
    folder: Path, *, crash_at: str = "", flags: Sequence[str] = (), version: str = "", **values: str
) -> Iterator[tuple["subprocess.Popen[str]", str, float]]:
    """`serving` without a disk tier: what is there after a restart was in memory."""
    with serving(folder, None, crash_at, flags=flags, version=version, disk__path="", **values) as running:
        yield running


def read(kv: KV, keys: Keys) -> list[int]:
    """States, independently of one another; every HIT has its own bytes."""
    states: list[int] = []
    for at in range(len(keys)):
        out = np.zeros((1, BLOCK_BYTES), np.uint8)
        states += kv.read(keys[at : at + 1], out, timeout_s=WAIT_S).tolist()
        if states[-1] == HIT:
            check_content(keys[at : at + 1], out)
    return states


def takeover(address: str) -> dict[str, Any]:
    with AdminClient(address) as admin:
        assert admin.check() == []
        found: dict[str, Any] = admin.stats()["takeover"]
    return found


def until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def region(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"hybridkv-*/{name}.region")
    return found


def place_of(folder: Path, key: bytes) -> int:
    """Where the block's bytes begin in the region: found by the bytes themselves."""
    at = region(folder, "cpu").read_bytes().find(content(key).tobytes())
    assert at >= 0
    return at


def end(process: "subprocess.Popen[str]", how: signal.Signals = signal.SIGKILL) -> None:
    process.send_signal(how)
    process.communicate(timeout=WAIT_S)


def test_blocks_outlive_a_killed_daemon_and_a_changed_byte_is_a_miss(tmp_path: Path, space: Namespace) -> None:
    with daemon(tmp_path) as (first, address, _):
        kv = connect(address, space, timeout_s=20.0)
        keys = chain_of(kv, 6)
        store(kv, keys)
        end(first)
    at = place_of(tmp_path, keys[3])
    raw = np.memmap(region(tmp_path, "cpu"), np.uint8, "r+")
    raw[at + 17] ^= 0x10
    del raw
    with daemon(tmp_path) as (_, address, _):
        assert (takeover(address)["outcome"], takeover(address)["blocks"]) == ("taken", 6)
        assert read(kv, keys) == [HIT, HIT, HIT, MISS, HIT, HIT]
        assert kv.epoch_changes == 1
        with AdminClient(address) as admin:
            assert admin.stats()["counters"]["taken_over_corrupt"] == 1
        kv.close()


def test_a_clean_stop_leaves_the_tier_cold_discards_it_and_discard_frees_it(
    tmp_path: Path, space: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    for flags, outcome, states in (((), "nothing", MISS), ((), "taken", HIT), (("--cold",), "cold", MISS)):
        with daemon(tmp_path, flags=flags) as (process, address, _):
            assert takeover(address)["outcome"] == outcome
            with connect(address, space) as kv:
                keys = chain_of(kv, 3)
                assert read(kv, keys) == [states] * 3
                store(kv, keys)
            end(process, signal.SIGTERM)
            assert process.returncode == 0
    assert region(tmp_path, "cpu").stat().st_blocks > 0
    caplog.set_level(logging.INFO)
    freed = CliRunner().invoke(app, ["discard", *arguments(tmp_path, disk__path="")])
    assert (freed.exit_code, freed.output[:6]) == (0, "freed ")
    assert not list(tmp_path.glob("hybridkv-*"))


def test_a_living_worker_keeps_its_slots_until_it_lets_go_of_them(tmp_path: Path, space: Namespace) -> None:
    """This process is the worker: it holds a writable view of a reserved slot over the daemon's death."""
    with daemon(tmp_path) as (first, address, _):
        kv = connect(address, space, timeout_s=20.0)
        keys = chain_of(kv, 3)
        store(kv, keys)
        reservation = kv.reserve(chain_of(kv, 2, first_token=9000))
        view = reservation.array(0)
        end(first)
    with daemon(tmp_path) as (_, address, _):
        assert read(kv, keys) == [HIT] * 3
        assert takeover(address)["frozen_slots_now"] == 2
        others = chain_of(kv, 120, first_token=100_000)
        for first_of in range(0, 120, 20):
            store(kv, others[first_of : first_of + 20])
        view[:] = 0xEE  # late: nobody's bytes
        assert read(kv, others) == [HIT] * 120
        assert takeover(address)["frozen_slots_now"] == 2
        del view, reservation
        until(lambda: takeover(address)["frozen_slots_now"] == 0)
        kv.close()


def test_an_upgrade_keeps_the_cache_and_neighbours_work_together(tmp_path: Path, space: Namespace) -> None:
    with daemon(tmp_path) as (process, address, _):
        kv = connect(address, space, timeout_s=20.0)
        keys = chain_of(kv, 3)
        store(kv, keys)
        end(process, signal.SIGTERM)
    with daemon(tmp_path, version="0.2.0") as (process, address, _):
        assert takeover(address)["outcome"] == "taken"
        assert read(kv, keys) == [HIT] * 3
        kv.close()
        with AdminClient(address) as admin:
            assert admin.stats()["version"] == "0.2.0"
        end(process)
    with daemon(tmp_path, version="0.3.0") as (_, address, _):
        assert takeover(address)["outcome"] == "taken"
        with pytest.raises(FailedPreconditionError) as refused:
            connect(address, space)
        assert f"{__version__}" in str(refused.value)
        assert "0.3.0" in str(refused.value)
        with wired(address) as wire:
            assert wire.attach(space).reply.server_version == "0.3.0", "who names no version speaks v1"


def test_a_second_daemon_touches_nothing_of_the_first(tmp_path: Path, space: Namespace) -> None:
    """And where the config says so, nothing is left of it."""
    with daemon(tmp_path, daemon__warm_restart="false") as (process, address, _):
        kv = connect(address, space)
        keys = chain_of(kv, 3)
        store(kv, keys)
        for command in (["serve", "--cold"], ["discard"]):
            refused = CliRunner().invoke(app, [*command, *arguments(tmp_path, disk__path="")])
            assert refused.exit_code == 2
            assert f"pid {process.pid}" in refused.output
        assert read(kv, keys) == [HIT] * 3
        kv.close()
        end(process, signal.SIGTERM)
    assert not list(tmp_path.glob("hybridkv-*"))


def test_a_daemon_killed_while_it_takes_over_is_followed_by_one_that_does(tmp_path: Path, space: Namespace) -> None:
    """At one of the points; `tests/migration/test_takeover.py` goes through them all."""
    with daemon(tmp_path) as (first, address, _):
        kv = connect(address, space, timeout_s=20.0)
        keys = chain_of(kv, 4)
        store(kv, keys)
        reservation = kv.reserve(chain_of(kv, 1, first_token=9000))
        end(first)
    with (
        pytest.raises(AssertionError, match="did not serve"),
        daemon(tmp_path, crash_at="takeover.adopted"),
    ):
        pass
    with daemon(tmp_path) as (_, address, _):
        assert (takeover(address)["blocks"], takeover(address)["frozen_slots"]) == (4, 1)
        assert read(kv, keys) == [HIT] * 4
        del reservation
        kv.close()


# ------------------------------------------------------------------------------------------------ versions


@pytest.mark.parametrize("client", ["0.4.0", "0.5.3", "0.6.0.dev1", ""])
def test_neighbours_work_together(client: str) -> None:
    check_versions(client, "0.5.0")


@pytest.mark.parametrize("client", ["0.3.9", "0.7.0", "1.5.0"])
def test_others_are_refused_with_both_versions(client: str) -> None:
    with pytest.raises(FailedPreconditionError) as refused:
        check_versions(client, "0.5.0")
    assert client in str(refused.value)
    assert "0.5.0" in str(refused.value)


@pytest.mark.parametrize("client", ["five", "1", "0.5\n", "9" * 5000 + ".1"])
def test_what_is_no_version_is_bad_input(client: str) -> None:
    with pytest.raises(InvalidArgumentError, match="client_version"):
        check_versions(client, "0.5.0")


def test_the_client_looks_as_well() -> None:
    """A daemon that is older than the rule refuses nobody."""
    check_server(pb.AttachReply(server_version=__version__))
    check_server(pb.AttachReply())
    with pytest.raises(FailedPreconditionError, match=r"0\.9\.0"):
        check_server(pb.AttachReply(server_version="0.9.0"))


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path, space: Namespace) -> None:
    """A newer client's messages have fields that this daemon does not know; an older one's lack some."""
    unknown = b"\xfa\x3e\x03new"  # field 1007, of a later version
    with DaemonThread(make_config(tmp_path)) as running, wired(running.address) as wire:
        later = pb.AttachRequest.FromString(pb.AttachRequest(client_version="0.2.0").SerializeToString() + unknown)
        later.space.CopyFrom(namespace_to_wire(space))
        stream = Stream(wire, later)
        ask = pb.LookupRequest(session=stream.session, keys=key(1), key_bytes=16)
        reply = wire.kv.Lookup(pb.LookupRequest.FromString(ask.SerializeToString() + unknown), timeout=10.0)
        assert list(reply.states) == [MISS]
