"""Settings, groups, identity and hints: what is taken, and what is refused with which words."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridkv.connectors.vllm.groups import Group, check_backend, check_parallel, groups_of
from hybridkv.connectors.vllm.identity import key_bytes_of, revision_of
from hybridkv.connectors.vllm.keys import RequestKeys
from hybridkv.connectors.vllm.match import Presence, agreed_tokens
from hybridkv.connectors.vllm.metadata import Report
from hybridkv.connectors.vllm.rate import PrefillRate
from hybridkv.connectors.vllm.settings import LoadMode, Settings
from hybridkv.connectors.vllm.worker import model_order
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError


def spec(kind: str, **fields: Any) -> Any:
    return type(kind, (), {"block_size": 16, **fields})()


def config(*specs: Any) -> Any:
    groups = [SimpleNamespace(layer_names=[f"layer.{i}"], kv_cache_spec=one) for i, one in enumerate(specs)]
    return SimpleNamespace(kv_cache_groups=groups)


def test_settings_have_defaults_and_an_address() -> None:
    assert Settings.of({"address": "unix:///a"}) == Settings(address="unix:///a", load=LoadMode.AUTO)
    assert Settings.of({}).address.startswith("unix:///")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adress": "x"}, "kv_connector_extra_config.adress: unknown; known are address"),
        ({"load": "lazy"}, "'lazy' is none of sync, async, auto"),
        ({"timeout_s": 0}, "timeout_s: must be more than 0"),
        ({"timeout_s": "1"}, "timeout_s: must be a number of seconds"),
        ({"store": 1}, "store: must be true or false"),
        ({"salt": 3}, "salt"),
    ],
)
def test_settings_that_are_wrong_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        Settings.of(given)


def test_groups_that_are_served() -> None:
    inner = {"a": spec("FullAttentionSpec"), "b": spec("FullAttentionSpec")}
    found = groups_of(
        config(
            spec("FullAttentionSpec", block_size=32),
            spec("SlidingWindowSpec", sliding_window=512),
            spec("MLAAttentionSpec"),
            spec("UniformTypeKVCacheSpecs", kv_cache_specs=inner),
        ),
        16,
    )
    assert [(one.block_tokens, one.window, one.hashes) for one in found] == [
        (32, None, 2),
        (16, 512, 1),
        (16, None, 1),
        (16, None, 1),
    ]


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (spec("MambaSpec"), "MambaSpec of layer.0: the state of a Mamba layer is not made of blocks of tokens"),
        (spec("CrossAttentionSpec"), "belongs to the encoder's input"),
        (spec("ChunkedLocalAttentionSpec"), "ChunkedLocalAttentionSpec of layer.0: this kind of cache is not known"),
        (spec("FullAttentionSpec", block_size=24), "24 tokens are no multiple of the 16"),
    ],
)
def test_groups_that_are_refused(one: Any, said: str) -> None:
    with pytest.raises(FailedPreconditionError, match=said):
        groups_of(config(one), 16)


def test_a_kind_made_from_a_refused_one_is_refused_for_the_same_reason() -> None:
    mamba = type("MambaSpec", (), {"block_size": 16})
    with pytest.raises(FailedPreconditionError, match=r"Mamba2Spec of layer\.0: the state of a Mamba"):
        groups_of(config(type("Mamba2Spec", (mamba,), {})()), 16)


def test_context_parallel_is_refused() -> None:
    check_parallel(SimpleNamespace(decode_context_parallel_size=1))
    with pytest.raises(FailedPreconditionError, match="decode_context_parallel_size=2"):
        check_parallel(SimpleNamespace(decode_context_parallel_size=2))


def test_a_backend_that_computes_whole_prompts_only_is_refused() -> None:
    def check(*, mla: bool, chunked: bool) -> None:
        model, scheduler = SimpleNamespace(use_mla=mla), SimpleNamespace(enable_chunked_prefill=chunked)
        check_backend(SimpleNamespace(model_config=model, scheduler_config=scheduler))

    check(mla=False, chunked=False)
    check(mla=True, chunked=True)
    with pytest.raises(FailedPreconditionError, match="MLA backend on this machine computes whole prompts only"):
        check(mla=True, chunked=False)


def test_hashes_must_be_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def width(algorithm: str) -> int:
        return key_bytes_of(SimpleNamespace(cache_config=SimpleNamespace(prefix_caching_hash_algo=algorithm)))

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert width("sha256") == width("sha256_cbor") == 32
    with pytest.raises(FailedPreconditionError, match="without PYTHONHASHSEED every process has its own"):
        width("xxhash")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert width("xxhash_cbor") == 16
    with pytest.raises(FailedPreconditionError, match="does not know prefix_caching_hash_algo=md5"):
        width("md5")


def test_new_weights_in_the_same_folder_are_another_revision(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    first = revision_of(str(tmp_path), None)
    assert first == revision_of(str(tmp_path), None)
    weights.write_bytes(b"other")
    assert revision_of(str(tmp_path), None) != first
    assert revision_of("org/name", "abc") == "abc"


def test_a_blocks_key_is_the_hash_that_ends_it_and_an_adapters_weights_are_in_it(tmp_path: Path) -> None:
    hashes = [bytes([i]) * 32 for i in range(5)]
    request = SimpleNamespace(block_hashes=hashes, lora_request=None)
    pairs = Group(0, ("a",), 32, None, 2)
    assert RequestKeys(request).of(pairs) == [hashes[1], hashes[3]]
    (tmp_path / "adapter.bin").write_bytes(b"1")
    request.lora_request = SimpleNamespace(lora_name="n", lora_path=str(tmp_path))
    adapted = RequestKeys(request).of(pairs)
    assert not set(adapted) & set(hashes)
    (tmp_path / "adapter.bin").write_bytes(b"22")
    assert not set(RequestKeys(request).of(pairs)) & set(adapted)


def test_keys_grow_with_what_vllm_hashes() -> None:
    request = SimpleNamespace(block_hashes=[b"a" * 32], lora_request=None)
    keys, group = RequestKeys(request), Group(0, ("a",), 16, None, 1)
    assert len(keys.of(group)) == 1
    request.block_hashes.append(b"b" * 32)
    assert keys.of(group) == request.block_hashes


@pytest.mark.parametrize(
    ("full", "windowed", "computed", "agreed"),
    [
        ("11110", "11111", 0, 64),
        ("11111", "00111", 0, 80),
        ("11111", "00110", 0, 64),
        ("11111", "01011", 0, 80),
        ("11111", "00000", 0, 0),
        ("01111", "11111", 16, 80),
        ("01111", "11111", 0, 0),
    ],
)
def test_groups_agree(full: str, windowed: str, computed: int, agreed: int) -> None:
    """A window of 32 tokens: the 31 before the next one, in two blocks of 16."""
    found = [
        Presence(Group(0, ("a",), 16, None, 1), np.array([c == "1" for c in full])),
        Presence(Group(1, ("b",), 16, 32, 1), np.array([c == "1" for c in windowed])),
    ]
    assert agreed_tokens(found, computed) == agreed


def test_groups_of_different_block_sizes_agree_on_a_common_multiple() -> None:
    found = [
        Presence(Group(0, ("a",), 16, None, 1), np.ones(5, np.bool_)),
        Presence(Group(1, ("b",), 32, None, 2), np.ones(2, np.bool_)),
    ]
    assert agreed_tokens(found, 0) == 64


def test_layers_are_ordered_as_the_model_computes_them() -> None:
    order = model_order([["m.layers.10.attn", "m.layers.2.attn"], ["m.layers.3.attn"]])
    assert sorted(order, key=lambda layer: order[layer]) == ["m.layers.2.attn", "m.layers.3.attn", "m.layers.10.attn"]


def test_reports_of_ranks_are_merged() -> None:
    one = Report(frozenset({"a"}), {("a", 0): 4}, {"a": 1}, None)
    other = Report(frozenset({"b"}), {("a", 0): 2, ("b", 0): 1}, {"a": 1}, 3)
    merged = one.aggregate(other)
    assert merged == Report(frozenset({"a", "b"}), {("a", 0): 2, ("b", 0): 1}, {"a": 2}, 3)
    assert not Report()


def test_the_rate_is_learned_from_steps_that_only_compute_prompts() -> None:
    times = iter([0.0, 1.0, 2.0, 4.0])
    rate = PrefillRate(lambda: next(times))
    rate.begin(1000, pure=False)
    rate.end()
    rate.begin(10, pure=True)
    rate.end()
    assert rate.seconds_for(32) is None
    rate.begin(1000, pure=True)
    rate.end()
    assert rate.seconds_for(1000) == pytest.approx(1.0)
    rate.begin(1000, pure=True)
    rate.end()
    assert rate.seconds_for(1000) == pytest.approx(1.2)
