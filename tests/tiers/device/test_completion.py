"""Completions and the worker thread behind them."""

import logging
import threading

import pytest

from hybridkv.tiers.device.completion import Completion
from hybridkv.tiers.device.worker import SerialWorker
from hybridkv.tiers.errors import UnavailableError


def test_it_ends_once() -> None:
    completion = Completion()
    heard: list[Completion] = []
    completion.add_done_callback(heard.append)
    assert not completion.wait(0)
    completion.finish(UnavailableError("first"))
    completion.finish()
    assert completion.wait(0)
    assert str(completion.error) == "first"
    assert heard == [completion]
    assert "first" in repr(completion)


def test_a_callback_that_fails_is_logged_and_the_next_one_called(caplog: pytest.LogCaptureFixture) -> None:
    completion = Completion()
    heard: list[Completion] = []

    def fails(_: Completion) -> None:
        raise ValueError("mine")

    completion.add_done_callback(fails)
    completion.add_done_callback(heard.append)
    with caplog.at_level(logging.ERROR):
        completion.finish()
    assert heard == [completion]
    assert "callback failed" in caplog.text


def test_a_task_that_fails_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker, ran = SerialWorker("w"), threading.Event()

    def fails() -> None:
        raise ValueError("mine")

    with caplog.at_level(logging.ERROR):
        worker.submit(fails)
        worker.submit(ran.set)
        worker.close()
    assert ran.is_set()
    assert "a task of w failed" in caplog.text


def test_a_closed_worker_has_run_all_and_takes_no_more() -> None:
    worker = SerialWorker("w")
    order: list[int] = []
    for number in range(100):
        worker.submit(lambda number=number: order.append(number))  # type: ignore[misc]
    worker.close()
    worker.close()
    assert order == list(range(100))
    with pytest.raises(UnavailableError, match="closed"):
        worker.submit(worker.close)
