"""What one block of a model's cache holds: learned by asking the model for the KV of one token."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.layout import BlockLayout

if TYPE_CHECKING:
    import torch

BLOCK_TOKENS = 32
SERVED = "DynamicLayer"
"""The one kind of cache layer that grows with the tokens and keeps all of them, as computed."""

_KEYWORDS = ("past_key_values", "cache")


@dataclass(frozen=True, slots=True)
class LayerShape:
    """K is [heads, tokens, key_dim], V [heads, tokens, value_dim], both of `dtype`, on `device`."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: "torch.dtype"
    device: "torch.device"

    def key_bytes(self, tokens: int) -> int:
        return self.heads * tokens * self.key_dim * self.dtype.itemsize

    def value_bytes(self, tokens: int) -> int:
        return self.heads * tokens * self.value_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class CacheShape:
    """A block is, layer by layer, K [heads, tokens, key_dim] and V [heads, tokens, value_dim] of `block_tokens` tokens."""

    layers: tuple[LayerShape, ...]
    block_tokens: int

    @property
    def layout(self) -> BlockLayout:
        """Opaque: the order is that of transformers' tensors, not one of ours. Raises InvalidArgumentError."""
        nbytes = sum(one.key_bytes(self.block_tokens) + one.value_bytes(self.block_tokens) for one in self.layers)
        return BlockLayout.opaque(
            nbytes, self.block_tokens, f"transformers/[layers, K then V, heads, tokens, dim]/{self._text()}"
        )

    def _text(self) -> str:
        """The layers, runs of equal ones together."""
        runs: list[tuple[str, int]] = []
        for one in self.layers:
            text = f"{one.heads}x{one.key_dim},{one.value_dim} {str(one.dtype).removeprefix('torch.')}"
            if runs and runs[-1][0] == text:
                runs[-1] = (text, runs[-1][1] + 1)
            else:
                runs.append((text, 1))
        return "; ".join(f"{count} of {text}" for text, count in runs)


def cache_keyword(model: Any) -> str:
    """What the model calls its cache: transformers renamed it between 5.19 and 5.24. Raises InvalidArgumentError."""
    known = inspect.signature(model.forward).parameters
    for name in _KEYWORDS:
        if name in known:
            return name
    raise InvalidArgumentError("model", f"{type(model).__name__}.forward takes none of {', '.join(_KEYWORDS)}")


def learned_shape(model: Any, block_tokens: int = BLOCK_TOKENS) -> CacheShape:
    """The shape of the model's cache, from a forward pass of one token.

    Raises InvalidArgumentError for a cache that cannot be cut into blocks: sliding windows, states, quantised layers.
    """
    import torch

    cache = empty_cache(model)
    with torch.no_grad():
        token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        model(input_ids=token, use_cache=True, **{cache_keyword(model): cache})
    return CacheShape(tuple(_layer_shape(i, layer) for i, layer in enumerate(cache.layers)), block_tokens)


def empty_cache(model: Any) -> Any:
    """A DynamicCache of this model's kind of layers. Raises InvalidArgumentError for those that cannot be served."""
    from transformers import DynamicCache

    if getattr(model.config, "is_encoder_decoder", False):
        raise InvalidArgumentError("model", "encoder-decoder models are not served: their KV belongs to two sequences")
    cache = DynamicCache(config=model.config)
    check_layers(cache.layers)
    return cache


def check_layers(layers: Sequence[Any]) -> None:
    """Raises InvalidArgumentError, with the reason, unless every layer keeps all tokens as they were computed."""
    for i, layer in enumerate(layers):
        if type(layer).__name__ == SERVED:
            continue
        if getattr(layer, "is_sliding", False):
            why = "a sliding window drops tokens, so that its blocks cannot be had again"
        elif "Quantized" in type(layer).__name__:
            why = "a quantised cache is not what the model computed"
        else:
            why = f"only {SERVED} keeps the KV of every token"
        raise InvalidArgumentError("cache", f"layer {i} is a {type(layer).__name__}: {why}")


def _layer_shape(i: int, layer: Any) -> LayerShape:
    keys, values = layer.keys, layer.values
    if keys is None or keys.ndim != 4 or values.ndim != 4 or keys.shape[:3] != values.shape[:3] or keys.shape[2] != 1:
        shapes = None if keys is None else (tuple(keys.shape), tuple(values.shape))
        raise InvalidArgumentError("cache", f"layer {i}: one token must be K and V of (1, heads, 1, dim), got {shapes}")
    return LayerShape(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device)
