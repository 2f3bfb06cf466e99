"""How requests are handed out: in order, of each session one at a time; and workers that die are told apart."""

from pathlib import Path

import numpy as np
import pytest

from hybridkv.benchmarks.demo_crew import SessionQueue, WorkerProcess
from hybridkv.benchmarks.workload import TAU_BENCH, Request
from hybridkv.tiers.errors import UnavailableError


def request(index: int, session: int | None) -> Request:
    return Request(index, session, np.array([index]))


def taken(queue: SessionQueue) -> int | None:
    found = queue.take()
    return None if found is None else found.index


def test_a_session_waits_for_its_own_answer_and_others_do_not() -> None:
    requests = [request(0, 1), request(1, 1), request(2, 2), request(3, 1), request(4, 2)]
    queue = SessionQueue(requests)
    assert taken(queue) == 0
    assert taken(queue) == 2
    assert taken(queue) is None
    queue.done(requests[0])
    assert taken(queue) == 1
    queue.done(requests[2])
    assert taken(queue) == 4
    assert queue
    queue.done(requests[1])
    assert taken(queue) == 3
    assert not queue


def test_requests_without_a_session_wait_for_nobody() -> None:
    queue = SessionQueue([request(i, None) for i in range(3)])
    assert [taken(queue) for _ in range(4)] == [0, 1, 2, None]


def test_a_worker_that_ends_is_reported_with_what_it_said(tmp_path: Path) -> None:
    worker = WorkerProcess("", TAU_BENCH, 1, tmp_path / "log")  # no address: it gives up at once
    try:
        with pytest.raises(UnavailableError, match=r"ended with code 1: [\s\S]*InvalidArgumentError"):
            worker.answer()
    finally:
        worker.kill()
