"""Every hold has an owner and ends with it, by whatever way the owner ends; and nobody is touched by who comes too late.

The owners are processes that hold leases, reservations and sequences by the blocking and the asyncio client, over real
sockets; the daemon is in this process, on a clock that only the tests move.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridkv.service.client import connect
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, SealOutcome
from tests.service.client.conftest import BLOCK_BYTES, check_content, make_config, store
from tests.service.client.processes import ROOT
from tests.service.owner_process import ASYNCIO, BLOCKING, BLOCKS, SHARED, SPACE, keys_of

CPU_BLOCKS = 32
PATIENCE_S = 20.0
HELD = (2, 3, 1)
"""What an owner holds; the block that its sequence writes is a reservation, too."""
LAPSED_SLOTS = 2 * BLOCKS + 1
"""Slots that a lapsed owner may still write to; beside them it may still look at those of its leases."""
ALREADY, EXPIRED = int(SealOutcome.ALREADY_SEALED), int(SealOutcome.EXPIRED)


class Scene:
    """A daemon, one client of it in this process, and what can be said of the holds."""

    def __init__(self, folder: Path, daemon: DaemonThread, clock: ManualClock) -> None:
        self.folder = folder
        self.address = daemon.address
        self.host = daemon.host
        self.clock = clock
        self.kv = connect(daemon.address, SPACE, timeout_s=PATIENCE_S)
        self.shared = keys_of(self.kv, SHARED)
        store(self.kv, self.shared)

    @contextmanager
    def owner(self) -> Iterator["OwnerProcess"]:
        owner = OwnerProcess(self.address)
        try:
            yield owner
        finally:
            owner.end()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.host.tick()

    def held(self) -> tuple[int, int, int]:
        """Leases, reservations and sequences."""
        found: Any = self.host.stats()
        return found["leases"], found["reservations"], sum(found["paging"]["sequences"].values())

    def quarantined(self) -> int:
        """Slots, of either tier."""
        tiers: Any = self.host.stats()["tiers"]
        return int(sum(tiers[tier]["quarantined_bytes"] for tier in ("cpu", "gpu0"))) // BLOCK_BYTES

    def sessions(self) -> int:
        found: Any = self.host.stats()
        return int(found["sessions"])

    def stored(self, *first_tokens: int) -> list[Keys]:
        """Chains that are written and published by this process."""
        chains = [keys_of(self.kv, first) for first in first_tokens]
        for keys in chains:
            store(self.kv, keys)
        return chains

    def check_all(self, chains: list[Keys]) -> int:
        """Whatever of the chains is served is what was written: the number of blocks."""
        hits = 0
        for keys in chains:
            out = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
            found = np.flatnonzero(self.kv.read(keys, out) == Outcome.HIT)
            check_content(keys.at(found), out[found])
            hits += len(found)
        assert self.host.check() == []
        return hits

    def check_nothing_is_left(self) -> None:
        until(lambda: self.sessions() == 1)
        assert (self.held(), self.quarantined()) == ((0, 0, 0), 0)
        assert self.host.check() == []
        assert self.check_all([self.shared]) == BLOCKS


class OwnerProcess:
    """A worker process that holds two leases, two reservations and a sequence with a block that it writes."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.owner_process", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.sessions = [int(session) for session in self.tell("hold").split()]

    def tell(self, word: str) -> str:
        """Have it do something; its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        """SIGSTOP; returns once it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def until(true: Callable[[], bool]) -> None:
    """Wait for what the daemon's threads are about to do."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        if true():
            return
        pause.wait(0.002)
    raise AssertionError("it did not happen")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    clock = ManualClock()
    config = make_config(
        tmp_path,
        cpu__capacity_bytes=CPU_BLOCKS * BLOCK_BYTES,
        gpu__devices=("host:0",),
        gpu__capacity_bytes=CPU_BLOCKS * BLOCK_BYTES,
        migration__chain_prefetch_max_blocks=0,
    )
    with DaemonThread(config, make_host=lambda given: Host(given, clock=clock, start_loop=False)) as daemon:
        made = Scene(tmp_path, daemon, clock)
        with made.kv:
            yield made


def test_holds_end_with_a_goodbye(scene: Scene) -> None:
    with scene.owner() as owner:
        assert scene.held() == HELD
        assert owner.tell("leave") == "left"
        scene.check_nothing_is_left()


def test_holds_end_with_a_kill_and_no_time_need_pass(scene: Scene) -> None:
    with scene.owner() as owner:
        assert scene.held() == HELD
        owner.process.kill()
        scene.check_nothing_is_left()


def test_holds_of_a_killed_process_end_though_its_forked_child_lives(scene: Scene) -> None:
    """The child has no mapping of the regions, so that it can touch nothing."""
    with scene.owner() as owner:
        regions = str(scene.folder)
        assert regions in Path(f"/proc/{owner.process.pid}/maps").read_text()
        child = int(owner.tell("fork"))
        try:
            owner.process.kill()
            scene.check_nothing_is_left()
            inherited = Path(f"/proc/{child}/maps").read_text()
            assert "[stack]" in inherited, "the child lives"
            assert regions not in inherited
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_worker_that_lost_its_connection_writes_into_quarantine(scene: Scene) -> None:
    with scene.owner() as owner:
        assert owner.tell("drop") == "dropped"
        records = scene.host._sessions._records
        until(lambda: sum(record.broken_at is not None for record in records.values()) == 3)
        assert scene.held() == HELD  # its grace
        scene.pass_time(scene.host.config.daemon.grace_s + 1)
        assert (scene.held(), scene.quarantined()) == ((0, 0, 0), LAPSED_SLOTS)
        chains = scene.stored(*range(40_000, 40_000 + 1000 * CPU_BLOCKS, 1000))
        assert owner.tell("write") == "ExpiredError,ExpiredError"
        assert scene.check_all(chains) >= CPU_BLOCKS - LAPSED_SLOTS - BLOCKS - 1
        assert scene.quarantined() == LAPSED_SLOTS + BLOCKS, "and where what it had leased was evicted"
        owner.process.kill()
        until(lambda: scene.sessions() == 1)
        assert (scene.held(), scene.quarantined()) == ((0, 0, 0), 0)


def test_a_stalled_worker_that_writes_after_its_reservation_lapsed_changes_nobodys_bytes(scene: Scene) -> None:
    """It is stopped for longer than its leases and reservations live; others write the same keys and fill every slot that
    is free; then it goes on in the middle of its copy, and publishes."""
    with scene.owner() as owner:
        owner.stop()
        scene.host.stream_broken(owner.sessions[1])  # as gRPC finds when its pings are not answered
        scene.pass_time(max(scene.host.config.daemon.lease_s, scene.host.config.daemon.reservation_s) + 1)
        assert (scene.held(), scene.quarantined()) == ((0, 0, 0), LAPSED_SLOTS)
        chains = scene.stored(*range(40_000, 40_000 + 1000 * CPU_BLOCKS, 1000), BLOCKING)
        with scene.kv.acquire(chains[-1]) as lease:
            assert lease.prefix == BLOCKS
            owner.go_on()
            assert owner.tell("write") == f"{ALREADY}{ALREADY},{EXPIRED}{EXPIRED}"
        assert scene.check_all(chains) >= CPU_BLOCKS - LAPSED_SLOTS - BLOCKS - 1
        assert scene.kv.lookup(keys_of(scene.kv, ASYNCIO)).prefix == 0
        assert scene.quarantined() == 1 + BLOCKS, "its late calls confirmed what it had reserved"
        owner.process.kill()
        until(lambda: scene.sessions() == 1)
        assert (scene.held(), scene.quarantined()) == ((0, 0, 0), 0)


def test_an_idle_worker_stays_attached(scene: Scene) -> None:
    """Its stream is its sign of life; no timer ends a session that says nothing."""
    session = scene.kv.session
    for _ in range(48):
        scene.pass_time(3600)
    assert (scene.kv.session, scene.sessions()) == (session, 1)
    assert scene.check_all([scene.shared]) == BLOCKS
