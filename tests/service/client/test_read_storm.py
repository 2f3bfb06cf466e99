"""Reads without a call while blocks move between tiers, go and are written anew in other slots: never a wrong byte."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.service.client import KV, connect
from hybridkv.service.client.link import Link
from hybridkv.service.client.local import LocalDial
from hybridkv.service.client.outputs import Rows, rows_of
from hybridkv.service.client.translations import CALL_FREE
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import BLOCK_TOKENS, content, make_config, make_space

pytestmark = pytest.mark.skipif(not CALL_FREE, reason="every read asks the daemon here")

BLOCK_BYTES = 32 << 10
CHAIN = 8
CHAINS = 12
"""96 blocks, where host memory has 32 slots and the host device 32."""
HITS, INVALIDATIONS = 200, 40
SPACE = make_space(block_bytes=BLOCK_BYTES)


@pytest.fixture(params=["embedded", "daemon"])
def handles(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[KV]]:
    """A mover and two readers of one host, whose tiers are all smaller than what is written."""
    config = make_config(
        tmp_path,
        cpu__capacity_bytes="1MiB",
        gpu__capacity_bytes="1MiB",
        gpu__devices="host:0",
        limits__part_bytes="64KiB",
    )
    with ExitStack() as stack:
        if request.param == "embedded":
            host = Host(config)
            stack.callback(host.close)
            kvs = [KV(SPACE, Link(LocalDial(host, SPACE), 20.0, None)) for _ in range(3)]
        else:
            daemon = stack.enter_context(DaemonThread(config))
            host, kvs = daemon.host, [connect(daemon.address, SPACE, timeout_s=20.0) for _ in range(3)]
        with ExitStack() as handles:
            for kv in kvs:
                handles.enter_context(kv)
            yield kvs
        assert host.check() == []


def chains(kv: KV) -> list[Keys]:
    tokens = CHAIN * BLOCK_TOKENS
    return [kv.keys(list(range(i * tokens, (i + 1) * tokens))) for i in range(CHAINS)]


class Blocks:
    """What every block must be; made once."""

    def __init__(self, known: list[Keys]) -> None:
        self.of = {key: content(key, BLOCK_BYTES) for keys in known for key in keys}

    def wrong(self, keys: Keys, states: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> int:
        return sum(
            state == Outcome.HIT and not np.array_equal(row, self.of[key])
            for key, state, row in zip(keys, states, out, strict=True)
        )


class Steps:
    """Counts what the mover has done; whoever copies may let it take some steps first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0

    def take(self) -> None:
        with self._changed:
            self._taken += 1
            self._changed.notify_all()

    def let_pass(self, count: int) -> None:
        with self._changed:
            until = self._taken + count
            self._changed.wait_for(lambda: self._taken >= until, 0.2)  # the mover may wait for what we hold


class Lagging:
    """Rows of which every third copy lags behind the check before it: the mover is let pass in between."""

    copies = itertools.count()

    def __init__(self, inner: Rows, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    def _lag(self) -> None:
        if next(self.copies) % 3 == 0:
            self._steps.let_pass(4)

    def fill(self, source: Any, offsets: Any, rows: Any) -> None:
        self._lag()
        self._inner.fill(source, offsets, rows)

    def put(self, row: int, block: Any) -> None:
        self._lag()
        self._inner.put(row, block)

    def put_tensor(self, row: int, block: Any) -> None:
        self._inner.put_tensor(row, block)


def move(kv: KV, known: list[Keys], blocks: Blocks, steps: Steps, done: threading.Event) -> None:
    """Write chains anew, remove some, bring some up and down: every slot changes hands many times."""
    rng = np.random.default_rng(1)
    for number in itertools.count():
        if done.is_set():
            return
        steps.take()
        keys = known[int(rng.integers(CHAINS))]
        if number % 3 == 0:
            kv.remove(keys)
        try:
            with kv.reserve(keys, tier=("cpu", "gpu")[int(rng.integers(2))], timeout_s=5.0) as slots:
                for i in slots.new:
                    slots.array(i)[:] = blocks.of[keys[i]]
                slots.seal()
            kv.prefetch(keys, tier=("cpu", "gpu")[number % 2])
        except ResourceExhaustedError:
            continue  # the tier is leased or in transfer as a whole at this moment


def read(kv: KV, many: int, blocks: Blocks, known: list[Keys], done: threading.Event) -> None:
    """Until enough was read without a call, and enough was found to have changed. Raises AssertionError."""
    rng = np.random.default_rng(many)
    out = np.empty((many, BLOCK_BYTES), np.uint8)
    counts = kv.translations
    while counts is not None and (counts.hits < HITS or counts.invalidations < INVALIDATIONS):
        assert not done.is_set()
        chain = known[int(rng.integers(CHAINS))]
        keys = chain.at(rng.permutation(CHAIN)[:many])
        for _ in range(3):
            assert blocks.wrong(keys, kv.read(keys, out), out) == 0
        counts = kv.translations


def test_never_a_wrong_byte(handles: list[KV], monkeypatch: pytest.MonkeyPatch) -> None:
    known, steps, done = chains(handles[0]), Steps(), threading.Event()
    blocks = Blocks(known)
    monkeypatch.setattr("hybridkv.service.client.verbs.rows_of", lambda *out: Lagging(rows_of(*out), steps))
    with ThreadPoolExecutor(3) as pool:
        mover = pool.submit(move, handles[0], known, blocks, steps, done)
        readers = [
            pool.submit(read, kv, many, blocks, known, done) for kv, many in zip(handles[1:], (CHAIN, 1), strict=True)
        ]
        try:
            wait(readers, 120, FIRST_EXCEPTION)
        finally:
            done.set()
        for ended in (*readers, mover):
            ended.result(60)
