"""Copies between the tensors of a cache and blocks: layer by layer, all blocks of a layer at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv.connectors.transformers.shapes import CacheShape, LayerShape
from hybridkv.tiers.device.views import tensor_of

if TYPE_CHECKING:
    import torch

Rows = npt.NDArray[np.uint8]
"""Blocks side by side: uint8 [blocks, block_bytes]."""


def empty_layers(shape: CacheShape, tokens: int) -> "list[tuple[torch.Tensor, torch.Tensor]]":
    """K and V of every layer for so many tokens, (1, heads, tokens, dim), holding anything."""
    import torch

    return [
        (
            torch.empty((1, one.heads, tokens, one.key_dim), dtype=one.dtype, device=one.device),
            torch.empty((1, one.heads, tokens, one.value_dim), dtype=one.dtype, device=one.device),
        )
        for one in shape.layers
    ]


def from_rows(shape: CacheShape, rows: Rows, layers: "Sequence[tuple[torch.Tensor, torch.Tensor]]", first: int) -> None:
    """Copy blocks to the tokens of `layers` from block `first` on."""
    for (key, value), (keys, values) in zip(_places(shape, rows), layers, strict=True):
        _tokens(keys, shape, first, len(rows)).copy_(key)
        _tokens(values, shape, first, len(rows)).copy_(value)


def to_rows(shape: CacheShape, layers: "Sequence[tuple[torch.Tensor, torch.Tensor]]", first: int, rows: Rows) -> None:
    """Copy the tokens of `layers` from block `first` on to blocks; what lies behind the payload becomes zero."""
    for (key, value), (keys, values) in zip(_places(shape, rows), layers, strict=True):
        key.copy_(_tokens(keys, shape, first, len(rows)))
        value.copy_(_tokens(values, shape, first, len(rows)))
    rows[:, shape.layout.payload_bytes :] = 0


def _tokens(tensor: "torch.Tensor", shape: CacheShape, first: int, count: int) -> "torch.Tensor":
    """`count` blocks of a layer's K or V as [blocks, heads, block tokens, dim], no copy."""
    size = shape.block_tokens
    part = tensor[0, :, first * size : (first + count) * size]
    return part.view(part.shape[0], count, size, part.shape[2]).transpose(0, 1)


def _places(shape: CacheShape, rows: Rows) -> "list[tuple[torch.Tensor, torch.Tensor]]":
    """K and V of every layer within the blocks, as [blocks, heads, block tokens, dim], no copy."""
    flat, at, places = tensor_of(rows), 0, []
    for one in shape.layers:
        key_end = at + one.key_bytes(shape.block_tokens)
        end = key_end + one.value_bytes(shape.block_tokens)
        places.append(
            (
                _typed(flat[:, at:key_end], one, shape, one.key_dim),
                _typed(flat[:, key_end:end], one, shape, one.value_dim),
            )
        )
        at = end
    return places


def _typed(part: "torch.Tensor", one: LayerShape, shape: CacheShape, dim: int) -> "torch.Tensor":
    return part.view(one.dtype).view(len(part), one.heads, shape.block_tokens, dim)
