"""Bytes of blocks as the tokens in them: views by the layout, no copy. Pure functions, thread-safe.

The axis of tokens is the third of every order (`tiers.layout.ORDERS`): [layers, 2, tokens, heads, dim] or
[2, layers, tokens, heads, dim].
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.layout import DTYPE_BYTES, BlockLayout

if TYPE_CHECKING:
    import torch

TOKEN_AXIS = 2
RAW_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32}
"""NumPy has no bfloat16 and no float8: tokens are seen as raw items of the same size."""


def shape_of(layout: BlockLayout, tokens: int) -> tuple[int, ...]:
    """Shape of `tokens` tokens in the layout's order. Raises FailedPreconditionError for an opaque layout."""
    if layout.is_opaque:
        raise FailedPreconditionError("an opaque layout has no tokens to see: read and write whole blocks")
    outer = (2, layout.layers) if layout.order == "kv_split" else (layout.layers, 2)
    return (*outer, tokens, layout.kv_heads, layout.head_dim)


def tokens_of(block: npt.NDArray[np.uint8], layout: BlockLayout) -> npt.NDArray[Any]:
    """One block's bytes [block_bytes] as its tokens, raw items in `shape_of` all tokens of a block."""
    items = block[: layout.payload_bytes].view(RAW_DTYPES[DTYPE_BYTES[layout.dtype]])
    return items.reshape(shape_of(layout, layout.block_tokens))


def raw_tokens(kv: Any, layout: BlockLayout, field: str) -> npt.NDArray[Any]:
    """A caller's array or CPU tensor of tokens as raw items, sharing its memory. Raises InvalidArgumentError unless its
    shape and item size are those of the layout."""
    if type(kv).__module__.startswith("torch") and hasattr(kv, "element_size"):
        kv = _raw_of_tensor(kv, field)
    if not isinstance(kv, np.ndarray):
        raise InvalidArgumentError(field, f"must be a NumPy array or a torch tensor, got {type(kv).__name__}")
    size = DTYPE_BYTES[layout.dtype]
    if kv.dtype.itemsize != size:
        raise InvalidArgumentError(field, f"its items have {kv.dtype.itemsize} bytes, those of {layout.dtype} {size}")
    tokens = kv.shape[TOKEN_AXIS] if kv.ndim > TOKEN_AXIS else 0
    if kv.shape != shape_of(layout, tokens):
        expected = ", ".join(map(str, shape_of(layout, tokens)))
        raise InvalidArgumentError(field, f"must have the shape ({expected}) of so many tokens, got {kv.shape}")
    return kv.view(RAW_DTYPES[size])


def _raw_of_tensor(kv: "torch.Tensor", field: str) -> npt.NDArray[Any]:
    import torch

    if kv.device.type != "cpu":
        raise InvalidArgumentError(field, f"lies on {kv.device}: write to the pool's views on that device instead")
    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(kv.element_size())
    if raw is None:
        raise InvalidArgumentError(field, f"its items have {kv.element_size()} bytes")
    return np.asarray(kv.detach().view(raw).numpy())


def layer_tensor(pool: "torch.Tensor", layout: BlockLayout, layer: int) -> "torch.Tensor":
    """A pool's bytes as one layer's K and V: [slots, 2, tokens, heads, dim] in the layout's dtype, strided, no copy.

    Row i is the slot at byte offset i * block_bytes: what a block table counts in. [:, 0] is K, or V where the order is
    "vk". Raises InvalidArgumentError, FailedPreconditionError for an opaque layout.
    """
    import torch

    shape = shape_of(layout, layout.block_tokens)
    if not 0 <= layer < layout.layers:
        raise InvalidArgumentError("layer", f"must be within [0, {layout.layers - 1}], got {layer}")
    slots = pool.numel() // layout.block_bytes
    rows = pool[: slots * layout.block_bytes].view(getattr(torch, layout.dtype)).view(slots, -1)
    whole: torch.Tensor = torch.unflatten(rows[:, : layout.payload_bytes // DTYPE_BYTES[layout.dtype]], 1, shape)
    return whole[:, :, layer] if layout.order == "kv_split" else whole[:, layer]
