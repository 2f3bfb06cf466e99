"""transformers with cached prefixes: tiny random models, real daemons."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
import transformers

import hybridkv
from hybridkv.connectors.transformers import PrefixCache, cached_generate, namespace_of
from hybridkv.connectors.transformers import blocks as block_copies
from hybridkv.connectors.transformers import prefix as prefix_module
from hybridkv.connectors.transformers.shapes import empty_cache, learned_shape
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import InvalidArgumentError
from tests.engines.tiny import llama, made, prompt
from tests.service.client.conftest import make_config
from tests.service.client.processes import ROOT, daemon_process, kill

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8}
LOGITS: dict[str, Any] = GREEDY | {"return_dict_in_generate": True, "output_logits": True}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Several threads only get into one another's way on models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    return llama()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonThread]:
    """Checks the laws and that nothing is held when the test is over."""
    with DaemonThread(make_config(tmp_path, cpu__capacity_bytes="64MiB")) as running:
        yield running
        assert running.host.check() == []
        left = running.host.stats()
        assert (left["leases"], left["reservations"], left["sessions"]) == (0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_export_and_import_change_no_logit(daemon: DaemonThread, dtype: torch.dtype) -> None:
    model, ids = llama(dtype=dtype), prompt(200)
    computed = _computed(model, ids[:, :192])
    with PrefixCache(model, daemon.address) as prefixes:
        assert prefixes.save(computed, ids[:, :192]) == 192
    with PrefixCache(model, daemon.address) as prefixes:
        restored = prefixes.restore(ids)
        assert restored.tokens == 192
        theirs, ours = (_logits_after(model, cache, ids[:, 192:]) for cache in (computed, restored.cache))
        assert float((theirs - ours).abs().max()) == 0.0


def test_generate_gives_the_same_tokens_cold_and_warm(daemon: DaemonThread, model: Any) -> None:
    ids = prompt(200)
    with PrefixCache(model, daemon.address) as prefixes:
        cold = prefixes.generate(ids, **LOGITS)
        assert (cold.prompt_tokens, cold.cached_tokens, cold.stored_tokens) == (200, 0, 192)
        warm = prefixes.generate(ids, **LOGITS)
        assert (warm.cached_tokens, warm.stored_tokens) == (192, 0)
    plain = model.generate(ids, **LOGITS)
    assert torch.equal(cold.output.sequences, plain.sequences)
    assert torch.equal(warm.output.sequences, plain.sequences)


def _computed(model: Any, ids: torch.Tensor) -> Any:
    cache = empty_cache(model)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    return cache


def _logits_after(model: Any, cache: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
    return logits


def test_what_is_restored_is_what_was_stored_bit_for_bit(daemon: DaemonThread, model: Any) -> None:
    ids = prompt(100, seed=1)
    cache = _computed(model, ids)
    with PrefixCache(model, daemon.address) as prefixes:
        assert prefixes.save(cache, ids) == 96
        restored = prefixes.restore(ids)
        assert restored.tokens == 96
        assert restored.cache.get_seq_length() == 96
        for ours, theirs in zip(restored.cache.layers, cache.layers, strict=True):
            assert torch.equal(ours.keys, theirs.keys[:, :, :96])
            assert torch.equal(ours.values, theirs.values[:, :, :96])


def test_the_stored_bytes_are_really_used(daemon: DaemonThread, model: Any) -> None:
    ids = prompt(100, seed=2)
    cache = _computed(model, ids)
    for layer in cache.layers:
        layer.keys.zero_()
        layer.values.zero_()
    with PrefixCache(model, daemon.address) as prefixes:
        prefixes.save(cache, ids)
        changed = prefixes.generate(ids, **LOGITS)
        assert changed.cached_tokens == 96
    assert not torch.equal(changed.output.logits[0], model.generate(ids, **LOGITS).logits[0])


def test_a_conversation_stores_each_turn_once(daemon: DaemonThread, model: Any) -> None:
    with PrefixCache(model, daemon.address) as prefixes:
        first = prefixes.generate(prompt(70, seed=3), **GREEDY)
        assert (first.cached_tokens, first.stored_tokens) == (0, 64)
        longer = torch.cat([first.output, prompt(50, seed=4)], 1)  # 70 + 8 answered, and the next question
        second = prefixes.generate(longer, **GREEDY)
        assert (second.cached_tokens, second.stored_tokens) == (64, 64)
        assert torch.equal(second.output, model.generate(longer, **GREEDY))


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 64, 65])
def test_one_token_is_always_left_to_compute(daemon: DaemonThread, model: Any, tokens: int) -> None:
    ids = prompt(tokens, seed=5)
    with PrefixCache(model, daemon.address) as prefixes:
        prefixes.generate(ids, **GREEDY)
        again = prefixes.generate(ids, **GREEDY)
    assert again.cached_tokens == (tokens - 1) // 32 * 32
    assert torch.equal(again.output, model.generate(ids, **GREEDY))


def test_long_prefixes_pass_in_several_goes(daemon: DaemonThread, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_module, "STAGE_BYTES", 3 * namespace_of(model).layout.block_bytes)
    monkeypatch.setattr(prefix_module, "CALL_KEYS", 4)
    ids = prompt(11 * 32 + 1, seed=6)
    with PrefixCache(model, daemon.address) as prefixes:
        assert prefixes.generate(ids, **GREEDY).stored_tokens == 11 * 32
        warm = prefixes.generate(ids, **GREEDY)
        assert warm.cached_tokens == 11 * 32
        assert torch.equal(warm.output, model.generate(ids, **GREEDY))
        (account,) = daemon.host.explain(prefixes._keys(ids[0])[4])
        assert account["parent"] == prefixes._keys(ids[0])[3].hex()


def test_a_hole_in_the_chain_ends_the_prefix_and_is_filled_again(daemon: DaemonThread, model: Any) -> None:
    ids = prompt(6 * 32 + 1, seed=7)
    with PrefixCache(model, daemon.address) as prefixes:
        prefixes.generate(ids, **GREEDY)
        keys = prefixes._keys(ids[0])
        with hybridkv.connect(daemon.address, prefixes.space) as kv:
            assert kv.remove([keys[1], keys[4]]) == 2
        holed = prefixes.generate(ids, **GREEDY)
        assert (holed.cached_tokens, holed.stored_tokens) == (32, 64)
        assert prefixes.generate(ids, **GREEDY).cached_tokens == 6 * 32


def test_one_call_around_generate(daemon: DaemonThread, model: Any) -> None:
    ids = prompt(80, seed=8)
    plain = model.generate(ids, **GREEDY)
    assert torch.equal(cached_generate(model, daemon.address, ids, **GREEDY), plain)
    with hybridkv.connect(daemon.address, namespace_of(model)) as kv:
        before = kv.stats()["outcomes"]["hit"]
        assert torch.equal(cached_generate(model, kv, ids[0].tolist(), **GREEDY), plain)
        assert kv.stats()["outcomes"]["hit"] == before + 2
        assert torch.equal(cached_generate(model, kv, ids, **GREEDY), plain)


def test_two_salts_and_two_weights_share_nothing(daemon: DaemonThread, model: Any) -> None:
    ids = prompt(80, seed=9)
    with PrefixCache(model, daemon.address, salt="a") as prefixes:
        prefixes.generate(ids, **GREEDY)
    trained = llama()
    with torch.no_grad():
        trained.model.layers[3].self_attn.k_proj.weight.add_(1e-3)
    others: list[tuple[Any, dict[str, Any]]] = [
        (model, {"salt": "b"}),
        (llama(seed=1), {"salt": "a"}),
        (trained, {"salt": "a"}),
        (llama(dtype=torch.bfloat16), {"salt": "a"}),
        (llama(rope_parameters={"rope_type": "default", "rope_theta": 20000.0}), {"salt": "a"}),
        (model, {"salt": "a", "block_tokens": 16}),
    ]
    for other, options in others:
        with PrefixCache(other, daemon.address, **options) as prefixes:
            assert prefixes.restore(ids).tokens == 0
    with PrefixCache(llama(), daemon.address, salt="a") as prefixes:
        assert prefixes.restore(ids).tokens == 64, "the same weights, loaded again"


def test_without_a_daemon_and_with_one_that_dies_and_returns(tmp_path: Path, model: Any) -> None:
    ids = prompt(80, seed=10)
    plain = model.generate(ids, **GREEDY)
    with daemon_process(tmp_path, cpu__capacity_bytes="64MiB") as process:
        address = make_config(tmp_path).daemon.socket
        prefixes = PrefixCache(model, address)
        prefixes._guarded._retry_s = 0.0
        assert prefixes.generate(ids, **GREEDY).stored_tokens == 64
        kill(process)
        alone = prefixes.generate(ids, **GREEDY)
        assert (alone.cached_tokens, alone.stored_tokens) == (0, 0)
        assert torch.equal(alone.output, plain)
    with daemon_process(tmp_path, cpu__capacity_bytes="64MiB"):
        assert prefixes.generate(ids, **GREEDY).stored_tokens == 64
        again = prefixes.generate(ids, **GREEDY)
        assert again.cached_tokens == 64
        assert torch.equal(again.output, plain)
    prefixes.close()


def test_a_fresh_process_hits_what_is_on_disk(tmp_path: Path) -> None:
    script = (
        "import sys, torch, hybridkv\n"
        "from hybridkv.connectors.transformers import PrefixCache, namespace_of\n"
        "from tests.engines.tiny import llama, prompt\n"
        "model, config = llama(), hybridkv.load_config(overrides={'disk.path': sys.argv[1], 'disk.capacity_bytes': '64MiB',"
        " 'cpu.capacity_bytes': '16MiB'}, env={})\n"
        "with hybridkv.open(config, namespace_of(model)) as kv, PrefixCache(model, kv) as prefixes:\n"
        "    done = prefixes.generate(prompt(100), do_sample=False, max_new_tokens=8)\n"
        "    print(done.cached_tokens, done.output[0].tolist())\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "disk")],
            cwd=ROOT, capture_output=True, text=True, check=True, timeout=100,
        ).stdout.split(" ", 1)
        for _ in range(2)
    ]  # fmt: skip
    assert [cached for cached, _ in said] == ["0", "96"]
    assert said[0][1] == said[1][1]


def test_rows_and_tensors_of_layers_that_differ(daemon: DaemonThread) -> None:
    """K and V of different widths, as with multi-head latent attention."""
    shape = learned_shape(llama(), 16)
    one = shape.layers[0]
    mixed = replace(shape, layers=(one, replace(one, heads=3, value_dim=16), replace(one, key_dim=48)))
    layers = [(torch.randn(1, s.heads, 80, s.key_dim), torch.randn(1, s.heads, 80, s.value_dim)) for s in mixed.layers]
    rows = np.full((3, mixed.layout.block_bytes), 7, np.uint8)
    block_copies.to_rows(mixed, layers, 1, rows)
    fresh = block_copies.empty_layers(mixed, 48)
    block_copies.from_rows(mixed, rows, fresh, 0)
    for (keys, values), (wanted_keys, wanted_values) in zip(fresh, layers, strict=True):
        assert torch.equal(keys, wanted_keys[:, :, 16:64])
        assert torch.equal(values, wanted_values[:, :, 16:64])
    assert not rows[:, mixed.layout.payload_bytes :].any()


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("num_beams", {"num_beams": 2}),
        ("num_return_sequences", {"num_return_sequences": 2, "do_sample": True}),
        ("past_key_values", {"past_key_values": object()}),
        ("inputs_embeds", {"inputs_embeds": torch.zeros(1)}),
        ("cache_implementation", {"cache_implementation": "static"}),
        ("use_cache", {"use_cache": False}),
        ("attention_mask", {"attention_mask": torch.tensor([[0, 1, 1]])}),
        ("num_beams", {"generation_config": transformers.GenerationConfig(num_beams=3)}),
    ],
)
def test_arguments_that_one_prefix_cannot_serve(
    daemon: DaemonThread, model: Any, named: str, given: dict[str, Any]
) -> None:
    with PrefixCache(model, daemon.address) as prefixes:
        with pytest.raises(InvalidArgumentError, match=named):
            prefixes.generate(prompt(3), **given)
        with pytest.raises(InvalidArgumentError, match=r"batch size 1.*\(2, 4\)"):
            prefixes.generate(torch.ones((2, 4), dtype=torch.long))
        with pytest.raises(InvalidArgumentError, match="input_ids"):
            prefixes.generate(torch.ones((1, 0), dtype=torch.long))


def test_models_whose_cache_cannot_be_cut_into_blocks_are_refused() -> None:
    small = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    window = transformers.MistralConfig(**small, **heads, sliding_window=8)
    with pytest.raises(InvalidArgumentError, match=r"DynamicSlidingWindowLayer: a sliding window drops tokens"):
        namespace_of(made(transformers.MistralForCausalLM, window))
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(InvalidArgumentError, match="'dynamic' is not served"):
        namespace_of(llama(rope_parameters=scaled))
    t5 = transformers.T5Config(vocab_size=64, d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=16)
    with pytest.raises(InvalidArgumentError, match="encoder-decoder"):
        namespace_of(made(transformers.T5ForConditionalGeneration, t5))


def test_a_quantised_or_foreign_cache_is_not_stored(daemon: DaemonThread, model: Any) -> None:
    with PrefixCache(model, daemon.address) as prefixes:
        with pytest.raises(InvalidArgumentError, match="StaticLayer"):
            prefixes.save(transformers.StaticCache(config=model.config, max_cache_len=64), prompt(40))
        with pytest.raises(InvalidArgumentError, match="holds 40 tokens, 39 are given"):
            prefixes.save(_computed(model, prompt(40)), prompt(39))
        assert prefixes.save(empty_cache(model), prompt(40)) == 0


def test_a_handle_on_another_namespace_is_refused(daemon: DaemonThread, model: Any) -> None:
    with hybridkv.connect(daemon.address, namespace_of(llama(seed=1))) as kv:
        with pytest.raises(InvalidArgumentError, match="config_digest"):
            PrefixCache(model, kv)


def test_an_adapter_must_be_named(model: Any) -> None:
    adapted = llama()
    adapted.peft_config = {"chat": object()}
    with pytest.raises(InvalidArgumentError, match=r"adapter.*\['chat'\]"):
        namespace_of(adapted)
    assert namespace_of(adapted, adapter="chat").fingerprint != namespace_of(model).fingerprint
