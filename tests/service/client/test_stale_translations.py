"""A stale translation never gives a wrong byte: blocks move, are evicted and rewritten before, during and after reads."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.paging.states import PageState
from hybridkv.service.client import KV
from hybridkv.service.client.core import Budget
from hybridkv.service.client.outputs import FlatRows
from hybridkv.service.client.sequence import Sequence
from hybridkv.tiers import points
from hybridkv.tiers.device.gate import HoldAt
from tests.service.client.conftest import Backend
from tests.service.client.sequences_rig import GPU_BLOCKS, LAYOUT, SPACE, TOKENS, check, content, paged, written
from tests.service.model.gates import Gates, _stream_of

SIZE = LAYOUT.block_bytes
PATIENCE_S = 20.0


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with paged(tmp_path) as running:
        yield running


@pytest.fixture
def kv(backend: Backend) -> KV:
    return backend.connect(SPACE)


@pytest.fixture
def gates(backend: Backend) -> Iterator[Gates]:
    held = Gates(backend.host.migrator.lanes.workers)
    with points.listening(held.handler):
        yield held
        held.release_all()


def sealed(kv: KV, blocks: int) -> tuple[Sequence, npt.NDArray[np.float32]]:
    """A sequence of sealed blocks, all of which its TLB knows."""
    sequence, made = written(kv, list(range(blocks * TOKENS)))
    sequence.publish()
    check(sequence, made)
    misses = sequence.tlb_counts.misses
    check(sequence, made)
    assert sequence.tlb_counts.misses == misses
    return sequence, made


def crowd(kv: KV, blocks: int) -> Sequence:
    """Take so many blocks of the pool, and write ones over them."""
    other = kv.open_sequence([9] * blocks * TOKENS)
    other.write_blocks(range(blocks), np.full((blocks, SIZE), 1, np.uint8), timeout_s=PATIENCE_S)
    return other


def test_a_known_block_is_read_without_a_call(kv: KV, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence, made = sealed(kv, 8)
    calls = kv._attachment().transport.sequences
    for name in ("fault", "translate"):
        monkeypatch.setattr(calls, name, lambda *_, **__: pytest.fail("a call was made"))
    check(sequence, made)
    assert sequence.locate(5) is not None
    assert sequence.translate(np.arange(8 * TOKENS)).resident.all()


@pytest.mark.parametrize("at", list(HoldAt))
def test_a_transfer_in_the_middle_leaves_the_old_place_right(
    backend: Backend, kv: KV, gates: Gates, at: HoldAt
) -> None:
    sequence, made = sealed(kv, GPU_BLOCKS // 2)
    for number in range(len(gates)):
        gates.hold(number, at)
    other = kv.open_sequence([9] * GPU_BLOCKS * TOKENS)
    with ThreadPoolExecutor(1) as pool:
        crowding = pool.submit(other.fault, range(GPU_BLOCKS - 4), write=True, timeout_s=PATIENCE_S)
        down = next(one for one in backend.host.migrator.lanes.workers if one.thread.name.endswith("gpu0-cpu.demand"))
        stream = _stream_of(down)
        assert stream is not None
        assert stream.wait_held(PATIENCE_S)
        check(sequence, made)
        gates.release_all()
        assert (crowding.result() == PageState.FRESH).all()
    other.write_blocks(range(GPU_BLOCKS - 4), np.full((GPU_BLOCKS - 4, SIZE), 1, np.uint8))
    other.close()
    check(sequence, made)


def test_evicted_and_rewritten_blocks_are_fetched_again(kv: KV) -> None:
    sequence, made = sealed(kv, 16)
    other = crowd(kv, GPU_BLOCKS - 4)
    assert sequence.locate(16 * TOKENS - 1) is None  # children go before their parents
    assert sequence.tlb_counts.invalidations >= 1
    found = sequence.translate(np.arange(16 * TOKENS))
    assert found.mapped.all()
    assert not found.resident.all()
    other.close()
    check(sequence, made)
    assert sequence.locate(16 * TOKENS - 1) is not None


class Meddled(FlatRows):
    """Rows that do something in the middle of being filled, once."""

    def __init__(self, flat: npt.NDArray[np.uint8], meddle: Callable[[], None]) -> None:
        super().__init__(flat, SIZE)
        self._meddle: Callable[[], None] | None = meddle

    def fill(self, source: Any, offsets: Any, rows: Any) -> None:
        half = len(rows) // 2
        super().fill(source, offsets[:half], rows[:half])
        if self._meddle is not None:
            meddle, self._meddle = self._meddle, None
            meddle()
        super().fill(source, offsets[half:], rows[half:])


@pytest.mark.parametrize("what", ["evicted", "rewritten", "removed"])
def test_what_moves_during_a_copy_is_copied_again(kv: KV, what: str) -> None:
    sequence, _ = sealed(kv, 16)
    expected = np.zeros((16, SIZE), np.uint8)
    sequence.read_blocks(range(16), expected)

    def meddle() -> None:
        if what == "removed":
            kv.remove(sequence.keys)
            crowd(kv, GPU_BLOCKS - 4).close()
            return
        other = crowd(kv, GPU_BLOCKS - 4)
        if what == "rewritten":
            other.close()
        else:
            other.publish()  # sealed blocks of another: they give way when ours come back

    out = np.zeros((16, SIZE), np.uint8)
    pages = sequence._pages
    states = pages.copy_out(np.arange(16), Meddled(out.reshape(-1), meddle), Budget(PATIENCE_S, 5.0))
    there = np.isin(states, [PageState.READABLE, PageState.WRITABLE])
    assert np.array_equal(out[there], expected[there])
    if what == "removed":
        assert set(states[~there].tolist()) <= {PageState.LOST, PageState.UNMAPPED}
    else:
        assert there.all()
        assert sequence.tlb_counts.invalidations >= 1


def test_a_fork_that_writes_leaves_the_parents_translations_right(kv: KV) -> None:
    sequence, made = sealed(kv, 8)
    (fork,) = sequence.fork()
    check(fork, made)
    mine = content(77, 8 * TOKENS)
    fork.write(0, mine)
    check(fork, mine)
    check(sequence, made)


def test_a_write_after_a_fork_is_not_made_through_the_old_translation(kv: KV) -> None:
    sequence, made = written(kv, list(range(40)))
    (fork,) = sequence.fork()
    sequence.write(0, content(5, 40))
    check(fork, made)
    check(sequence, content(5, 40))


def test_published_blocks_are_written_to_no_more(kv: KV) -> None:
    sequence, made = written(kv, list(range(32)))
    sequence.publish()
    sequence.write(0, content(6, 32))
    check(sequence, content(6, 32))
    with kv.open_sequence(list(range(33))) as again:
        check(again, made)


def test_pages_that_moved_for_their_size_are_found(kv: KV) -> None:
    sequence, made = sealed(kv, 12)
    crowd(kv, 20).close()
    sequence.adjust_page_size(4, timeout_s=PATIENCE_S)
    check(sequence, made)
    other = crowd(kv, 30)
    check(sequence, made)
    other.close()
