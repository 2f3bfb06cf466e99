"""Reads without a call, over real memory: never a byte of another block, whatever becomes of a slot meanwhile."""

import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.service.client import KV, connect, reports
from hybridkv.service.client.link import Link
from hybridkv.service.client.local import LocalDial
from hybridkv.service.client.outputs import Rows, rows_of
from hybridkv.service.client.translations import CALL_FREE
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import BLOCK_BYTES, BLOCK_TOKENS, chain_of, check_content, make_config, make_space
from tests.service.client.conftest import store as store_one_call

HIT, MISS = Outcome.HIT, Outcome.MISS
SLOTS = 256
CALL = 128

pytestmark = pytest.mark.skipif(not CALL_FREE, reason=f"{platform.machine()}: every read asks the daemon")


@dataclass
class Rig:
    """A host with room for `SLOTS` blocks in one tier; `kv` reads, `other` works against it."""

    host: Host
    kv: KV
    other: KV

    @property
    def hits(self) -> int:
        """Blocks that were read, as the daemon knows of."""
        return int(self.host.migrator.demand.acquires.outcomes[HIT])

    def counts(self) -> tuple[int, int, int]:
        found = self.kv.translations
        assert found is not None
        return found.hits, found.misses, found.invalidations

    def rewrite_everything(self) -> None:
        """Other blocks come into every slot."""
        fresh = chain_of(self.other, SLOTS, first_token=self._fresh)
        self._fresh += SLOTS * BLOCK_TOKENS
        for start in range(0, SLOTS, CALL):
            store_one_call(self.other, fresh[start : start + CALL], fresh[start - 1] if start else None)

    _fresh: int = 1 << 20


@pytest.fixture(params=["embedded", "daemon"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(reports, "REPORT_S", 3600.0)  # told at a flush only
    config = make_config(tmp_path, cpu__capacity_bytes="1MiB", cpu__policy="lru")
    with ExitStack() as stack:
        if request.param == "embedded":
            host = Host(config)
            stack.callback(host.close)
            kv, other = (
                stack.enter_context(KV(make_space(), Link(LocalDial(host, make_space()), 10.0, None))) for _ in "12"
            )
        else:
            daemon = stack.enter_context(DaemonThread(config))
            host = daemon.host
            kv, other = (stack.enter_context(connect(daemon.address, make_space(), timeout_s=10.0)) for _ in "12")
        yield Rig(host, kv, other)
        assert host.check() == []


def blank(count: int) -> npt.NDArray[np.uint8]:
    return np.full((count, BLOCK_BYTES), 7, np.uint8)


class Interrupted:
    """Rows whose first copy is interrupted: half of a block, then `between`, then the rest."""

    def __init__(self, inner: Rows, between: Callable[[], None], at: float) -> None:
        self._inner = inner
        self._between = between
        self._at = at
        self._done = False

    def fill(self, source: Any, offsets: Any, rows: Any) -> None:
        if self._done:
            self._inner.fill(source, offsets, rows)
            return
        for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
            self.put(row, source[offset : offset + BLOCK_BYTES])

    def put(self, row: int, block: Any) -> None:
        if self._done:
            self._inner.put(row, block)
            return
        self._done = True
        mixed = np.empty(BLOCK_BYTES, np.uint8)
        cut = int(BLOCK_BYTES * self._at)
        mixed[:cut] = block[:cut]
        self._between()
        mixed[cut:] = block[cut:]
        self._inner.put(row, mixed)

    def put_tensor(self, row: int, block: Any) -> None:
        self._inner.put_tensor(row, block)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None], float], None]:
    """Have the next reads' first copy interrupted after such a part of a block."""

    def arm(between: Callable[[], None], at: float) -> None:
        def interrupted(out: Any, count: int, block_bytes: int) -> Any:
            return Interrupted(rows_of(out, count, block_bytes), between, at)

        monkeypatch.setattr("hybridkv.service.client.verbs.rows_of", interrupted)

    return arm


def known_chain(rig: Rig, count: int) -> Keys:
    keys = chain_of(rig.kv, count)
    store_one_call(rig.kv, keys)
    return keys


def no_calls(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a call was made")

    monkeypatch.setattr(rig.host, "acquire", refuse)
    monkeypatch.setattr(rig.host, "lookup", refuse)


@pytest.mark.parametrize("count", [1, 5])
def test_what_was_sealed_here_is_read_without_a_call(rig: Rig, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, out = known_chain(rig, count), blank(count)
    no_calls(rig, monkeypatch)
    assert rig.kv.read(keys, out).tolist() == [HIT] * count
    check_content(keys, out)
    assert rig.counts() == (count, 0, 0)


@pytest.mark.parametrize("how", ["read", "acquire"])
def test_what_another_wrote_is_learned_from_the_first_call(rig: Rig, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, out = chain_of(rig.other, 4), blank(4)
    store_one_call(rig.other, keys)
    if how == "read":
        rig.kv.read(keys, out)
    else:
        rig.kv.acquire(keys).release()
    out = blank(4)
    no_calls(rig, monkeypatch)
    assert (rig.kv.read(keys, out) == HIT).all()
    check_content(keys, out)


def test_only_what_is_not_known_is_asked_for(rig: Rig) -> None:
    keys = known_chain(rig, 2)
    more = chain_of(rig.other, 6)
    store_one_call(rig.other, more[2:], parent=more[1])
    before = rig.hits
    out = blank(6)
    wanted = Keys.of([more[4], keys[0], more[2], keys[1], chain_of(rig.kv, 1, 1 << 19)[0], more[5]])
    assert rig.kv.read(wanted, out).tolist() == [HIT, HIT, HIT, HIT, MISS, HIT]
    check_content(wanted.at(np.array([0, 1, 2, 3, 5])), out[[0, 1, 2, 3, 5]])
    assert (out[4] == 7).all()
    assert rig.hits - before == 3


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 3])
def test_slots_rewritten_during_the_copy_are_noticed(
    rig: Rig, count: int, at: float, interrupt: Callable[[Callable[[], None], float], None]
) -> None:
    keys, out = known_chain(rig, count), blank(count)

    def between() -> None:
        rig.other.remove(keys)
        rig.rewrite_everything()

    interrupt(between, at)
    assert rig.kv.read(keys, out).tolist() == [MISS] * count
    assert rig.counts() == (0, count, count)


@pytest.mark.parametrize("count", [1, 3])
def test_a_block_that_lies_elsewhere_by_now_is_read_there(
    rig: Rig, count: int, interrupt: Callable[[Callable[[], None], float], None]
) -> None:
    keys, out = known_chain(rig, count), blank(count)

    def between() -> None:
        rig.other.remove(keys)
        rig.rewrite_everything()
        store_one_call(rig.other, keys)

    interrupt(between, 0.5)
    assert rig.kv.read(keys, out).tolist() == [HIT] * count
    check_content(keys, out)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("when", ["before", "during"])
def test_another_epoch_of_the_extent_is_noticed(
    rig: Rig, count: int, when: str, interrupt: Callable[[Callable[[], None], float], None]
) -> None:
    keys, out = known_chain(rig, count), blank(count)
    headers = rig.host.directory.state.mapped(rig.host.memory.cpu_index).headers
    assert headers is not None

    def between() -> None:
        headers.extents["epoch"] += 2

    if when == "before":
        between()
    else:
        interrupt(between, 0.5)
    assert rig.kv.read(keys, out).tolist() == [HIT] * count
    check_content(keys, out)
    assert rig.counts() == (0, count, count)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("how", ["remove", "clear", "evict"])
def test_what_is_gone_is_a_miss(rig: Rig, count: int, how: str) -> None:
    keys, out = known_chain(rig, count), blank(count)
    if how == "remove":
        rig.other.remove(keys)
    elif how == "clear":
        rig.host.clear()
    rig.rewrite_everything()
    assert rig.kv.read(keys, out).tolist() == [MISS] * count
    assert (out == 7).all()


def test_a_request_reads_under_leases(rig: Rig) -> None:
    keys, out = known_chain(rig, 3), blank(3)
    with rig.kv.request() as request:
        assert (request.read(keys, out) == HIT).all()
    assert rig.counts() == (0, 0, 0)


def test_reads_are_told_exactly_and_in_order(rig: Rig) -> None:
    keys, out = known_chain(rig, 3), blank(3)
    directory = rig.host.directory
    rows = directory.sealed(next(iter(directory.state.ledger.sessions.values())).namespace, keys.as_list())
    before = directory.blocks.accesses[rows].copy()
    rig.kv.read(keys, out)
    for _ in range(20):
        rig.kv.read(keys[2:], out[2:])
    rig.kv.read(keys[:1], out[:1])
    assert np.array_equal(directory.blocks.accesses[rows], before)
    rig.kv._attachment().reports.flush()
    assert np.allclose(directory.blocks.accesses[rows] - before, [2, 1, 21], atol=0.01)
    policy = directory.state.mapped(rig.host.memory.cpu_index).policy
    coldest_first = [row for some in policy.scan() for row in some.tolist()]
    assert [rows.tolist().index(row) for row in coldest_first] == [1, 2, 0]
    assert rig.hits == 3 + 20 + 1


def test_the_end_tells_what_was_read(rig: Rig) -> None:
    keys, out = known_chain(rig, 2), blank(2)
    rig.kv.read(keys, out)
    before = rig.hits
    rig.kv.close()
    assert rig.hits - before == 2


def test_where_reports_pile_up_reads_ask_the_daemon(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PENDING_KEYS", 1)
    keys, out = known_chain(rig, 1), blank(1)
    before = rig.hits
    for _ in range(3):
        assert rig.kv.read(keys, out).tolist() == [HIT]
    assert rig.hits - before == 2


def test_none_remembered_none_used(rig: Rig, tmp_path: Path) -> None:
    link = Link(LocalDial(rig.host, make_space()), 10.0, None, translations_count=0)
    with KV(make_space(), link) as kv:
        keys, out = chain_of(kv, 2), blank(2)
        store_one_call(kv, keys)
        for _ in range(2):
            assert (kv.read(keys, out) == HIT).all()
        assert kv.translations is not None
        assert kv.translations.entries == 0
