"""Tickets: answers that may still change."""

import threading

from hybridkv.migration.tickets import Ticket


def make() -> tuple[Ticket[int], list[str]]:
    said: list[str] = []
    return Ticket(lambda: len(said), lambda: said.append("abandoned")), said


def test_a_ticket_is_done_once_finished() -> None:
    ticket, _ = make()
    assert not ticket.done
    assert not ticket.wait(0)
    assert repr(ticket) == "Ticket(waiting)"
    ticket.finish()
    assert ticket.done
    assert ticket.wait(None)
    assert repr(ticket) == "Ticket(done)"


def test_callbacks_run_once_however_often_it_is_finished() -> None:
    ticket, said = make()
    ticket.add_done_callback(lambda: said.append("before"))
    ticket.finish()
    ticket.finish()
    assert said == ["before"]


def test_a_callback_added_late_runs_at_once() -> None:
    ticket, said = make()
    ticket.finish()
    ticket.add_done_callback(lambda: said.append("late"))
    assert said == ["late"]


def test_a_callback_may_ask_the_ticket() -> None:
    ticket, said = make()
    ticket.add_done_callback(lambda: said.append(f"{ticket.done} {ticket.reply()}"))
    ticket.finish()
    assert said == ["True 0"]


def test_the_reply_is_a_snapshot_before_and_after() -> None:
    ticket, said = make()
    assert ticket.reply() == 0
    said.append("something landed")
    assert ticket.reply() == 1


def test_abandoning_tells_the_owner() -> None:
    ticket, said = make()
    ticket.abandon()
    assert said == ["abandoned"]


def test_one_callback_each_when_many_threads_add_and_one_finishes() -> None:
    ticket, _ = make()
    heard = threading.Semaphore(0)
    threads = [threading.Thread(target=ticket.add_done_callback, args=(heard.release,)) for _ in range(8)]
    for thread in threads[:4]:
        thread.start()
    ticket.finish()
    for thread in threads[4:]:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in threads:
        assert heard.acquire(timeout=10)
    assert not heard.acquire(blocking=False)
