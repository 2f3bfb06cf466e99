"""Reports of reads that made no call: each is told once, the most recent first."""

import threading

import pytest

from hybridkv.service.client import reports
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.reports import AccessReports, Counts, summed
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import DeadlineExceededError, ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from tests.service.client.scripted import Scripted, numbered

Told = list[list[tuple[int, int]]]


def told_of(transport: Scripted) -> Told:
    return transport.asked("told")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told but by a flush."""
    monkeypatch.setattr(reports, "REPORT_S", 3600.0)


def test_a_key_stands_where_it_was_read_last_with_all_its_reads() -> None:
    keys, counts = summed([(numbered(1, 2), None), (numbered(3), None), (numbered(2, 4), None)])
    assert keys == numbered(2, 4, 3, 1)
    assert counts.tolist() == [2, 1, 1, 1]


def test_nothing_read_is_nothing_told() -> None:
    keys, counts = summed([])
    assert (len(keys), len(counts)) == (0, 0)


@pytest.mark.usefixtures("quiet")
def test_the_oldest_are_told_first_in_calls_of_a_limited_size() -> None:
    transport = Scripted()
    told = AccessReports(transport.touch, 2)
    for number in (1, 2, 3, 1):
        told.note(numbered(number))
    told.flush()
    assert told_of(transport) == [[(3, 1), (2, 1)], [(1, 2)]]
    told.flush()
    assert sum(count for call in told_of(transport) for _, count in call) == 4


@pytest.mark.usefixtures("quiet")
def test_what_is_refused_is_kept_and_told_with_what_came_since() -> None:
    transport = Scripted()
    told = AccessReports(transport.touch, 4)
    told.note(numbered(1, 2))
    transport.failure = ResourceExhaustedError("busy", "later")
    with pytest.raises(ResourceExhaustedError):
        told.flush()
    transport.failure = None
    told.note(numbered(2))
    transport.calls.clear()
    told.flush()
    assert told_of(transport) == [[(2, 2), (1, 1)]]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("error", [DeadlineExceededError("slow"), LostError("gone")])
def test_what_may_have_been_told_is_not_told_twice(error: Exception) -> None:
    transport = Scripted()
    told = AccessReports(transport.touch, 4)
    told.note(numbered(1))
    transport.failure = error
    with pytest.raises(type(error)):
        told.flush()
    transport.failure = None
    transport.calls.clear()
    told.flush()
    assert told_of(transport) == []


@pytest.mark.usefixtures("quiet")
def test_the_end_of_a_session_tells_what_is_left() -> None:
    transport = Scripted()
    attachment = Attachment(transport)
    attachment.reports.note(numbered(1))
    attachment.close(detach=True)
    assert told_of(transport) == [[(1, 1)]]
    assert transport.closed == [True]


@pytest.mark.usefixtures("quiet")
def test_a_session_that_was_lost_tells_nobody() -> None:
    transport = Scripted()
    attachment = Attachment(transport)
    attachment.reports.note(numbered(1))
    attachment.close(detach=False)
    assert told_of(transport) == []


@pytest.mark.usefixtures("quiet")
def test_full_until_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PENDING_KEYS", 4)
    told = AccessReports(Scripted().touch, 4)
    told.note(numbered(1, 2, 3))
    assert not told.full
    told.note(numbered(1))
    assert told.full
    told.flush()
    assert not told.full


def test_the_thread_tells_by_itself_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REPORT_S", 0.001)
    seen, arrived = [], threading.Semaphore(0)

    def touch(keys: Keys, counts: Counts, *, timeout_s: float) -> int:
        seen.append((keys, counts.tolist()))
        arrived.release()
        return 0

    told = AccessReports(touch, 4)
    for number in (1, 2, 3):
        told.note(numbered(number))
        assert arrived.acquire(timeout=10)
    told.close(tell=True)
    assert seen == [(numbered(1), [1]), (numbered(2), [1]), (numbered(3), [1])]


def test_a_lost_session_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REPORT_S", 0.001)
    asked = threading.Event()

    def touch(keys: Keys, counts: Counts, *, timeout_s: float) -> int:
        asked.set()
        raise LostError("gone")

    told = AccessReports(touch, 4)
    told.note(numbered(1))
    assert asked.wait(10)
    told.close(tell=True)
    assert not told.full
