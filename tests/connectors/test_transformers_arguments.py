"""What of the transformers connector can be told without transformers."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridkv.connectors.transformers.arguments import check_generate, one_sequence
from hybridkv.connectors.transformers.identity import check_positions
from hybridkv.connectors.transformers.shapes import cache_keyword, check_layers
from hybridkv.tiers.errors import InvalidArgumentError


class Older:
    def forward(self, input_ids: Any, past_key_values: Any = None) -> None: ...


class Newer:
    def forward(self, input_ids: Any, cache: Any = None, **kwargs: Any) -> None: ...


class Neither:
    def forward(self, input_ids: Any) -> None: ...


def test_both_names_of_the_cache_are_known() -> None:
    assert (cache_keyword(Older()), cache_keyword(Newer())) == ("past_key_values", "cache")
    with pytest.raises(InvalidArgumentError, match=r"Neither\.forward takes none of past_key_values, cache"):
        cache_keyword(Neither())


@pytest.mark.parametrize("keyword", ["past_key_values", "cache"])
def test_a_cache_of_the_caller_is_refused_under_the_name_in_force(keyword: str) -> None:
    with pytest.raises(InvalidArgumentError, match=keyword):
        check_generate({keyword: object()}, keyword)
    check_generate({"max_new_tokens": 3, "num_beams": 1, "attention_mask": torch.ones(1, 3)}, keyword)


class DynamicLayer:
    is_sliding = False


class DynamicSlidingWindowLayer:
    is_sliding = True


class QuantoQuantizedLayer(DynamicLayer):
    pass


class LinearAttentionLayer:
    pass


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (DynamicSlidingWindowLayer(), "a sliding window drops tokens"),
        (QuantoQuantizedLayer(), "a quantised cache is not what the model computed"),
        (LinearAttentionLayer(), "only DynamicLayer keeps"),
    ],
)
def test_a_layer_that_cannot_be_cut_into_blocks_is_named(layer: object, why: str) -> None:
    check_layers([DynamicLayer()])
    with pytest.raises(InvalidArgumentError, match=f"layer 1 is a {type(layer).__name__}: {why}"):
        check_layers([DynamicLayer(), layer])


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "longrope", "factor": 4.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
    ],
)
def test_rotations_that_depend_on_the_length_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="rope_type"):
        check_positions(SimpleNamespace(to_dict=lambda: config))
    check_positions(SimpleNamespace(to_dict=lambda: {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}))


def test_one_sequence_of_token_ids() -> None:
    assert one_sequence([3, 4]).tolist() == [3, 4]
    assert one_sequence(torch.tensor([[5, 6]], dtype=torch.int32)).dtype == torch.int64
    for wrong in ([], [[1], [2]], [1.5], ["a"], [[[1]]], torch.ones((2, 3), dtype=torch.long)):
        with pytest.raises(InvalidArgumentError, match="input_ids"):
            one_sequence(wrong)


def test_nothing_heavy_is_imported_with_the_module() -> None:
    code = "import sys, hybridkv.connectors.transformers; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
