"""Suspension: a sequence leaves the device as a whole and comes back in one batch; idle ones do so by themselves."""

from collections.abc import Callable

import numpy as np
import pytest

from hybridkv.tiers.device.base import Direction
from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.errors import DeadlineExceededError, ExpiredError, NotFoundError, ResourceExhaustedError
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.paging.rig import BLOCK, ELSEWHERE, LOST, READABLE, WRITABLE, Pages

Make = Callable[..., Pages]


def test_a_suspended_sequence_leaves_the_device_and_comes_back(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(4)
    pages.write(sequence, {0: 1, 1: 2, 2: 3})
    pages.publish(sequence, 0, [1])
    held = pages.fault(sequence, range(3), hold=True)
    reply = pages.suspend(sequence)
    assert (reply.left, reply.stayed) == (3, 0)
    assert pages.rig.used("gpu0") == 0
    assert pages.info(sequence).suspended
    with pytest.raises((NotFoundError, ExpiredError)):
        pages.rig.host.release(pages.session, held.leases[0])
    assert pages.resume(sequence).blocks == 3
    assert pages.rig.moves(source="cpu", target="gpu0")["done"] == 3
    assert pages.states(sequence, range(3)) == [READABLE] * 3
    pages.read(sequence, {0: 1, 1: 2, 2: 3})
    pages.write(sequence, {2: 33})
    pages.read(sequence, {0: 1, 1: 2, 2: 33})


def test_what_others_use_stays(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(3)
    pages.write(sequence, {0: 1, 1: 2, 2: 3})
    pages.publish(sequence, 0, [1, 2])
    other = pages.open(2, [1, 2])
    pages.read(other, {0: 1, 1: 2})
    reply = pages.suspend(sequence)
    assert (reply.left, reply.stayed) == (1, 2)
    assert pages.states(other, [0, 1]) == [READABLE, READABLE]
    assert pages.states(sequence, range(3)) == [ELSEWHERE] * 3
    reply = pages.suspend(other)
    assert (reply.left, reply.stayed) == (2, 0)
    assert pages.rig.used("gpu0") == 0


def test_without_room_below_nothing_is_lost(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16, cpu_blocks=16)
    other = pages.rig.attach()
    other.put(range(100, 116), tier=Tier.CPU)
    held = other.hold(range(100, 116), tier=Tier.CPU)
    sequence = pages.open(4)
    pages.write(sequence, {0: 1, 1: 2})
    reply = pages.suspend(sequence)
    assert (reply.left, reply.stayed) == (0, 2)
    pages.read(sequence, {0: 1, 1: 2})
    other.release(held.lease)


def test_a_suspension_that_takes_long_goes_on(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(2)
    pages.write(sequence, {0: 1, 1: 2})
    stream = pages.rig.stream("gpu0-cpu.background")
    stream.hold(HoldAt.BEFORE_COMPLETION)
    ticket = pages.calls.suspend(pages.session, [sequence])
    assert stream.wait_held()
    with pytest.raises(DeadlineExceededError, match="goes on"):
        ticket.reply()
    assert pages.rig.host.check() == []
    pages.read(sequence, {0: 1, 1: 2})
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    pages.rig.settle()
    pages.read(sequence, {0: 1, 1: 2})


def test_a_resumption_that_does_not_fit_changes_nothing(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16)
    sequence = pages.open(8)
    pages.write(sequence, {block: block for block in range(8)})
    pages.suspend(sequence)
    filling = pages.open(16)
    pages.write(filling, {block: 100 + block for block in range(12)})
    with pytest.raises(ResourceExhaustedError, match="gpu0: no room for 8 blocks"):
        pages.resume(sequence)
    assert pages.info(sequence).suspended
    assert pages.info(sequence).resident_blocks == 0
    pages.close(filling)
    assert pages.resume(sequence).blocks == 8


def test_what_was_lost_meanwhile_is_told(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16, cpu_blocks=16)
    sequence = pages.open(4)
    pages.write(sequence, {0: 1, 1: 2})
    pages.suspend(sequence)
    pages.worker.put(range(200, 216), tier=Tier.CPU)
    reply = pages.resume(sequence)
    assert (reply.blocks, reply.lost) == (0, 2)
    assert pages.states(sequence, [0, 1]) == [LOST, LOST]
    assert pages.rig.host.paging.mappings.losses == 2


def test_private_blocks_go_to_the_disk_and_leave_it_with_their_sequence(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=16, cpu_blocks=16, disk_bytes=8 << 20)
    sequence = pages.open(4)
    pages.write(sequence, {0: 1, 1: 2})
    pages.suspend(sequence)
    pages.worker.put(range(200, 216), tier=Tier.CPU)
    pages.rig.settle()
    assert set(_where(pages, sequence)) == {"disk"}
    pages.read(sequence, {0: 1, 1: 2})
    assert pages.rig.host.drain(PATIENCE_S).left == 0
    sealed = _on_disk(pages)
    pages.close(sequence)
    pages.rig.settle()
    pages.rig.until(lambda: _on_disk(pages) == sealed - 2)


def test_after_a_restart_private_blocks_are_nobodys(make_pages: Make) -> None:
    how = {"gpu_blocks": 16, "cpu_blocks": 16, "disk_bytes": 8 << 20}
    pages = make_pages(**how)
    sequence = pages.open(4)
    pages.write(sequence, {0: 1, 1: 2})
    pages.publish(sequence, 0, [1])
    pages.suspend(sequence)
    pages.worker.put(range(200, 216), tier=Tier.CPU)
    pages.rig.settle()
    before = _on_disk(pages)
    assert set(_where(pages, sequence)) == {"disk"}
    pages.rig.close()
    again = make_pages(**how)
    assert len(again.rig.directory.blocks) == before - 1
    assert again.rig.where(1) == {"disk"}
    again.rig.migrator.stir()
    again.rig.until(lambda: _on_disk(again) == before - 1)


def test_idle_sequences_suspend_by_themselves_but_for_what_they_write(make_pages: Make) -> None:
    pages = make_pages(paging__idle_timeout_s=60)
    sequence, busy = pages.open(3), pages.open(1)
    pages.write(sequence, {0: 1, 1: 2, 2: 3})
    pages.publish(sequence, 0, [1, 2])
    pages.write(busy, {0: 9})
    pages.rig.clock.advance(59)
    pages.read(busy, {0: 9})
    pages.rig.host.tick()
    assert not pages.info(sequence).suspended
    pages.rig.clock.advance(2)
    pages.rig.host.tick()
    pages.rig.settle()
    assert pages.info(sequence).suspended
    assert not pages.info(busy).suspended
    assert pages.states(sequence, range(3)) == [ELSEWHERE, ELSEWHERE, WRITABLE]
    assert pages.rig.used("gpu0") == 2 * BLOCK
    pages.read(sequence, {0: 1, 1: 2, 2: 3})
    assert not pages.info(sequence).suspended
    assert pages.rig.host.paging.figures.idle_suspends == 1


def test_a_sequence_that_is_held_is_not_idle(make_pages: Make) -> None:
    pages = make_pages(paging__idle_timeout_s=10)
    pages.worker.put([1], tier=Tier.GPU)
    sequence = pages.open(1, [1])
    held = pages.fault(sequence, [0], hold=True)
    pages.rig.clock.advance(20)
    pages.rig.host.renew(pages.session, [held.leases[0]])
    pages.rig.host.tick()
    assert not pages.info(sequence).suspended
    pages.rig.host.release(pages.session, held.leases[0])
    pages.rig.host.tick()
    assert pages.info(sequence).suspended


def _where(pages: Pages, sequence: int) -> list[str]:
    inner = pages.rig.host.paging.mappings.sequences[sequence]
    blocks = pages.rig.directory.blocks
    rows = inner.backing.rows(inner.sealed())
    return [
        str(book.id)
        for row in rows.tolist()
        for book in pages.rig.directory.books
        if blocks.slot[book.index][row] != -1
    ]


def test_events_delay_a_suspension(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(1)
    pages.write(sequence, {0: 1})
    device = pages.rig.host.memory.devices[0]
    stream = device.stream("a worker's")
    assert isinstance(stream, HostStream)
    stream.hold(HoldAt.BEFORE_COPY)
    pool = pages.rig.host.memory.device_pools[0]
    slot = pages.fault(sequence, [0]).slots["offset"].astype(np.int64)
    stream.copy(Direction.TO_HOST, pool, slot, np.zeros(BLOCK, np.uint8), np.zeros(1, np.int64), BLOCK)
    event = stream.record_event()
    ticket = pages.calls.suspend(pages.session, [sequence], events=[(0, event)])
    assert not ticket.done
    assert pages.states(sequence, [0]) == [WRITABLE]
    stream.release_held()
    assert event.wait(PATIENCE_S)
    pages.rig.host.tick()
    assert ticket.wait(PATIENCE_S)
    assert ticket.reply().left == 1


def _on_disk(pages: Pages) -> int:
    store = pages.rig.host.memory.store
    assert store is not None
    return store.usage().live_blocks
