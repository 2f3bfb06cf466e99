"""The two halves together, over a real daemon: what is stored is found, loaded and right."""

import threading
import time
from collections import Counter
from typing import Any

import pytest

from hybridkv.connectors.vllm import stores, worker
from hybridkv.connectors.vllm.metadata import Handshake
from hybridkv.connectors.vllm.transfer import HostTransfer
from hybridkv.service.client.verbs import Request
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from tests.connectors.vllm.conftest import MakeEngine
from tests.connectors.vllm.rig import BLOCK_TOKENS, LAYERS, FakeRequest, Output, full_group

PROMPT = list(range(20 * BLOCK_TOKENS + 3))
"""20 blocks and a bit: more than the 8 keys that one call takes here."""


@pytest.mark.parametrize("load", ["sync", "async", "auto"])
def test_a_second_engine_loads_what_the_first_computed(make_engine: MakeEngine, load: str) -> None:
    first, second = make_engine(settings={"load": load}), make_engine(settings={"load": load})
    assert first.serve(FakeRequest("a", PROMPT)) == 0
    assert second.serve(FakeRequest("b", PROMPT)) == 20 * BLOCK_TOKENS


def test_requests_of_an_engine_that_makes_no_step_any_more_end(
    make_engine: MakeEngine, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would tell of their end with a step that does not come."""
    monkeypatch.setattr(stores, "IDLE_S", 0.05)
    engine, request = make_engine(), FakeRequest("a", PROMPT)
    tokens, _ = engine.admit(request)
    engine.run(engine.new_output(request, tokens, len(PROMPT) - tokens))
    until = time.monotonic() + 30.0
    while host.stats()["requests"] or host.stats()["blocks"] != 20:
        assert time.monotonic() < until, "the request stays open"
        time.sleep(0.01)


def test_a_step_that_computes_nothing_waits_for_an_asynchronous_load(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that spins would take the interpreter's lock from the load; and it hears of its end at once."""
    monkeypatch.setattr(worker, "EMPTY_STEP_S", 30.0)
    first, second = make_engine(), make_engine(settings={"load": "async"})
    first.serve(FakeRequest("a", PROMPT))
    steps = second.steps
    assert second.serve(FakeRequest("b", PROMPT)) == 20 * BLOCK_TOKENS
    assert second.steps - steps <= 3


def test_loads_tell_the_daemon_what_computing_a_block_would_take(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float | None] = []
    acquire = Request.acquire

    def noted(self: Request, keys: Any, **given: Any) -> Any:
        told.append(given["recompute_s"])
        return acquire(self, keys, **given)

    monkeypatch.setattr(Request, "acquire", noted)
    engine, unwilling = make_engine(), make_engine(settings={"use_recompute_s": False})
    engine.serve(FakeRequest("a", PROMPT))
    assert not told, "nothing was loaded"
    for one in (engine, unwilling):
        one.serve(FakeRequest("b", PROMPT))
    rate = engine.worker._rate.seconds_for(BLOCK_TOKENS)
    assert rate is not None
    assert set(told) == {rate, None}
    assert rate > 0


def test_a_full_hit_leaves_one_token(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = PROMPT[: 4 * BLOCK_TOKENS]
    engine.serve(FakeRequest("a", prompt))
    assert engine.serve(FakeRequest("b", prompt)) == 4 * BLOCK_TOKENS - 1


def test_a_partial_hit_and_a_prompt_shorter_than_a_block(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(FakeRequest("a", PROMPT))
    other = PROMPT[: 5 * BLOCK_TOKENS + 2] + [7] * 40
    assert engine.serve(FakeRequest("b", other)) == 5 * BLOCK_TOKENS
    assert engine.serve(FakeRequest("c", PROMPT[: BLOCK_TOKENS - 1])) == 0


def test_requests_without_a_full_block_and_tails_are_counted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for number, tokens in enumerate((BLOCK_TOKENS - 1, BLOCK_TOKENS, 2 * BLOCK_TOKENS + 3)):
        engine.serve(FakeRequest(f"{number}", PROMPT[:tokens]))
    taken = engine.counters.take()
    assert (taken["short_requests"], taken["tail_tokens"]) == (1, BLOCK_TOKENS - 1 + 3)


def test_a_miss_costs_one_call_of_the_scheduler_and_none_of_the_worker(
    make_engine: MakeEngine, daemon: DaemonThread
) -> None:
    """What a request pays for a cache that has nothing of it, when nothing is stored either."""
    engine, request = make_engine(), FakeRequest("a", PROMPT[: 4 * BLOCK_TOKENS])
    engine.scheduler.matched(FakeRequest("b", list(range(900, 900 + BLOCK_TOKENS))), 0)  # attaches
    before = calls_of(daemon)
    assert engine.scheduler.matched(request, 0) == (0, False)
    assert calls_of(daemon) - before == {"KVCache.Lookup": 1}
    assert engine.scheduler.step(Output()).loads == []
    assert calls_of(daemon) - before == {"KVCache.Lookup": 1}


def calls_of(daemon: DaemonThread) -> Counter[str]:
    calls: list[dict[str, Any]] = daemon.daemon.stats()["calls"]
    return Counter({call["method"]: call["count"] for call in calls if call["method"].startswith("KVCache.")})


def test_what_the_engine_has_itself_is_not_counted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(FakeRequest("a", PROMPT))
    request = FakeRequest("b", PROMPT)
    engine.scheduler.arrived(request)
    assert engine.scheduler.matched(request, 6 * BLOCK_TOKENS) == (14 * BLOCK_TOKENS, False)
    assert engine.scheduler.matched(request, 20 * BLOCK_TOKENS) == (0, False)


def test_asking_has_no_effect(make_engine: MakeEngine, host: Host) -> None:
    engine = make_engine()
    engine.serve(FakeRequest("a", PROMPT))
    before = host.stats()
    request = FakeRequest("b", PROMPT)
    for _ in range(5):
        assert engine.scheduler.matched(request, 0) == (20 * BLOCK_TOKENS, False)
    after = host.stats()
    assert (after["leases"], after["blocks"]) == (0, before["blocks"])
    assert engine.scheduler.step(Output()).loads == []


def test_salts_and_tenants_share_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(FakeRequest("a", PROMPT, salt="one"))
    assert engine.serve(FakeRequest("b", PROMPT, salt="two")) == 0
    assert engine.serve(FakeRequest("c", PROMPT, salt="one")) == 20 * BLOCK_TOKENS
    assert make_engine(salt="tenant").serve(FakeRequest("d", PROMPT, salt="one")) == 0


def test_chunked_prefill_and_generation_are_stored_as_blocks_fill(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request = FakeRequest("a", PROMPT[: 4 * BLOCK_TOKENS + 10])
    engine.admit(request)
    engine.run(engine.new_output(request, 0, 40), {request: (0, 48)})
    engine.run(engine.cached_output(request, 40, 34), {request: (32, 42)})
    for token in range(900, 912):
        request.append(token)
        at = request.num_tokens - 1
        engine.run(engine.cached_output(request, at, 1), {request: (at // 16 * 16, 16)} if (at + 1) % 16 == 0 else {})
    engine.finish(request)
    longer = FakeRequest("b", [*request.tokens, 1, 2, 3])
    assert make_engine().serve(longer) == 5 * BLOCK_TOKENS


def test_tokens_that_are_only_guessed_are_not_stored(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request = FakeRequest("a", PROMPT[: BLOCK_TOKENS - 2])
    engine.admit(request)
    step = engine.scheduler.step(engine.new_output(request, 0, BLOCK_TOKENS + 5))  # drafts behind the prompt
    assert step.stores == []


def test_each_layer_waits_for_its_own_bytes_only(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(settings={"load": "sync"})
    engine.serve(FakeRequest("a", PROMPT))
    let_go = _hold_layer(monkeypatch, LAYERS - 1)
    request = FakeRequest("b", PROMPT)
    engine.admit(request)
    step = engine.scheduler.step(engine.new_output(request, 320, 3))
    engine.worker.preempt(step)
    engine.worker.start(step)
    layers = sorted(engine.caches)
    for layer in layers[:-1]:
        engine.worker.wait_layer(layer)  # would hang here if it waited for more than its own
    last = threading.Thread(target=engine.worker.wait_layer, args=(layers[-1],))
    last.start()
    last.join(0.05)
    assert last.is_alive()
    let_go.set()
    last.join(10)
    engine.worker.save(step)
    engine.check(request)
    engine.finish(request)


def _hold_layer(monkeypatch: pytest.MonkeyPatch, held: int) -> threading.Event:
    let_go, original = threading.Event(), HostTransfer.scatter

    def scatter(self: HostTransfer, layer: int, stacks: Any, ids: Any) -> None:
        if layer == held:
            assert let_go.wait(10)
        original(self, layer, stacks, ids)

    monkeypatch.setattr(HostTransfer, "scatter", scatter)
    return let_go


def test_groups_agree_on_the_shortest_and_a_window_needs_its_end_only(make_engine: MakeEngine, host: Host) -> None:
    groups = (full_group(0), full_group(1, window=3 * BLOCK_TOKENS))
    engine = make_engine(*groups)
    prompt = PROMPT[: 10 * BLOCK_TOKENS + 1]
    assert engine.serve(FakeRequest("a", prompt)) == 0
    request = FakeRequest("b", prompt)
    kv = engine.doors.of(engine.spaces[1]).kv
    assert kv is not None
    kv.remove(request.block_hashes[:6])
    assert engine.scheduler.matched(request, 0) == (10 * BLOCK_TOKENS, True)
    kv.remove(request.block_hashes[8:9])
    assert engine.scheduler.matched(request, 0) == (0, False)


def test_a_place_that_a_window_has_passed_is_left_out(make_engine: MakeEngine) -> None:
    engine = make_engine(full_group(0), full_group(1, window=2 * BLOCK_TOKENS))
    prompt = PROMPT[: 6 * BLOCK_TOKENS + 1]
    engine.serve(FakeRequest("a", prompt))
    request = FakeRequest("b", prompt)
    tokens, asynchronous = engine.scheduler.matched(request, 0)
    engine.allocate(request, request.num_tokens)
    engine.tables["b"][1][:4] = [0, 0, 0, 0]
    engine.scheduler.allocated(request, engine.table(request), tokens)
    while "b" not in engine.run(Output()).received:
        pass
    engine.run(engine.new_output(request, tokens, 1), {})
    assert asynchronous
    engine.check(request)
    engine.finish(request)


def test_several_ranks_agree_on_the_shortest(make_engine: MakeEngine) -> None:
    ranks = [make_engine(rank=i, world=2) for i in range(2)]
    for rank in ranks:
        rank.serve(FakeRequest("a", PROMPT))
    plan = ranks[0].scheduler
    plan.attach([Handshake(rank.spaces) for rank in ranks])
    request = FakeRequest("b", PROMPT)
    assert plan.matched(request, 0) == (20 * BLOCK_TOKENS, True)
    kv = ranks[1].doors.of(ranks[1].spaces[0]).kv
    assert kv is not None
    kv.remove(request.block_hashes[12:13])
    assert plan.matched(request, 0) == (12 * BLOCK_TOKENS, True)


def test_hints_reach_the_daemon(make_engine: MakeEngine, host: Host) -> None:
    engine = make_engine()
    assert engine.serve(FakeRequest("a", PROMPT, params={"hybridkv.no_store": True})) == 0
    assert host.stats()["blocks"] == 0
    engine.serve(FakeRequest("b", PROMPT, params={"hybridkv.request_class": 7, "hybridkv.priority": "high"}))
    assert engine.serve(FakeRequest("c", PROMPT, params={"hybridkv.end_of_session": True})) == 20 * BLOCK_TOKENS
    engine.worker.close()
    assert host.stats()["requests"] == 0


def test_reset_clears_each_namespace(make_engine: MakeEngine) -> None:
    engine = make_engine(full_group(0), full_group(1, window=64))
    assert engine.scheduler.reset()
    assert {space.fingerprint for space in engine.cleared} == {space.fingerprint for space in engine.spaces}


def test_figures_are_counted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(FakeRequest("a", PROMPT))
    engine.serve(FakeRequest("b", PROMPT))
    engine.worker.close()
    taken = engine.counters.take()
    size = engine.layouts[0].payload_bytes
    assert (taken["stored_blocks"], taken["stored_bytes"]) == (20, 20 * size)
    assert (taken["loaded_blocks"], taken["loaded_bytes"], taken["hit_tokens"]) == (20, 20 * size, 320)
    assert engine.counters.take() == {}
