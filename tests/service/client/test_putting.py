"""Write-behind puts: found once they are flushed, counted whatever became of them, and never in the way of the caller."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.service.client import KV, PutCounts, connect, putting
from hybridkv.service.client.putting import Puts
from hybridkv.tiers.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import (
    BLOCK_BYTES,
    LIMIT,
    Backend,
    chain_of,
    check_content,
    content,
    make_config,
    store,
)
from tests.service.client.processes import daemon_process, kill, run_script
from tests.service.client.scripted import Scripted, linked, numbered

WAIT_S = 30.0


@pytest.fixture(params=["staged", "written"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Through the ring, or straight to the slots."""
    if request.param == "written":
        monkeypatch.setattr(putting, "SMALL_BYTES", 0)
    return str(request.param)


def rows_of(keys: Keys) -> npt.NDArray[np.uint8]:
    return np.stack([content(key) for key in keys])


def check_stored(kv: KV, keys: Keys) -> None:
    out = np.zeros((len(keys), BLOCK_BYTES), np.uint8)
    assert kv.read(keys, out).tolist() == [Outcome.HIT] * len(keys)
    check_content(keys, out)


@pytest.mark.usefixtures("way")
def test_flushed_blocks_are_found_and_the_callers_memory_was_its_own(kv: KV) -> None:
    keys = chain_of(kv, 6)
    rows = rows_of(keys)
    kv.put(keys[:4], rows[:4])
    kv.put(keys[4:], rows[4:], keys[3])
    rows[:] = 0
    assert kv.flush(WAIT_S) == PutCounts(sealed=6)
    check_stored(kv, keys)
    assert kv.flush(WAIT_S) == PutCounts()


@pytest.mark.usefixtures("way")
def test_more_keys_than_a_call_takes(kv: KV) -> None:
    keys = chain_of(kv, 2 * LIMIT + 3)
    kv.put(keys, rows_of(keys))
    assert kv.flush(WAIT_S) == PutCounts(sealed=len(keys))
    check_stored(kv, keys)


@pytest.mark.usefixtures("way")
def test_the_first_block_of_a_key_stays(kv: KV) -> None:
    keys = chain_of(kv, 3)
    for rows in (rows_of(keys), np.zeros((3, BLOCK_BYTES), np.uint8)):
        kv.put(keys, rows)
    counts = kv.flush(WAIT_S)
    assert (counts.sealed, counts.already_sealed + counts.being_written) == (3, 3)
    check_stored(kv, keys)


def test_what_is_written_at_once_does_not_overtake_what_is_staged(kv: KV, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(putting, "LINGER_S", WAIT_S)
    keys = chain_of(kv, 3)
    kv.put(keys, rows_of(keys))
    monkeypatch.setattr(putting, "SMALL_BYTES", 0)
    kv.put(keys, np.zeros((3, BLOCK_BYTES), np.uint8))
    assert kv.flush(WAIT_S) == PutCounts(sealed=3, already_sealed=3)
    check_stored(kv, keys)


def test_puts_that_follow_each_other_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(putting, "LINGER_S", WAIT_S)
    transport = Scripted()
    puts = Puts(linked(transport), BLOCK_BYTES)
    parent = None
    for key in numbered(1, 2, 3):
        puts.put(Keys.of([key]), np.zeros((1, BLOCK_BYTES), np.uint8), parent)
        parent = key
    puts.put(numbered(4), np.zeros((1, BLOCK_BYTES), np.uint8), None)
    assert puts.flush(WAIT_S) == PutCounts(sealed=4)
    assert [len(indices) for _, indices, _ in transport.asked("seal")] == [3, 1]
    assert [asked["parent"] for asked in transport.asked("reserve")] == [None, None]
    puts.close(WAIT_S)


@pytest.mark.usefixtures("way")
def test_two_threads_put_the_same_and_different_blocks(kv: KV) -> None:
    shared, own = chain_of(kv, 20), [chain_of(kv, 40, first_token=1000 * n) for n in (1, 2)]

    def put(mine: Keys) -> None:
        for keys in (shared, mine):
            for i in range(0, len(keys), 4):
                kv.put(keys[i : i + 4], rows_of(keys[i : i + 4]), keys[i - 1] if i else None)

    threads = [threading.Thread(target=put, args=(mine,)) for mine in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    counts = kv.flush(WAIT_S)
    assert (counts.sealed, counts.already_sealed + counts.being_written) == (100, 20)
    for keys in (shared, *own):
        check_stored(kv, keys)


@pytest.mark.parametrize("backend", ["regions"], indirect=True)
@pytest.mark.usefixtures("way")
def test_without_room_the_rest_is_counted(backend: Backend, kv: KV) -> None:
    tiers: Any = backend.host.stats()["tiers"]
    room = tiers["cpu"]["free_bytes"] // BLOCK_BYTES
    held = chain_of(kv, room - 4)
    for i in range(0, len(held), LIMIT):
        store(kv, held[i : i + LIMIT], held[i - 1] if i else None)
    leases = [kv.acquire(held[i : i + LIMIT], independent=True) for i in range(0, len(held), LIMIT)]
    keys = chain_of(kv, 20, first_token=1 << 20)
    kv.put(keys, rows_of(keys))
    counts = kv.flush(WAIT_S)
    assert counts.sealed + counts.no_room == 20
    assert 0 < counts.sealed < 20
    check_stored(kv, keys[: counts.sealed])
    for lease in leases:
        lease.release()


def test_a_full_ring_holds_the_put_back_until_there_is_room(kv: KV, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(putting, "STAGING_BYTES", 4 * BLOCK_BYTES)
    monkeypatch.setattr(putting, "SMALL_BYTES", 3 * BLOCK_BYTES)
    keys = chain_of(kv, 40)
    for i in range(0, 40, 2):
        kv.put(keys[i : i + 2], rows_of(keys[i : i + 2]), keys[i - 1] if i else None)
    assert kv.flush(WAIT_S) == PutCounts(sealed=40)
    check_stored(kv, keys)


class Slow(Scripted):
    """Answers a reservation when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_first, self.go_on = threading.Event(), threading.Event()

    def reserve(self, keys: Keys, **asked: object):  # type: ignore[no-untyped-def]
        self.asked_first.set()
        assert self.go_on.wait(WAIT_S)
        return super().reserve(keys, **asked)


def test_no_room_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(putting, "STAGING_BYTES", 4 * BLOCK_BYTES)
    monkeypatch.setattr(putting, "SMALL_BYTES", 4 * BLOCK_BYTES)
    transport = Slow()
    puts = Puts(linked(transport, timeout_s=0.05), BLOCK_BYTES)
    puts.put(numbered(0, 1, 2), np.zeros((3, BLOCK_BYTES), np.uint8), None)
    assert transport.asked_first.wait(WAIT_S)
    with pytest.raises(DeadlineExceededError, match="earlier puts"):
        puts.put(numbered(3, 4), np.zeros((2, BLOCK_BYTES), np.uint8), None)
    assert puts.flush(0.01) == PutCounts(waiting=3)
    transport.go_on.set()
    assert puts.flush(WAIT_S) == PutCounts(sealed=3)
    puts.put(numbered(3, 4), np.zeros((2, BLOCK_BYTES), np.uint8), None)
    assert puts.flush(WAIT_S) == PutCounts(sealed=2)
    puts.close(WAIT_S)


@pytest.mark.usefixtures("way")
def test_close_publishes_and_then_refuses(backend: Backend, space: Namespace) -> None:
    kv, other = backend.connect(space), backend.connect(space)
    keys = chain_of(kv, 5)
    kv.put(keys, rows_of(keys))
    kv.close()
    check_stored(other, keys)
    with pytest.raises(FailedPreconditionError):
        kv.put(keys, rows_of(keys))


def test_bad_input_is_refused_and_nothing_taken(kv: KV) -> None:
    keys = chain_of(kv, 2)
    rows = rows_of(keys)
    for given, blocks, parent, field in [
        (keys, rows[:1], None, "blocks"),
        (keys, rows[:, ::2], None, "blocks"),
        ([keys[0], keys[0]], rows, None, "keys"),
        (keys, rows, keys[1], "parent"),
        (keys, rows, b"short", "parent"),
    ]:
        with pytest.raises(InvalidArgumentError, match=field):
            kv.put(given, blocks, parent)
    kv.put([], rows[:0])
    assert kv.flush(WAIT_S) == PutCounts()


def test_a_daemon_that_is_killed_loses_what_it_had_and_the_next_takes_the_rest(
    tmp_path: Path, space: Namespace, way: str
) -> None:
    address = make_config(tmp_path).daemon.socket
    with daemon_process(tmp_path) as first:
        kv = connect(address, space, timeout_s=0.5)
        keys = chain_of(kv, 6)
        kv.put(keys[:2], rows_of(keys[:2]))
        assert kv.flush(WAIT_S) == PutCounts(sealed=2)
        kill(first)
    kv.put(keys[2:4], rows_of(keys[2:4]), keys[1])
    counts = kv.flush(WAIT_S)
    assert (counts.sealed, counts.lost, counts.waiting) == (0, 2, 0), way
    assert counts.failure
    with daemon_process(tmp_path):
        kv.put(keys[4:], rows_of(keys[4:]), keys[3])
        assert kv.flush(WAIT_S) == PutCounts(sealed=2)
        assert kv.lookup(keys).states.tolist() == [Outcome.MISS] * 4 + [Outcome.HIT] * 2
        kv.close()


def test_staged_blocks_survive_a_restart_within_the_deadline(
    tmp_path: Path, space: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(putting, "LINGER_S", WAIT_S)
    with daemon_process(tmp_path) as first:
        kv = connect(make_config(tmp_path).daemon.socket, space, timeout_s=WAIT_S)
        keys = chain_of(kv, 3)
        kv.put(keys, rows_of(keys))
        kill(first)
    with daemon_process(tmp_path):
        assert kv.flush(WAIT_S) == PutCounts(sealed=3)
        check_stored(kv, keys)
        kv.close()


_FORK = """
import os, sys
import numpy as np
from hybridkv.service.client import PutCounts, connect, putting
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, content, make_space

putting.LINGER_S = 60.0
kv = connect(sys.argv[1], make_space(), timeout_s=20.0)
keys, theirs = chain_of(kv, 3), chain_of(kv, 3, first_token=9000)
kv.put(keys, np.stack([content(key) for key in keys]))
pid = os.fork()
if pid == 0:
    assert kv.flush(20.0) == PutCounts()
    kv.put(theirs, np.stack([content(key) for key in theirs]))
    assert kv.flush(20.0) == PutCounts(sealed=3)
    kv.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0, "the child failed"
assert kv.flush(20.0) == PutCounts(sealed=3)
out = np.zeros((6, BLOCK_BYTES), np.uint8)
assert (kv.read([*keys, *theirs], out) == 1).all()
check_content([*keys, *theirs], out)
kv.close()
print("done")
"""


def test_a_child_begins_with_nothing_staged(tmp_path: Path) -> None:
    with daemon_process(tmp_path):
        ran = run_script(_FORK, make_config(tmp_path).daemon.socket)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
