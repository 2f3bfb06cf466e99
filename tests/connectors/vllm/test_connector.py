"""`HybridKVConnector` itself, called as vLLM 0.32 and 0.33 call it, without vLLM."""

import importlib
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from tests.connectors.vllm import fake_vllm
from tests.connectors.vllm.rig import BLOCK_TOKENS, BLOCKS, DIM, HEADS, LAYERS, FakeRequest, Output

PROMPT = list(range(6 * BLOCK_TOKENS + 2))
NAMES = [f"model.layers.{i}.attn" for i in range(LAYERS)]


class Pair:
    """The scheduler's connector and a worker's, with what vLLM carries between them pickled on the way."""

    def __init__(self, kind: Any, config: Any, caches: dict[str, torch.Tensor]) -> None:
        spec = type("FullAttentionSpec", (), {"block_size": BLOCK_TOKENS})()
        group = SimpleNamespace(layer_names=NAMES, kv_cache_spec=spec)
        kv_cache_config = SimpleNamespace(kv_cache_groups=[group], num_blocks=BLOCKS)
        self.worker = kind(config, fake_vllm.KVConnectorRole.WORKER, kv_cache_config)
        self.worker.register_kv_caches(caches)
        self.scheduler = kind(config, fake_vllm.KVConnectorRole.SCHEDULER, kv_cache_config)
        handshake = pickle.loads(pickle.dumps(self.worker.get_handshake_metadata()))
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
        self.invalid: set[int] = set()

    def step(self, output: Output, finished: set[str] | None = None) -> Any:
        metadata = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))
        self.worker.handle_preemptions(metadata)
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(None)
        for name in NAMES:
            self.worker.wait_for_layer_load(name)
            self.worker.save_kv_layer(name, None, None)
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(finished or set())
        self.invalid |= self.worker.get_block_ids_with_load_errors()
        report = pickle.loads(pickle.dumps(self.worker.build_connector_worker_meta()))
        self.worker.clear_connector_metadata()
        carried = SimpleNamespace(finished_recving=results.finished_recving, kv_connector_worker_meta=report)
        self.scheduler.update_connector_output(carried)
        return results

    def serve(self, request: FakeRequest, first_block: int) -> int:
        blocks = list(range(first_block, first_block + 7))
        self.scheduler.on_new_request(request)
        tokens, asynchronous = self.scheduler.get_num_new_matched_tokens(request, 0)
        assert not asynchronous
        allocated = SimpleNamespace(get_block_ids=lambda: (blocks,))
        self.scheduler.update_state_after_alloc(request, allocated, tokens)
        new = SimpleNamespace(req_id=request.request_id, block_ids=(blocks,), num_computed_tokens=tokens)
        self.step(Output([new], num_scheduled_tokens={request.request_id: request.num_tokens - tokens}))
        return int(tokens)

    def finish(self, request: FakeRequest) -> None:
        held, _ = self.scheduler.request_finished_all_groups(request, ([],))
        sent = not held
        while not sent:
            sent = request.request_id in self.step(Output(), {request.request_id}).finished_sending

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake_vllm.install(monkeypatch)
    return importlib.import_module("hybridkv.connectors.vllm").HybridKVConnector


@pytest.fixture
def caches() -> dict[str, torch.Tensor]:
    return {name: torch.rand(BLOCKS, HEADS, BLOCK_TOKENS, 2 * DIM) for name in NAMES}


@pytest.fixture
def pair(kind: Any, daemon: DaemonThread, caches: dict[str, torch.Tensor]) -> Iterator[Pair]:
    made = Pair(kind, fake_vllm.config(daemon.address), caches)
    yield made
    made.close()
    assert daemon.host.check() == []
    assert daemon.host.stats()["sessions"] == 0


def test_a_request_is_stored_and_the_next_one_is_loaded(pair: Pair, caches: dict[str, torch.Tensor]) -> None:
    first, second = FakeRequest("a", PROMPT), FakeRequest("b", PROMPT)
    assert pair.serve(first, 1) == 0
    pair.finish(first)
    pair.worker._worker._storer.close()
    for name in NAMES:
        caches[name][20:30] = 0
    assert pair.serve(second, 20) == 6 * BLOCK_TOKENS
    for name in NAMES:
        assert torch.equal(caches[name][20:26], caches[name][1:7])
    assert pair.invalid == set()
    sources = pair.scheduler.get_external_cache_hit_sources(second, 96)
    assert {source.name: tokens for source, tokens in sources.items()} == {"HOST": 96}


def test_asleep_nothing_is_touched_and_after_waking_it_goes_on(pair: Pair, caches: dict[str, torch.Tensor]) -> None:
    request = FakeRequest("a", PROMPT)
    assert pair.serve(request, 1) == 0
    pair.finish(request)
    pair.worker.unregister_kv_caches()
    pair.step(Output())
    woken = {name: torch.zeros_like(cache) for name, cache in caches.items()}
    pair.worker.restore_kv_caches(woken)
    assert pair.serve(FakeRequest("b", PROMPT), 30) == 6 * BLOCK_TOKENS
    for name in NAMES:
        assert torch.equal(woken[name][30:36], caches[name][1:7])


def test_reset_clears_the_daemon(pair: Pair, daemon: DaemonThread) -> None:
    request = FakeRequest("a", PROMPT)
    pair.serve(request, 1)
    pair.finish(request)
    pair.worker.unregister_kv_caches()
    assert daemon.host.stats()["blocks"] == 6
    assert pair.scheduler.reset_cache()
    assert daemon.host.stats()["blocks"] == 0


def test_it_is_a_cache_and_not_a_hand_off(pair: Pair, kind: Any) -> None:
    assert pair.scheduler.requires_kv_delivery is False
    assert kind.requires_piecewise_for_cudagraph({})
    assert not kind.requires_piecewise_for_cudagraph({"load": "async"})


def test_figures_are_vllms_own_kind(pair: Pair, kind: Any) -> None:
    from prometheus_client import CollectorRegistry, Counter

    request = FakeRequest("a", PROMPT)
    pair.serve(request, 1)
    pair.finish(request)
    pair.worker.unregister_kv_caches()
    stats = pair.worker.get_kv_connector_stats()
    rebuilt = kind.build_kv_connector_stats(dict(stats.data)).aggregate(pair.scheduler.get_kv_connector_stats())
    assert rebuilt.reduce()["stored_blocks"] == 6
    assert rebuilt.reduce()["lookup_count"] == 1
    assert pair.worker.get_kv_connector_stats() is None
    registry = CollectorRegistry()
    kinds = {"counter": lambda **given: Counter(**given, registry=registry)}
    prometheus = fake_prometheus(kind, kinds)
    prometheus.observe(rebuilt.data, 0)
    assert registry.get_sample_value("vllm:hybridkv_stored_blocks_total", {"engine": "0"}) == 6


def fake_prometheus(kind: Any, kinds: dict[str, Any]) -> Any:
    return kind.build_prom_metrics(None, kinds, ["engine"], {0: ["0"]})


def test_what_is_wrong_is_refused_at_start(kind: Any, caches: dict[str, torch.Tensor]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"kv_connector_extra_config\.colour: unknown"):
        Pair(kind, fake_vllm.config("unix:///nowhere", colour=1), caches)
    with pytest.raises(FailedPreconditionError, match="use_recompute_s needs kv_load_failure_policy=recompute"):
        Pair(kind, fake_vllm.config("unix:///nowhere", policy="fail", use_recompute_s=True), caches)


def test_a_policy_that_fails_requests_is_warned_of(
    kind: Any, daemon: DaemonThread, caches: dict[str, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    Pair(kind, fake_vllm.config(daemon.address, policy="fail"), caches).close()
    assert "set it to recompute" in caplog.text
