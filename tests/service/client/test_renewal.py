"""Keeping holds alive."""

import threading

import pytest

from hybridkv.service.client.renewal import Renewer
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import DeadlineExceededError
from tests.service.client.scripted import LIMIT, Scripted


class Held:
    """A hold that notes what it is told."""

    def __init__(self, hold_id: int) -> None:
        self.hold_id = hold_id
        self.renewals = 0
        self.lapsed = False

    def renewed(self, asked_at: float) -> None:
        self.renewals += 1

    def lapse(self) -> None:
        self.lapsed = True


def test_one_call_renews_all() -> None:
    transport = Scripted()
    renewer = Renewer(transport)
    holds = [Held(1), Held(2), Held(3)]
    for hold in holds:
        renewer.add(hold)
    renewer.discard(2)
    renewer.renew_now()
    assert transport.asked("renew") == [[1, 3]]
    assert [hold.renewals for hold in holds] == [1, 0, 1]
    renewer.close()


def test_requests_are_kept_open_with_the_holds() -> None:
    transport = Scripted()
    renewer = Renewer(transport)
    hold = Held(5)
    renewer.add(hold)
    renewer.add_request(1)
    renewer.add_request(2)
    renewer.discard_request(1)
    transport.alive = [True, False]  # a request that the daemon does not know is over already
    renewer.renew_now()
    assert transport.asked("renew") == [[5, 2]]
    assert hold.renewals == 1
    renewer.close()


def test_more_than_one_call_takes_are_renewed_in_several() -> None:
    transport = Scripted()
    renewer = Renewer(transport)
    holds = [Held(number) for number in range(LIMIT + 1)]
    for hold in holds:
        renewer.add(hold)
    renewer.add_request(99)
    renewer.renew_now()
    assert transport.asked("renew") == [[0, 1, 2, 3], [4, 99]]
    assert [hold.renewals for hold in holds] == [1] * (LIMIT + 1)
    renewer.close()


def test_no_call_while_nothing_is_held() -> None:
    transport = Scripted()
    renewer = Renewer(transport)
    renewer.renew_now()
    assert transport.calls == []


def test_what_the_daemon_does_not_know_lapses_and_is_not_asked_again() -> None:
    transport = Scripted()
    renewer = Renewer(transport)
    gone, kept = Held(1), Held(2)
    renewer.add(gone)
    renewer.add(kept)
    transport.alive = [False, True]
    renewer.renew_now()
    transport.alive = None
    renewer.renew_now()
    assert (gone.lapsed, kept.lapsed) == (True, False)
    assert transport.asked("renew") == [[1, 2], [2]]
    renewer.close()


def test_the_thread_renews_at_a_third_of_the_life() -> None:
    transport = Scripted(lease_s=0.03)
    renewer = Renewer(transport)
    often = threading.Event()

    class Counting(Held):
        def renewed(self, asked_at: float) -> None:
            super().renewed(asked_at)
            if self.renewals == 3:
                often.set()

    renewer.add(Counting(1))
    assert often.wait(10)
    renewer.close()


def test_a_lost_session_lapses_everything() -> None:
    transport = Scripted(lease_s=0.03)
    transport.lost = True
    renewer = Renewer(transport)
    lapsed = threading.Event()

    class Watched(Held):
        def lapse(self) -> None:
            super().lapse()
            lapsed.set()

    renewer.add(Watched(1))
    assert lapsed.wait(10)
    late = Held(2)
    renewer.add(late)
    assert late.lapsed


def test_a_daemon_that_is_slow_lapses_nothing() -> None:
    transport = Scripted()
    transport.failure = DeadlineExceededError("slow")
    renewer = Renewer(transport)
    hold = Held(1)
    renewer.add(hold)
    with pytest.raises(DeadlineExceededError):
        renewer.renew_now()
    assert not hold.lapsed
    renewer.close()
    assert hold.lapsed


def test_lost_during_a_round_is_told() -> None:
    transport = Scripted()
    transport.failure = LostError("gone")
    renewer = Renewer(transport)
    renewer.add(Held(1))
    with pytest.raises(LostError):
        renewer.renew_now()
    renewer.close()
