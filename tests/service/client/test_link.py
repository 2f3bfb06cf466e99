"""Attaching, and attaching again."""

import threading

import pytest

from hybridkv.service.client.core import Budget
from hybridkv.service.client.link import Attachment, Link
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NamespaceMismatchError,
    UnavailableError,
)
from tests.service.client.scripted import Dialed, Scripted, linked, numbered


def stats(attachment: Attachment, budget: Budget) -> int:
    found: int = attachment.transport.stats(timeout_s=budget.left_s())["epoch"]
    return found


def test_attaches_once_and_keeps_the_session() -> None:
    dial = Dialed(Scripted())
    link = Link(dial, 5.0, None)
    assert [link.run(stats) for _ in range(3)] == [1, 1, 1]
    assert dial.count == 1


def test_a_call_that_finds_the_session_lost_runs_on_a_new_one() -> None:
    first, second = Scripted(epoch=1), Scripted(epoch=2)
    link = linked(first, second)
    assert link.run(stats) == 1
    first.failure = LostError("broken")
    assert link.run(stats) == 2
    assert first.closed == [False]
    assert link.epoch_changes == 1


def test_a_session_known_to_be_lost_is_not_used_again() -> None:
    first, second = Scripted(), Scripted(epoch=2)
    link = linked(first, second)
    link.run(stats)
    first.lost = True
    assert link.run(stats) == 2
    assert first.asked("stats") == [None]


def test_epoch_change_is_told_with_both_epochs_and_only_when_it_changed() -> None:
    first, same, other = Scripted(epoch=1), Scripted(epoch=1, session=2), Scripted(epoch=5, session=3)
    told: list[tuple[int, int]] = []
    link = Link(Dialed(first, same, other), 5.0, lambda before, now: told.append((before, now)))
    link.run(stats)
    first.lost = True
    link.run(stats)
    assert told == []
    same.lost = True
    link.run(stats)
    assert told == [(1, 5)]
    assert link.epoch_changes == 1


def test_dials_again_while_nobody_answers() -> None:
    link = linked(UnavailableError("starting"), UnavailableError("starting"), Scripted(epoch=3))
    assert link.run(stats) == 3


def test_gives_up_when_the_time_is_over() -> None:
    with pytest.raises(UnavailableError, match="nobody is there"):
        linked(timeout_s=0.05).run(stats)


def test_a_daemon_that_is_lost_at_every_call_ends_the_call_in_time() -> None:
    class Lossy(Dialed):
        def __call__(self, timeout_s: float) -> Scripted:
            transport = Scripted()
            transport.failure = LostError("again")
            return transport

    with pytest.raises(UnavailableError, match="lost"):
        Link(Lossy(), 0.05, None).run(stats)


def test_a_refusal_is_not_tried_again() -> None:
    dial = Dialed(NamespaceMismatchError("fingerprint"), Scripted())
    with pytest.raises(NamespaceMismatchError):
        Link(dial, 5.0, None).run(stats)
    assert dial.count == 1


def test_closed_link_detaches_and_refuses_calls() -> None:
    transport = Scripted()
    link = linked(transport, Scripted())
    link.run(stats)
    link.close()
    link.close()
    assert transport.closed == [True]
    with pytest.raises(FailedPreconditionError, match="closed"):
        link.run(stats)


def test_threads_that_find_the_session_lost_attach_once() -> None:
    first = Scripted()
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Dialed):
        def __call__(self, timeout_s: float) -> Scripted:
            if self.count:
                entered.set()
                go_on.wait(10)
            return super().__call__(timeout_s)

    dial = Slow(first, Scripted(epoch=2))
    link = Link(dial, 5.0, None)
    link.run(stats)
    first.lost = True
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(link.run(stats))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert entered.wait(10)
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == [2] * 8
    assert dial.count == 2
    assert link.epoch_changes == 1


def test_negative_waiting_is_refused() -> None:
    link = linked(Scripted())
    with pytest.raises(InvalidArgumentError, match="timeout_s"):
        link.run(lambda attachment, budget: attachment.transport.touch(numbered(1), timeout_s=1.0), -1.0)


def test_budget_spans_the_waiting_and_the_rest() -> None:
    budget = Budget(2.0, 3.0)
    assert 1.5 < budget.wait_s() <= 2.0
    assert 4.5 < budget.left_s() <= 5.0
    assert Budget(0.0, 0.0).left_s() == 0.0
