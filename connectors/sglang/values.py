"""Flat data pages as bytes."""

from typing import Any

from hybridkv.tiers.device.base import Bytes
from hybridkv.tiers.errors import InvalidArgumentError


def bytes_of(value: Any, page_bytes: int) -> Bytes:
    """The bytes of a flat data page, no copy. Raises InvalidArgumentError unless it is a contiguous host tensor of
    `page_bytes` bytes."""
    if not hasattr(value, "data_ptr") or value.device.type != "cpu" or not value.is_contiguous():
        raise InvalidArgumentError("value", f"must be a contiguous host tensor, got {type(value).__name__}")
    if value.numel() * value.element_size() != page_bytes:
        got = value.numel() * value.element_size()
        raise InvalidArgumentError("value", f"has {got} bytes, a page has {page_bytes}")
    import torch

    flat: Bytes = value.detach().reshape(-1).view(torch.uint8).numpy()
    return flat


def new_page(pool: Any, page_bytes: int) -> Any:
    """A new flat data page of the pool's dtype."""
    import torch

    return torch.empty(page_bytes // pool.dtype.itemsize, dtype=pool.dtype)
