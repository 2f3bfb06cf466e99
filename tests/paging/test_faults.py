"""Page faults: brought up, allocated or copied, in batches; all of it or nothing."""

from collections.abc import Callable

import numpy as np
import pytest

from hybridkv.paging.replies import Want
from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.errors import DeadlineExceededError, ResourceExhaustedError, UnavailableError
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.paging.rig import BLOCK, ELSEWHERE, FRESH, LOST, READABLE, UNMAPPED, WRITABLE, Pages, keys

Make = Callable[..., Pages]


def _figures(pages: Pages) -> tuple[int, int]:
    figures = pages.rig.host.paging.figures
    return figures.minor_faults, figures.major_faults


def test_writing_allocates_and_reading_finds(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(4)
    assert pages.states(sequence, range(4)) == [UNMAPPED] * 4
    assert pages.write(sequence, {0: 10, 2: 12}) == [FRESH, FRESH]
    assert pages.states(sequence, range(4)) == [WRITABLE, UNMAPPED, WRITABLE, UNMAPPED]
    pages.read(sequence, {0: 10, 2: 12})
    assert pages.fault(sequence, [0, 1], write=True).states.tolist() == [WRITABLE, FRESH]
    assert pages.fault(sequence, [3]).states.tolist() == [UNMAPPED]
    pages.rig.settle()


def test_a_read_below_is_a_major_fault_and_what_others_brought_up_a_minor_one(make_pages: Make) -> None:
    pages = make_pages()
    pages.worker.put([1, 2, 3], tier=Tier.CPU)
    chain = pages.open(3, [1, 2, 3])
    twin = pages.open(3, [1, 2, 3])
    assert pages.states(chain, range(3)) == [ELSEWHERE] * 3
    reply = pages.read(chain, {0: 1, 1: 2, 2: 3})
    assert (reply.minor, reply.major) == (0, 3)
    reply = pages.read(twin, {0: 1, 1: 2, 2: 3})
    assert (reply.minor, reply.major) == (3, 0)
    assert pages.read(twin, {0: 1}).minor == 0
    assert _figures(pages) == (3, 3)


def test_faults_of_several_sequences_join_one_transfer(make_pages: Make) -> None:
    pages = make_pages()
    pages.worker.put([1, 2], tier=Tier.CPU)
    one, two = pages.open(2, [1, 2]), pages.open(2, [1, 2])
    stream = pages.rig.stream("cpu-gpu0.demand")
    stream.hold(HoldAt.BEFORE_COPY)
    wants = [Want(one, np.arange(2)), Want(two, np.arange(2))]
    both = pages.calls.fault(pages.session, wants)
    again = pages.ask(two, [0, 1])
    assert not both.done
    assert not again.done
    stream.release_held()
    assert both.wait(PATIENCE_S)
    assert again.wait(PATIENCE_S)
    pages.verify(both.reply(), [1, 2, 1, 2])
    pages.verify(again.reply(), [1, 2])
    assert pages.rig.moves(source="cpu", target="gpu0")["done"] == 2


def test_a_full_pool_evicts_by_policy_for_a_fault(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    pages.worker.put(range(16), tier=Tier.GPU)
    sequence = pages.open(4)
    pages.write(sequence, {0: 100, 1: 101, 2: 102})
    pages.read(sequence, {0: 100, 1: 101, 2: 102})
    assert pages.rig.inside("gpu0") >= set(range(3, 16))
    assert all(pages.rig.where(number) == {"cpu"} for number in range(3))


def test_nothing_to_evict_is_refused_and_changes_nothing(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    held = pages.open(16)
    pages.write(held, {block: block for block in range(15)})
    sequence = pages.open(4)
    pages.write(sequence, {0: 100})
    before = pages.rig.host.directory.state.counters.copy()
    with pytest.raises(ResourceExhaustedError, match=r"gpu0: no room for 2 blocks .*reserved 262144"):
        pages.fault(sequence, [1, 2], write=True)
    assert pages.states(sequence, range(4)) == [WRITABLE, UNMAPPED, UNMAPPED, UNMAPPED]
    assert pages.rig.host.directory.state.counters == before
    pages.rig.settle()


def test_a_batch_that_does_not_fit_as_a_whole_evicts_nothing(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    pages.worker.put(range(4), tier=Tier.GPU)
    held = pages.open(16)
    pages.write(held, {block: 50 + block for block in range(12)})
    with pytest.raises(ResourceExhaustedError):
        pages.write(pages.open(5), dict.fromkeys(range(5), 90))
    assert all(pages.rig.where(number) == {"gpu0"} for number in range(4))


def test_what_several_sequences_want_needs_room_once(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    pages.worker.put(range(6), tier=Tier.CPU)
    pages.write(pages.open(8), {block: 50 + block for block in range(8)})
    sequences = [pages.open(6, range(6)) for _ in range(3)]
    ticket = pages.calls.fault(pages.session, [Want(sequence, np.arange(6)) for sequence in sequences])
    assert ticket.wait(PATIENCE_S)
    pages.verify(ticket.reply(), [0, 1, 2, 3, 4, 5] * 3)
    assert (ticket.reply().minor, ticket.reply().major) == (0, 18)


def test_what_is_on_its_way_has_its_room_already(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    pages.worker.put(range(8), tier=Tier.CPU)
    pages.write(pages.open(8), {block: 50 + block for block in range(8)})
    one, two = pages.open(8, range(8)), pages.open(8, range(8))
    stream = pages.rig.stream("cpu-gpu0.demand")
    stream.hold(HoldAt.BEFORE_COPY)
    first = pages.ask(one, range(8))
    pages.rig.until(lambda: pages.rig.directory.state.mapped(0).free_slots(BLOCK) == 0)
    second = pages.ask(two, range(8))
    stream.release_held()
    for ticket in (first, second):
        assert ticket.wait(PATIENCE_S)
        pages.verify(ticket.reply(), range(8))


def test_a_deadline_undoes_a_fault(make_pages: Make) -> None:
    pages = make_pages()
    pages.worker.put([1], tier=Tier.CPU)
    sequence = pages.open(2, [1])
    stream = pages.rig.stream("cpu-gpu0.demand")
    stream.hold(HoldAt.BEFORE_COPY)
    wants = [Want(sequence, np.array([0])), Want(sequence, np.array([1]), True)]
    ticket = pages.calls.fault(pages.session, wants)
    assert not ticket.wait(0)
    with pytest.raises(DeadlineExceededError, match="nothing was changed"):
        ticket.reply()
    assert ticket.done
    assert pages.states(sequence, [0, 1]) == [ELSEWHERE, UNMAPPED]
    assert pages.rig.host.check() == []
    stream.release_held()
    pages.rig.settle()
    assert pages.read(sequence, {0: 1}).major == 0, "what was under way landed all the same"


def test_a_held_page_is_not_evicted(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    pages.worker.put(range(16), tier=Tier.GPU)
    sequence = pages.open(1, [0])
    reply = pages.fault(sequence, [0], hold=True)
    assert reply.leases[0]
    pages.write(pages.open(8), {block: 100 + block for block in range(8)})
    assert pages.rig.where(0) == {"gpu0"}
    pages.verify(reply, [0])
    pages.rig.host.release(pages.session, reply.leases[0])
    pages.write(pages.open(8), {block: 200 + block for block in range(8)})
    assert pages.states(sequence, [0]) == [ELSEWHERE]


def test_an_eviction_takes_the_entry_of_every_sequence(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    pages.worker.put(range(3), tier=Tier.GPU)
    sequences = [pages.open(3, [0, 1, 2]) for _ in range(3)]
    for sequence in sequences:
        pages.read(sequence, {0: 0, 1: 1, 2: 2})
    pages.rig.lower("gpu0", [2])
    pages.rig.settle()
    assert all(pages.states(sequence, range(3)) == [READABLE, READABLE, ELSEWHERE] for sequence in sequences)
    assert pages.rig.host.paging.mappings.evictions == 3


def test_what_no_tier_has_any_more_is_lost_and_may_be_written_anew(make_pages: Make) -> None:
    pages = make_pages()
    pages.worker.put([1, 2], tier=Tier.GPU)
    sequence = pages.open(2, [1, 2])
    pages.rig.host.remove(pages.session, keys([1]))
    assert pages.states(sequence, [0, 1]) == [LOST, ELSEWHERE]
    assert pages.fault(sequence, [0, 1]).states.tolist() == [LOST, READABLE]
    assert pages.write(sequence, {0: 9}) == [FRESH]
    pages.read(sequence, {0: 9, 1: 2})


def test_a_copy_that_fails_fails_the_fault_and_changes_nothing(make_pages: Make) -> None:
    pages = make_pages()
    parent = pages.open(1)
    pages.write(parent, {0: 1})
    (child,) = pages.fork(parent)
    pages.copies.fail_next(UnavailableError("as the test wished"))
    ticket = pages.ask(child, [0], write=True)
    assert ticket.wait(PATIENCE_S)
    with pytest.raises(UnavailableError, match="as the test wished"):
        ticket.reply()
    pages.rig.settle()
    assert pages.states(child, [0]) == [READABLE]
    assert pages.rig.used("gpu0") == BLOCK
    pages.read(child, {0: 1})
    pages.write(child, {0: 2})
    pages.read(parent, {0: 1})


def test_a_copy_under_way_keeps_its_slots_when_the_sequence_is_closed(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    parent = pages.open(1)
    pages.write(parent, {0: 1})
    (child,) = pages.fork(parent)
    stream = pages.copies
    stream.hold(HoldAt.BEFORE_COPY)
    ticket = pages.ask(child, [0], write=True)
    assert stream.wait_held()
    pages.close(child, parent)
    assert ticket.done
    assert pages.rig.host.check() == []
    assert pages.rig.used("gpu0") == 2 * BLOCK, "both slots are the copy's until it has ended"
    stream.release_held()
    pages.rig.settle()
    assert pages.rig.used("gpu0") == 0
