"""Windows over chains that are longer than the pool: what lies behind leaves, although its children are in the window."""

from collections.abc import Callable

from hybridkv.paging.windows import Window
from hybridkv.tiers.states import Tier
from tests.migration.hosts import NEW
from tests.paging.rig import ELSEWHERE, READABLE, TOKENS, Pages

Make = Callable[..., Pages]

WINDOW = Window(2 * TOKENS, sink_tokens=TOKENS, ahead_tokens=2 * TOKENS)


def _chain(pages: Pages, blocks: int) -> int:
    """A sequence on a cached chain in host memory: each block the child of the one before."""
    assert pages.worker.write(range(blocks), tier=Tier.CPU) == [NEW] * blocks
    return pages.open(blocks, range(blocks))


def _walk(pages: Pages, sequence: int, blocks: range) -> int:
    """Read the window at each block: major faults that took."""
    major = 0
    for block in blocks:
        pages.calls.advance(pages.session, sequence, block * TOKENS, WINDOW)
        pages.rig.settle()
        wanted = {0, *range(max(0, block - 1), block + 1)}
        major += pages.read(sequence, {n: n for n in sorted(wanted)}).major
    return major


def test_a_window_moves_over_a_chain_that_is_longer_than_the_pool(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16, cpu_blocks=128, paging__sticky_limit=1.0)
    sequence = _chain(pages, 80)
    assert _walk(pages, sequence, range(80)) == 0
    assert pages.rig.host.check() == []
    assert pages.info(sequence).lost_blocks == 0
    assert pages.states(sequence, [0, 40, 79]) == [READABLE, ELSEWHERE, READABLE]


def test_nothing_is_let_down_while_there_is_room(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=64, cpu_blocks=128, paging__sticky_limit=1.0)
    sequence = _chain(pages, 30)
    _walk(pages, sequence, range(30))
    assert pages.states(sequence, range(30)) == [READABLE] * 30


def test_what_another_sequence_uses_stays(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16, cpu_blocks=128, paging__sticky_limit=1.0)
    sequence = _chain(pages, 40)
    other = pages.open(3, range(3))
    pages.read(other, {1: 1, 2: 2})
    _walk(pages, sequence, range(40))
    assert pages.states(other, [1, 2]) == [READABLE] * 2
    assert pages.rig.host.check() == []
