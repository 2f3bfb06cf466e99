"""Sharing: the longest sealed prefix, copy-on-write forks, publication; and what is left when sequences end."""

from collections.abc import Callable

import numpy as np
import pytest

from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.errors import ForeignHoldError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.paging.rig import (
    ALREADY,
    BLOCK,
    ELSEWHERE,
    KEPT_PRIVATE,
    NONE,
    NOT_WRITABLE,
    PUBLISHED,
    READABLE,
    TOKENS,
    UNMAPPED,
    WRITABLE,
    Pages,
    keys,
)

Make = Callable[..., Pages]


def test_open_attaches_the_longest_sealed_prefix(make_pages: Make) -> None:
    pages = make_pages()
    assert pages.worker.write([1, 2, 3], tier=Tier.GPU) == [1, 1, 1]
    reply = pages.opened(5, [1, 2, 9, 3])
    assert (reply.cached_blocks, reply.cached_tokens, reply.tokens) == (2, 2 * TOKENS, 5 * TOKENS)
    assert pages.states(reply.sequence, range(5)) == [ELSEWHERE, ELSEWHERE, UNMAPPED, UNMAPPED, UNMAPPED]
    pages.read(reply.sequence, {0: 1, 1: 2})


def test_a_forked_sequence_copies_what_it_writes_and_nothing_else(make_pages: Make) -> None:
    pages = make_pages()
    parent = pages.open(3)
    pages.write(parent, {0: 1, 1: 2, 2: 3})
    assert pages.publish(parent, 0, [1, 2]) == [PUBLISHED, PUBLISHED]
    one, two = pages.fork(parent, 2)
    assert pages.rig.used("gpu0") == 3 * BLOCK
    assert pages.states(parent, range(3)) == pages.states(one, range(3)) == [READABLE] * 3
    assert pages.write(one, {2: 13}) == [WRITABLE]
    assert pages.rig.used("gpu0") == 4 * BLOCK
    pages.read(parent, {0: 1, 1: 2, 2: 3})
    pages.read(one, {0: 1, 1: 2, 2: 13})
    pages.read(two, {0: 1, 1: 2, 2: 3})
    assert pages.rig.host.paging.figures.copied_on_write == 1
    pages.close(parent, two)
    assert pages.rig.used("gpu0") == 3 * BLOCK, "the shared tail had no other user"
    pages.close(one)
    assert pages.rig.used("gpu0") == 2 * BLOCK, "what was published stays, as a cache"
    assert pages.rig.inside("gpu0") == {1, 2}


def test_the_copy_has_the_bytes_of_before_its_first_write(make_pages: Make) -> None:
    pages = make_pages()
    parent = pages.open(1)
    pages.write(parent, {0: 1})
    (child,) = pages.fork(parent)
    stream = pages.copies
    stream.hold(HoldAt.BEFORE_COPY)
    mine, theirs = pages.ask(child, [0], write=True), pages.ask(parent, [0], write=True)
    assert pages.states(child, [0]) == [READABLE], "until it is copied the old page serves"
    pages.read(child, {0: 1})
    stream.release_held()
    assert mine.wait(PATIENCE_S)
    assert theirs.wait(PATIENCE_S)
    pages.read(child, {0: 1})
    pages.read(parent, {0: 1})
    pages.rig.settle()
    assert pages.rig.used("gpu0") == 2 * BLOCK, "the shared block went with its last user"


def test_a_fork_of_a_page_below_is_brought_up_and_copied(make_pages: Make) -> None:
    pages = make_pages()
    parent = pages.open(1)
    pages.write(parent, {0: 1})
    (child,) = pages.fork(parent)
    pages.suspend(parent, child)
    assert pages.states(child, [0]) == [ELSEWHERE]
    reply = pages.fault(child, [0], write=True)
    assert (reply.states.tolist(), reply.major) == ([WRITABLE], 1)
    pages.read(child, {0: 1})


def test_a_fork_of_a_suspended_sequence_is_suspended(make_pages: Make) -> None:
    pages = make_pages()
    parent = pages.open(2)
    pages.write(parent, {0: 1, 1: 2})
    pages.suspend(parent)
    (child,) = pages.fork(parent)
    assert pages.info(child).suspended
    assert pages.info(child).resident_blocks == 0
    assert pages.resume(child).blocks == 2
    pages.read(child, {0: 1, 1: 2})
    assert pages.info(parent).suspended
    pages.read(parent, {0: 1, 1: 2})


def test_published_blocks_are_found_by_others_and_survive_the_sequence(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(3)
    pages.write(sequence, {0: 1, 1: 2, 2: 3})
    assert pages.publish(sequence, 0, [1]) == [PUBLISHED]
    assert pages.publish(sequence, 1, [2]) == [PUBLISHED]
    pages.close(sequence)
    assert pages.worker.read([1, 2, 3], tier=Tier.GPU) == [1, 1, 3]
    directory = pages.rig.directory
    child, parent = pages.rig.row(2), pages.rig.row(1)
    assert directory.blocks.parent[child] == parent, "the key before was known"


def test_a_second_publication_maps_the_first_copy(make_pages: Make) -> None:
    pages = make_pages()
    one, two = pages.open(2), pages.open(2)
    pages.write(one, {0: 1, 1: 2})
    pages.write(two, {0: 1, 1: 2})
    assert pages.rig.used("gpu0") == 4 * BLOCK
    assert pages.publish(one, 0, [1, 2]) == [PUBLISHED, PUBLISHED]
    assert pages.publish(two, 0, [1, 2]) == [ALREADY, ALREADY]
    assert pages.rig.used("gpu0") == 2 * BLOCK
    pages.read(two, {0: 1, 1: 2})
    assert pages.publish(two, 0, [1, 2]) == [ALREADY, ALREADY]


def test_what_cannot_be_published_is_told(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(3)
    pages.write(sequence, {0: 1, 1: 2})
    pages.fork(sequence)
    assert pages.publish(sequence, 0, [1]) == [KEPT_PRIVATE], "it was sealed for the forks"
    assert pages.publish(sequence, 2, [3]) == [NOT_WRITABLE]
    pages.write(sequence, {1: 2})
    writer = pages.rig.attach()
    held = writer.reserved([2])
    assert pages.publish(sequence, 1, [2]) == [KEPT_PRIVATE], "another writes that key now"
    writer.host.abort(writer.session, held.reservation, None)
    assert pages.publish(sequence, 1, [2]) == [PUBLISHED]
    assert pages.worker.read([2], tier=Tier.GPU) == [1]


def test_attach_goes_on_where_open_ended(make_pages: Make) -> None:
    pages = make_pages()
    pages.worker.write([1, 2, 3, 4], tier=Tier.GPU)
    sequence = pages.open(6, [1, 2])
    assert pages.calls.attach(pages.session, sequence, 2, keys([3, 4, 5])) == 2
    pages.read(sequence, {0: 1, 1: 2, 2: 3, 3: 4})
    assert pages.calls.attach(pages.session, sequence, 2, keys([3])) == 0, "mapped already"


# ------------------------------------------------------------------------------------------------ edges


def test_a_space_without_tokens(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(0)
    with pytest.raises(InvalidArgumentError, match=r"blocks: 0: sequence \d+ has 0 \(0 tokens\)"):
        pages.fault(sequence, [0])
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        pages.fault(sequence, [])
    assert pages.fork(sequence)
    pages.suspend(sequence)
    assert pages.resume(sequence).blocks == 0
    assert pages.calls.extend(pages.session, [(sequence, 1)]) == [1]
    assert pages.info(sequence).blocks == 1
    pages.write(sequence, {0: 5})
    pages.read(sequence, {0: 5})


def test_one_token(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(tokens=1)
    pages.write(sequence, {0: 1})
    with pytest.raises(InvalidArgumentError, match="0 are full"):
        pages.publish(sequence, 0, [1])
    with pytest.raises(InvalidArgumentError, match="blocks: 1"):
        pages.fault(sequence, [1], write=True)


def test_lengths_have_a_limit_and_extending_is_all_or_none(make_pages: Make) -> None:
    pages = make_pages()
    one, two = pages.open(0), pages.open(0)
    assert pages.open(tokens=1 << 24)
    with pytest.raises(InvalidArgumentError, match=r"paging\.positions_count"):
        pages.open(tokens=(1 << 24) + 1)
    with pytest.raises(InvalidArgumentError, match=r"paging\.positions_count"):
        pages.calls.extend(pages.session, [(one, 5), (two, (1 << 24) + 1)])
    assert pages.info(one).tokens == 0
    with pytest.raises(InvalidArgumentError, match="shorter"):
        pages.calls.extend(pages.session, [(one, -1)])
    assert pages.calls.extend(pages.session, [(one, 5), (one, 6)]) == [11, 11]
    with pytest.raises(InvalidArgumentError, match="keys"):
        pages.calls.open(pages.session, keys([1, 2]), tokens=TOKENS)


def test_a_huge_space_costs_what_is_mapped(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(tokens=10_000_000)
    last = 10_000_000 // TOKENS - 1
    pages.write(sequence, {block: block for block in np.linspace(0, last, 10).astype(int).tolist()})
    assert pages.info(sequence).table_bytes < 100_000
    pages.read(sequence, {last: last})


def test_use_after_close_and_closing_twice(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(1)
    pages.close(sequence)
    for call in (
        lambda: pages.close(sequence),
        lambda: pages.fault(sequence, [0]),
        lambda: pages.fork(sequence),
        lambda: pages.suspend(sequence),
        lambda: pages.resume(sequence),
        lambda: pages.calls.extend(pages.session, [(sequence, 1)]),
        lambda: pages.info(sequence),
        lambda: pages.resize(2, sequence),
    ):
        with pytest.raises(NotFoundError, match=f"sequence: {sequence} is not open"):
            call()


def test_another_sessions_sequence(make_pages: Make) -> None:
    pages = make_pages()
    other = Pages(pages.rig, pages.rig.attach())
    sequence = pages.open(1)
    with pytest.raises(ForeignHoldError):
        other.fault(sequence, [0])
    with pytest.raises(ForeignHoldError):
        other.close(sequence)


def test_a_session_has_a_limit_of_sequences(make_pages: Make) -> None:
    pages = make_pages(paging__sequences_per_session_count=2)
    sequence = pages.open(1)
    with pytest.raises(
        ResourceExhaustedError, match=r"paging\.sequences_per_session_count.*has 1 .* 2 more; the limit is 2"
    ):
        pages.fork(sequence, 2)
    pages.fork(sequence)
    with pytest.raises(ResourceExhaustedError):
        pages.calls.open(pages.session, NONE, tokens=1)


# ------------------------------------------------------------------------------------------------ ends


def test_a_detached_session_leaves_nothing_but_what_it_published(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(4)
    pages.write(sequence, {0: 1, 1: 2, 2: 3})
    pages.publish(sequence, 0, [1])
    pages.fork(sequence)
    pages.fault(sequence, [0, 1], hold=True)
    pages.rig.host.detach(pages.session)
    pages.rig.settle()
    assert pages.rig.used("gpu0") == BLOCK
    assert not pages.rig.host.paging.mappings.sequences


def test_a_lapsed_sessions_written_slots_are_quarantined_until_it_is_proved_gone(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(4)
    pages.write(sequence, {0: 1, 1: 2})
    (child,) = pages.fork(sequence)
    pages.write(child, {0: 3})
    pages.rig.host.stream_broken(pages.session)
    pages.rig.clock.advance(6)
    pages.rig.host.tick()
    assert pages.rig.host.check() == []
    assert not pages.rig.host.paging.mappings.sequences
    assert pages.rig.used("gpu0") == BLOCK, "the slot it may still write to; what was sealed for itself is gone"
    pages.rig.host.on_gone(pages.session)
    assert pages.rig.used("gpu0") == 0
    pages.rig.worker = pages.rig.attach()


def test_a_session_that_dies_in_a_fault_leaves_nothing(make_pages: Make) -> None:
    pages = make_pages()
    pages.worker.put([1], tier=Tier.CPU)
    sequence = pages.open(2, [1])
    stream = pages.rig.stream("cpu-gpu0.demand")
    stream.hold(HoldAt.BEFORE_COMPLETION)
    ticket = pages.ask(sequence, [0, 1])
    pages.rig.host.on_gone(pages.session)
    assert ticket.done
    with pytest.raises(NotFoundError, match="is not attached"):
        ticket.reply()
    assert pages.rig.host.check() == []
    stream.release_held()
    pages.rig.settle()
    pages.rig.worker = pages.rig.attach()
