"""What fails becomes recompute: never wrong KV, never a block that is not given back, never an engine that stops."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hybridkv.connectors.vllm.transfer import HostTransfer
from hybridkv.service.config import Config, load_config
from hybridkv.service.in_thread import DaemonThread
from tests.connectors.vllm.conftest import MakeEngine
from tests.connectors.vllm.rig import BLOCK_TOKENS, FakeEngine, FakeRequest, Output, full_group

PROMPT = list(range(12 * BLOCK_TOKENS + 3))
HIT = 12 * BLOCK_TOKENS


def _remove(engine: FakeEngine, request: FakeRequest, first: int, group: int = 0) -> None:
    kv = engine.doors.of(engine.spaces[group]).kv
    assert kv is not None
    kv.remove(request.block_hashes[first:])


def _break(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    original = HostTransfer.scatter

    def scatter(self: HostTransfer, layer: int, stacks: Any, ids: Any) -> None:
        if layer == at:
            raise OSError("broken in the middle")
        original(self, layer, stacks, ids)

    monkeypatch.setattr(HostTransfer, "scatter", scatter)


def test_blocks_that_went_after_the_lookup_are_reported(make_engine: MakeEngine) -> None:
    engine = make_engine(settings={"load": "sync"})
    engine.serve(FakeRequest("a", PROMPT))
    request = FakeRequest("b", PROMPT)
    assert engine.admit(request) == (HIT, False)
    _remove(engine, request, 9)
    results = engine.run(engine.new_output(request, HIT, 3), {request: (HIT, 3)})
    assert results.failed_ids == set(engine.tables["b"][0][9:12])
    engine.run(engine.cached_output(request, 9 * BLOCK_TOKENS, 51), {request: (9 * BLOCK_TOKENS, 48)})
    engine.check(request)
    engine.finish(request)
    assert engine.serve(FakeRequest("c", PROMPT)) == HIT, "what was computed again is stored"


@pytest.mark.parametrize("load", ["sync", "async"])
def test_a_load_that_breaks_half_way_fails_as_a_whole(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, load: str
) -> None:
    engine = make_engine(settings={"load": load})
    engine.serve(FakeRequest("a", PROMPT))
    _break(monkeypatch, 1)
    request = FakeRequest("b", PROMPT)
    engine.admit(request)
    results = engine.run(engine.new_output(request, HIT, 3) if load == "sync" else Output())
    while load == "async" and "b" not in results.received:
        results = engine.run(Output())
    assert results.failed_ids == set(engine.tables["b"][0][:12])
    assert engine.scheduler.matched(request, 0) == (0, False), "offered again it would fail for ever"
    engine.finish(request)


def test_nothing_computed_on_blocks_that_did_not_come_is_stored(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the step of the failed load nor in one that was planned before the scheduler heard of it."""
    engine = make_engine(settings={"load": "sync"})
    engine.serve(FakeRequest("a", PROMPT))
    longer = FakeRequest("b", PROMPT + list(range(500, 600)))
    engine.admit(longer)
    _break(monkeypatch, 1)
    first = engine.scheduler.step(engine.new_output(longer, HIT, 32))
    second = engine.scheduler.step(engine.cached_output(longer, HIT + 32, 71))
    assert first.stores
    assert second.stores
    engine.worker.preempt(first)
    engine.worker.start(first)
    engine.worker.save(first)
    engine.worker.preempt(second)
    engine.worker.save(second)
    engine.tell()
    engine.settle()
    found = engine.doors.of(engine.spaces[0]).ask(lambda kv: kv.lookup(longer.block_hashes).prefix, -1)
    assert found == 12
    monkeypatch.undo()
    end = longer.num_tokens
    engine.run(engine.cached_output(longer, 0, end), {longer: (0, end)})
    engine.check(longer)
    engine.finish(longer)
    assert engine.serve(FakeRequest("c", longer.tokens)) == 18 * BLOCK_TOKENS


def test_with_several_groups_the_request_fails(make_engine: MakeEngine) -> None:
    engine = make_engine(full_group(0), full_group(1, window=64))
    engine.serve(FakeRequest("a", PROMPT))
    request = FakeRequest("b", PROMPT)
    assert engine.admit(request) == (HIT, True)
    _remove(engine, request, 11, group=1)
    while "b" not in (results := engine.run(Output())).received:
        pass
    assert results.failed == {"b"}
    assert results.failed_ids == set()
    engine.finish(request)


def test_an_aborted_load_is_reported_once(make_engine: MakeEngine) -> None:
    engine = make_engine(settings={"load": "async"})
    engine.serve(FakeRequest("a", PROMPT))
    request = FakeRequest("b", PROMPT)
    engine.admit(request)
    step = engine.scheduler.step(Output())
    assert engine.scheduler.finished(request) is False
    results = engine.work(step, {})
    received = set(results.received)
    while "b" not in received:
        results = engine.run(Output())
        received |= results.received
        assert results.sent == set()


def test_a_preempted_requests_blocks_are_read_no_more(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    request = FakeRequest("a", PROMPT)
    engine.admit(request)
    with _holding_gather(monkeypatch) as (begun, let_go):
        engine.run(engine.new_output(request, 0, 40), {request: (0, 32)})
        assert begun.wait(10)
        engine.run(engine.cached_output(request, 40, 100), {request: (32, 96)})
        request.status.name = "PREEMPTED"
        step = engine.scheduler.step(Output())
        assert step.preempted == {"a"}
        flushing = threading.Thread(target=engine.worker.preempt, args=(step,))
        flushing.start()
        flushing.join(0.05)
        assert flushing.is_alive(), "a copy that has begun is waited for"
        let_go.set()
        flushing.join(10)
        assert not flushing.is_alive()
    engine.worker.save(step)
    engine.tell()
    request.status.name = "RUNNING"
    engine.tables["a"] = [[40 + i for i in range(13)]]
    engine.run(engine.cached_output(request, 0, 195, resumed=True), {request: (0, 195)})
    engine.finish(request)
    assert engine.serve(FakeRequest("b", PROMPT)) == HIT


@contextmanager
def _holding_gather(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    begun, let_go, original = threading.Event(), threading.Event(), HostTransfer.gather

    def gather(self: HostTransfer, layer: int, stacks: Any, ids: Any, computed: Any) -> None:
        begun.set()
        assert let_go.wait(10)
        original(self, layer, stacks, ids, computed)

    with monkeypatch.context() as patch:
        patch.setattr(HostTransfer, "gather", gather)
        yield begun, let_go


def test_a_finished_request_keeps_its_blocks_until_they_are_copied(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    request = FakeRequest("a", PROMPT)
    engine.admit(request)
    with _holding_gather(monkeypatch) as (begun, let_go):
        engine.run(engine.new_output(request, 0, 195), {request: (0, 195)})
        assert begun.wait(10)
        assert engine.scheduler.finished(request) is True
        assert engine.run(Output()).sent == set()
        let_go.set()
        engine.idle_until_sent("a")
    engine.settle()


def test_an_engine_that_stored_nothing_keeps_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(settings={"store": False})
    request = FakeRequest("a", PROMPT)
    engine.admit(request)
    engine.run(engine.new_output(request, 0, 195), {request: (0, 195)})
    assert engine.scheduler.finished(request) is False


def test_a_cpu_tier_that_is_far_too_small(make_engine: MakeEngine, daemon: DaemonThread) -> None:
    """16 MiB in all; every prompt's blocks are evicted by the next ones', and what is loaded is right."""
    engine = make_engine(full_group(0, layers=12))
    for number in range(40):
        start = 1000 * (number % 13)
        engine.serve(FakeRequest(f"r{number}", list(range(start, start + 40 * BLOCK_TOKENS))))
    blocks = daemon.host.stats()["blocks"]
    assert isinstance(blocks, int)
    assert 0 < blocks < 13 * 40


class TestDaemonOutages:
    @pytest.fixture
    def config(self, tmp_path: Path) -> Config:
        overrides = {
            "daemon.socket": f"unix://{tmp_path}/o/kv.sock",
            "cpu.shm_dir": str(tmp_path),
            "cpu.capacity_bytes": "16MiB",
        }
        return load_config(overrides=overrides, env={})

    def test_no_daemon_then_one_then_none_then_another(self, config: Config) -> None:
        engine = FakeEngine(config.daemon.socket, settings={"timeout_s": 0.5})
        try:
            assert engine.serve(FakeRequest("a", PROMPT)) == 0
            with DaemonThread(config) as daemon:
                self._wait(lambda: engine.doors.of(engine.spaces[0]).kv is not None)
                assert engine.serve(FakeRequest("b", PROMPT)) == 0
                assert engine.serve(FakeRequest("c", PROMPT)) == HIT
                assert daemon.host.check() == []
            assert engine.serve(FakeRequest("d", PROMPT)) == 0
            assert engine.serve(FakeRequest("e", PROMPT)) == 0
            with DaemonThread(config) as daemon:
                self._wait(lambda: engine.doors.of(engine.spaces[0]).kv is not None)
                engine.serve(FakeRequest("f", PROMPT))
                assert engine.serve(FakeRequest("g", PROMPT)) == HIT
                assert daemon.host.stats()["leases"] == 0
        finally:
            engine.close()

    def test_a_daemon_that_goes_while_blocks_are_copied(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        original = HostTransfer.scatter
        daemon = DaemonThread(config)

        def scatter(transfer: HostTransfer, layer: int, stacks: Any, ids: Any) -> None:
            if layer == 1:
                daemon.stop()
            original(transfer, layer, stacks, ids)

        with daemon:
            engine = FakeEngine(config.daemon.socket, settings={"load": "sync", "timeout_s": 0.5})
            try:
                engine.serve(FakeRequest("a", PROMPT))
                monkeypatch.setattr(HostTransfer, "scatter", scatter)
                request = FakeRequest("b", PROMPT)
                assert engine.admit(request) == (HIT, False)
                results = engine.run(engine.new_output(request, HIT, 3))
                assert results.failed_ids in (set(), set(engine.tables["b"][0][:12]))
                if not results.failed_ids:
                    engine.check(request)
                engine.finish(request)
            finally:
                engine.close()

    @staticmethod
    def _wait(condition: Callable[[], bool]) -> None:
        waiting = threading.Event()
        for _ in range(2000):
            if condition():
                return
            waiting.wait(0.01)
        raise AssertionError("never came true")


def test_a_hint_that_is_wrong_is_left_out(make_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine()
    wrong = {"hybridkv.priority": "urgent", "hybridkv.request_class": 999, "hybridkv.colour": 1, "other": "kept out"}
    assert engine.serve(FakeRequest("a", PROMPT, params=wrong)) == 0
    assert engine.serve(FakeRequest("b", PROMPT)) == HIT
    said = caplog.text
    assert "hybridkv.priority" in said
    assert "request_class" in said
    assert "hybridkv.colour" in said
    assert "other" not in said
