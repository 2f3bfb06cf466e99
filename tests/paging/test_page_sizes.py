"""Pages of several blocks: adjacent slots, one entry, changed while sequences are in use; nothing is copied without need."""

from collections.abc import Callable

import pytest

from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.paging.rig import BLOCK, FRESH, LOST, READABLE, WRITABLE, Pages, keys

Make = Callable[..., Pages]

ROOMY = {"gpu_blocks": 128, "cpu_blocks": 128}
"""Extents of eight blocks."""


def _scatter(pages: Pages, numbers: range, step: int = 3) -> None:
    """Blocks on the device, no two of them neighbours."""
    filler = 10_000 + numbers.start
    for number in numbers:
        pages.worker.put([number], tier=Tier.GPU)
        pages.worker.put(range(filler, filler + step - 1), tier=Tier.GPU)
        filler += step - 1


def _places(pages: Pages, sequence: int, blocks: range) -> list[int]:
    reply = pages.fault(sequence, blocks)
    return [int(slot["offset"]) // BLOCK for slot in reply.slots]


def test_a_page_is_allocated_as_a_run_and_is_one_entry(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    sequence = pages.open(8, page_blocks=4)
    assert pages.write(sequence, {0: 1}) == [FRESH]
    assert pages.states(sequence, range(8)) == [WRITABLE] * 4 + [0] * 4
    info = pages.info(sequence)
    assert (info.entries, info.writable_blocks) == (1, 4)
    first, *rest = _places(pages, sequence, range(4))
    assert rest == [first + 1, first + 2, first + 3]


def test_runs_are_found_between_slots_in_use(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    pages.worker.put(range(128), tier=Tier.GPU)
    for number in (3, 4, 17, 18, 19, 20, 40):
        pages.rig.host.remove(pages.session, keys([number]))
    sequence = pages.open(8, page_blocks=4)
    pages.write(sequence, {0: 500})
    assert pages.info(sequence).entries == 1
    with_room = pages.open(4, page_blocks=2)
    pages.write(with_room, {0: 501})
    assert pages.info(with_room).entries == 1
    alone = pages.open(2, page_blocks=2)
    pages.write(alone, {0: 502})
    assert pages.info(alone).entries == 3, "no two neighbours were free: the page is split"
    pages.read(alone, {0: 502})


def test_joining_copies_only_what_lies_apart(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    pages.worker.put(range(3), tier=Tier.GPU)
    pages.worker.put([50], tier=Tier.GPU)
    pages.worker.put([3], tier=Tier.GPU)
    pages.rig.host.remove(pages.session, keys([50]))
    sequence = pages.open(4, range(4))
    pages.read(sequence, {n: n for n in range(4)})
    reply = pages.resize(4, sequence)
    assert (reply.entries_before, reply.entries_after) == (4, 1)
    assert reply.copied_bytes == BLOCK
    assert reply.split_pages == 0
    pages.read(sequence, {n: n for n in range(4)})
    assert pages.rig.host.paging.figures.resize_copied_bytes == BLOCK


def test_adjacent_blocks_are_joined_without_a_copy(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    pages.worker.put(range(8), tier=Tier.GPU)
    sequence = pages.open(8, range(8))
    pages.read(sequence, {n: n for n in range(8)})
    reply = pages.resize(4, sequence)
    assert (reply.entries_before, reply.entries_after, reply.copied_bytes) == (8, 2, 0)


def test_smaller_pages_copy_nothing(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    sequence = pages.open(8, page_blocks=8)
    pages.write(sequence, {n: n for n in range(8)})
    for size, entries in ((4, 2), (2, 4), (1, 8)):
        reply = pages.resize(size, sequence)
        assert (reply.entries_after, reply.copied_bytes) == (entries, 0)
        pages.read(sequence, {n: n for n in range(8)})


def test_the_whole_pool_changes_while_sequences_are_in_use(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    _scatter(pages, range(8))
    shared = [pages.open(8, range(8)) for _ in range(2)]
    for sequence in shared:
        pages.read(sequence, {n: n for n in range(8)})
    writing = pages.open(4)
    pages.write(writing, {0: 70, 1: 71})
    reply = pages.resize(4)
    assert reply.copied_bytes == 8 * BLOCK, "a shared page moves once"
    assert [pages.info(sequence).entries for sequence in shared] == [2, 2]
    for sequence in shared:
        pages.read(sequence, {n: n for n in range(8)})
    pages.read(writing, {0: 70, 1: 71})
    assert pages.opened(4).page_blocks == 4
    pages.rig.settle()


def test_what_is_held_stays_and_is_joined_later(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    _scatter(pages, range(4))
    sequence = pages.open(4, range(4))
    held = pages.fault(sequence, [2], hold=True)
    pages.read(sequence, {n: n for n in range(4)})
    reply = pages.resize(4, sequence)
    assert (reply.copied_bytes, reply.split_pages) == (0, 1)
    pages.verify(held, [2])
    pages.rig.host.tick()
    pages.rig.settle()
    assert pages.info(sequence).split_pages == 1
    pages.rig.host.release(pages.session, held.leases[0])
    pages.rig.host.tick()
    pages.rig.settle()
    info = pages.info(sequence)
    assert (info.entries, info.split_pages) == (1, 0)
    pages.read(sequence, {n: n for n in range(4)})


@pytest.mark.parametrize("at", list(HoldAt))
def test_a_page_that_is_moving_is_read_where_it_was(make_pages: Make, at: HoldAt) -> None:
    pages = make_pages(**ROOMY)
    _scatter(pages, range(4))
    sequence = pages.open(4, range(4))
    before = pages.read(sequence, {n: n for n in range(4)})
    stream = pages.rig.stream("gpu0-gpu0.demand")
    stream.hold(at)
    ticket = pages.calls.adjust_page_size(4, session=pages.session, sequence=sequence)
    assert stream.wait_held()
    assert not ticket.done
    assert pages.rig.host.check() == []
    held = pages.fault(sequence, range(4), hold=True)
    assert held.slots["offset"].tolist() == before.slots["offset"].tolist()
    pages.verify(held, range(4))
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    reply = ticket.reply()
    assert (reply.copied_bytes, reply.split_pages) == (0, 1), "the lease won"
    pages.verify(held, range(4))
    pages.rig.host.release(pages.session, held.leases[0])
    pages.rig.host.tick()
    pages.rig.settle()
    assert pages.info(sequence).entries == 1


def test_a_page_below_comes_up_into_a_run(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    pages.worker.put(range(100, 228 - 8), tier=Tier.GPU)
    for number in range(101, 180, 7):
        pages.rig.host.remove(pages.session, keys([number]))
    pages.worker.put(range(4), tier=Tier.CPU)
    sequence = pages.open(4, range(4), page_blocks=4)
    reply = pages.read(sequence, {n: n for n in range(4)})
    assert (reply.major, pages.info(sequence).entries) == (1, 1)
    first, *rest = _places(pages, sequence, range(4))
    assert rest == [first + 1, first + 2, first + 3]


def test_a_forked_page_is_copied_as_a_whole(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    parent = pages.open(8, page_blocks=4)
    pages.write(parent, {n: n for n in range(6)})
    (child,) = pages.fork(parent)
    assert pages.write(child, {1: 91}) == [WRITABLE]
    assert pages.states(child, range(8)) == [WRITABLE] * 4 + [READABLE] * 4
    pages.read(child, {0: 0, 1: 91, 2: 2, 3: 3, 4: 4})
    pages.read(parent, {n: n for n in range(6)})
    assert pages.info(child).entries == 2


def test_page_sizes_are_powers_of_two(make_pages: Make) -> None:
    pages = make_pages()
    with pytest.raises(InvalidArgumentError, match="power of two"):
        pages.open(1, page_blocks=3)
    with pytest.raises(InvalidArgumentError, match="page_blocks"):
        pages.resize(512)
    with pytest.raises(InvalidArgumentError, match="session"):
        pages.calls.adjust_page_size(2, session=pages.session)


def test_a_lost_block_of_a_page_that_is_written_stays_lost(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    pages.worker.put(range(4), tier=Tier.GPU)
    sequence = pages.open(4, range(4), page_blocks=4)
    pages.read(sequence, {n: n for n in range(4)})
    pages.rig.host.remove(pages.session, keys([2]))
    assert pages.write(sequence, {0: 90}) == [WRITABLE]
    assert pages.states(sequence, range(4)) == [WRITABLE, WRITABLE, LOST, WRITABLE]
    pages.read(sequence, {0: 90, 1: 1, 3: 3})
    assert pages.write(sequence, {2: 92}) == [FRESH]


def test_a_run_is_cleared_where_that_costs_the_fewest_copies(make_pages: Make) -> None:
    pages = make_pages(**ROOMY)
    pages.worker.put(range(128), tier=Tier.GPU)
    gone = [*range(1, 65, 2), 67, 68, 70]  # every second slot, and three of four neighbours: 66, 69 stay between
    for number in gone:
        pages.rig.host.remove(pages.session, keys([number]))
    sequence = pages.open(4, [80, 90, 100, 110], page_blocks=4)
    blocks = dict(enumerate([80, 90, 100, 110]))
    pages.read(sequence, blocks)
    assert pages.info(sequence).split_pages == 1
    before = pages.rig.host.paging.figures.resize_copied_bytes
    pages.rig.host.tick()
    pages.rig.settle()
    assert (pages.info(sequence).entries, pages.info(sequence).split_pages) == (1, 0)
    assert pages.rig.host.paging.figures.resize_copied_bytes - before == (1 + 4) * BLOCK
    pages.read(sequence, blocks)


def test_what_is_held_is_not_cleared_away(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=128, cpu_blocks=128)
    pages.worker.put(range(128), tier=Tier.GPU)
    for number in range(1, 128, 2):
        pages.rig.host.remove(pages.session, keys([number]))
    held = pages.worker.hold(range(0, 128, 4), tier=Tier.GPU)
    sequence = pages.open(2, [2, 6], page_blocks=2)
    pages.read(sequence, {0: 2, 1: 6})
    pages.rig.host.tick()
    pages.rig.settle()
    pages.worker.verify(list(range(0, 128, 4)), held)
    pages.read(sequence, {0: 2, 1: 6})
    assert pages.info(sequence).entries == 1
    pages.worker.release(held.lease)
