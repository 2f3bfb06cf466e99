"""What is not evicted (sticky blocks, what a window needs), and what is fetched before anybody asks for it."""

from collections.abc import Callable
from typing import Any

import pytest

from hybridkv.paging.windows import Window, plan
from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.errors import InvalidArgumentError, ResourceExhaustedError
from hybridkv.tiers.states import Tier
from tests.paging.rig import BLOCK, ELSEWHERE, READABLE, TOKENS, Pages

Make = Callable[..., Pages]


def _sticky(pages: Pages, sequence: int, first: int, count: int, sticky: bool = True) -> tuple[int, int]:
    reply = pages.calls.set_sticky(pages.session, sequence, first, count, sticky)
    return reply.sticky_bytes, reply.limit_bytes


def _press(pages: Pages, blocks: int) -> None:
    """Others need so many blocks of the device."""
    pages.worker.put(range(1000, 1000 + blocks), tier=Tier.GPU)
    pages.rig.settle()


def test_sticky_blocks_are_never_evicted(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    pages.worker.put(range(4), tier=Tier.GPU)
    sequence = pages.open(4, range(4))
    pages.read(sequence, {n: n for n in range(4)})
    assert _sticky(pages, sequence, 0, 2) == (2 * BLOCK, 4 * BLOCK)
    _press(pages, 30)
    assert pages.states(sequence, range(4)) == [READABLE, READABLE, ELSEWHERE, ELSEWHERE]
    assert _sticky(pages, sequence, 0, 2, False) == (0, 4 * BLOCK)
    pages.worker.put(range(2000, 2016), tier=Tier.GPU)
    assert pages.states(sequence, range(2)) == [ELSEWHERE, ELSEWHERE]


def test_the_caller_is_told_when_stickiness_exceeds_its_limit(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    sequence = pages.open(16)
    pages.write(sequence, {n: n for n in range(6)})
    _sticky(pages, sequence, 0, 3)
    with pytest.raises(ResourceExhaustedError, match=r"98304 bytes would be sticky in gpu0; the limit is 65536"):
        _sticky(pages, sequence, 0, 6)
    assert pages.info(sequence).sticky_blocks == 3
    with pytest.raises(InvalidArgumentError, match="block 7 has nothing in it"):
        _sticky(pages, sequence, 7, 1)
    shared = pages.fork(sequence)[0]
    assert _sticky(pages, shared, 0, 4) == (4 * BLOCK, 4 * BLOCK), "shared blocks count once"


def test_a_sticky_tail_stays_so_when_it_is_sealed_and_leaves_with_a_suspension(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    sequence = pages.open(2)
    pages.write(sequence, {0: 1, 1: 2})
    _sticky(pages, sequence, 0, 1)
    pages.publish(sequence, 0, [1])
    assert pages.rig.host.check() == []
    _press(pages, 30)
    assert pages.states(sequence, [0]) == [READABLE]
    assert pages.suspend(sequence).left == 2
    pages.resume(sequence)
    pages.worker.put(range(3000, 3016), tier=Tier.GPU)
    assert pages.states(sequence, [0]) == [READABLE]
    pages.close(sequence)
    assert not pages.rig.directory.blocks.holds.any()


def test_what_the_window_needs_is_not_evicted(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=32, paging__sticky_limit=0.5)
    pages.worker.put(range(16), tier=Tier.GPU)
    sequence = pages.open(16, range(16))
    pages.read(sequence, {n: n for n in range(16)})
    window = Window(4 * TOKENS, sink_tokens=TOKENS)
    reply = pages.calls.advance(pages.session, sequence, 16 * TOKENS - 1, window)
    assert reply.kept == 5
    _press(pages, 60)
    states = pages.states(sequence, range(16))
    assert [block for block in range(16) if states[block] == READABLE] == [0, 12, 13, 14, 15]


def test_what_comes_next_is_prefetched_and_the_window_faults_no_more(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16, cpu_blocks=64, paging__sticky_limit=1.0)
    pages.worker.put(range(40), tier=Tier.CPU)
    sequence = pages.open(40, range(40))
    window = Window(4 * TOKENS, ahead_tokens=4 * TOKENS)
    major = []
    for block in range(40):
        pages.calls.advance(pages.session, sequence, block * TOKENS, window)
        pages.rig.settle()
        first = max(0, block - 3)
        major.append(pages.read(sequence, {n: n for n in range(first, block + 1)}).major)
    assert sum(major) == 0
    assert pages.rig.host.paging.figures.prefetched_blocks == 40


def test_prefetches_are_given_up_when_the_window_has_moved_on(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16, cpu_blocks=64, paging__sticky_limit=1.0)
    pages.worker.put(range(40), tier=Tier.CPU)
    sequence = pages.open(40, range(40))
    window = Window(TOKENS, ahead_tokens=4 * TOKENS)
    streams = [pages.rig.stream(f"cpu-gpu0.{kind}") for kind in ("demand", "background")]
    for stream in streams:
        stream.hold(HoldAt.BEFORE_COPY)
    pages.calls.advance(pages.session, sequence, 0, window)
    pages.rig.until(lambda: any(stream.wait_held(0.01) for stream in streams))
    pages.calls.advance(pages.session, sequence, 10 * TOKENS, window)
    reply = pages.calls.advance(pages.session, sequence, 30 * TOKENS, window)
    assert reply.cancelled >= 5, "those of the second position never began"
    for stream in streams:
        stream.release_held()
    pages.rig.settle()
    assert {10, 11, 12, 13, 14}.isdisjoint(pages.rig.inside("gpu0"))
    assert {30, 31, 32, 33, 34} <= pages.rig.inside("gpu0")


def test_a_pattern_of_accesses_is_followed_without_a_window(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=32, cpu_blocks=64)
    pages.worker.put(range(40), tier=Tier.CPU)
    sequence = pages.open(40, range(40))
    for block in (0, 2, 4, 6):
        pages.calls.advance(pages.session, sequence, block * TOKENS)
    pages.rig.settle()
    assert {8, 10, 12, 14, 16, 18} <= pages.rig.inside("gpu0")
    assert pages.rig.inside("gpu0").isdisjoint({7, 9, 11})


def test_positions_past_the_end(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(2)
    pages.calls.advance(pages.session, sequence, 2 * TOKENS)
    with pytest.raises(InvalidArgumentError, match="position: 33"):
        pages.calls.advance(pages.session, sequence, 2 * TOKENS + 1)


def test_of_a_window_of_any_size_no_more_is_looked_at_than_the_pool_holds(
    make_pages: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def planned(wanted: tuple[int, ...], *given: Any) -> Any:
        looked.append(len(wanted))
        return plan(wanted, *given)

    monkeypatch.setattr("hybridkv.paging.ahead.plan", planned)
    pages = make_pages(gpu_blocks=16)
    sequence = pages.open(500_000)
    window = Window(1 << 40, 1 << 40, 1 << 40)
    assert pages.calls.advance(pages.session, sequence, 500_000 * TOKENS, window).prefetched == 0
    assert looked == [16 + 256]
