"""SIGKILL of a worker at every step: what it held is free, what it had not sealed is never found, the rest is right."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridkv.service.client import KV, connect
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.points import WORKER_POINTS
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import BLOCK_BYTES, check_content, make_config, make_space
from tests.service.crash.processes import END_S, Zygote, zygote
from tests.service.crash.worker import BLOCKS, PARTS, first_token

KILLED = -9
SEALED = {
    "worker.sealed": ("sealed",),
    "worker.acquired": ("sealed",),
    "worker.before_release": ("sealed",),
    "worker.before_abort": ("sealed",),
    "worker.put_staged": ("sealed",),
    "worker.put_written": ("sealed",),
}
"""Chains that the worker had sealed, by where it dies. What a `put` had staged, or written and not sealed, is lost with it."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonThread]:
    with DaemonThread(make_config(tmp_path, daemon__grace_s=0.05)) as running:
        yield running


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Zygote]:
    (tmp_path / "logs").mkdir()
    with zygote(tmp_path / "logs") as made:
        yield made


def test_a_worker_killed_at_any_of_its_steps_leaves_nothing_behind(daemon: DaemonThread, nursery: Zygote) -> None:
    with connect(daemon.address, make_space()) as kv:
        for number, name in enumerate(WORKER_POINTS):
            told = {"address": daemon.address, "block_bytes": BLOCK_BYTES, "number": number}
            worker = nursery.fork("worker", told, name)
            assert worker.has_ended(END_S), f"{name} was never passed"
            assert worker.code() == KILLED, f"{name} was never passed: {worker.said()}"
            _nothing_is_held(daemon, name)
            assert daemon.host.check() == []
            for part in PARTS:
                keys = kv.keys(range(first_token(number, part), first_token(number, part) + BLOCKS * 16))
                _as_it_should_be(kv, keys, part in SEALED.get(name, ()), f"{name}: {part}")


def test_a_worker_that_is_not_killed_ends_well(daemon: DaemonThread, nursery: Zygote) -> None:
    worker = nursery.fork("worker", {"address": daemon.address, "block_bytes": BLOCK_BYTES, "number": 0})
    assert worker.code() == 0, worker.said()
    _nothing_is_held(daemon, "the end", sessions=0)


def _nothing_is_held(daemon: DaemonThread, name: str, sessions: int = 1) -> None:
    """Once the process is proved gone."""
    until = time.monotonic() + END_S
    while True:
        stats: dict[str, Any] = daemon.host.stats()
        held = {what: stats[what] for what in ("leases", "reservations", "lapsed_holds", "requests")}
        held |= {use: stats["tiers"]["cpu"][f"{use}_bytes"] for use in ("reserved", "quarantined")}
        if stats["sessions"] == sessions and not any(held.values()):
            return
        assert time.monotonic() < until, f"{name}: {stats['sessions']} sessions, {held}"
        time.sleep(0.005)


def _as_it_should_be(kv: KV, keys: Keys, sealed: bool, what: str) -> None:
    out = np.zeros((len(keys), BLOCK_BYTES), np.uint8)
    states = kv.read(keys, out)
    assert states.tolist() == [Outcome.HIT if sealed else Outcome.MISS] * len(keys), what
    if sealed:
        check_content(keys, out)
