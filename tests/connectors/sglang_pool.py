"""A host pool as SGLang has it, and its keys: written from its contract, so that the backend can be held to that."""

import hashlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
LAYERS, HEADS, DIM = 4, 2, 64


def page_key(tokens: list[int], parent: str | None = None) -> str:
    """SGLang's key of one page: SHA-256 over the parent's digest, if any, and the tokens as uint32 LE; in hex."""
    digest = hashlib.sha256(bytes.fromhex(parent) if parent else b"")
    digest.update(np.array(tokens, "<u4").tobytes())
    return digest.hexdigest()


def page_keys(tokens: list[int], page_tokens: int) -> list[str]:
    """The chain of keys of the full pages of `tokens`."""
    keys: list[str] = []
    for start in range(0, len(tokens) - page_tokens + 1, page_tokens):
        keys.append(page_key(tokens[start : start + page_tokens], keys[-1] if keys else None))
    return keys


class FakePool:
    """Multi-head attention (`heads` > 0), or MLA: one latent row of `DIM` a token, no K and V."""

    def __init__(
        self,
        layout: str,
        page_size: int = 16,
        pages: int = 8,
        dtype: torch.dtype = torch.bfloat16,
        *,
        heads: int = HEADS,
        seed: int | None = None,
        kind: torch.dtype | None = None,
    ) -> None:
        self.layout, self.page_size, self.page_num, self.dtype = layout, page_size, pages, dtype
        self.layer_num, self.size = LAYERS, pages * page_size
        self.start_layer, self.end_layer = 0, LAYERS
        self.device_pool = SimpleNamespace(dtype=kind or dtype)
        rest = (heads or 1, DIM)
        shape = {
            "layer_first": (LAYERS, self.size, *rest),
            "page_first": (self.size, LAYERS, *rest),
            "page_first_direct": (pages, LAYERS, page_size, *rest),
            "page_head": (pages, rest[0], page_size, LAYERS, DIM),
        }[layout]
        self.leading = (2,) if heads else ()
        self.kv_buffer = torch.zeros((*self.leading, *shape), dtype=dtype)
        if seed is not None:
            self.fill(seed)

    def fill(self, seed: int) -> None:
        flat = self.kv_buffer.view(-1).view(torch.uint8).numpy()
        flat[:] = np.random.default_rng(seed).integers(0, 256, flat.nbytes, np.uint8)

    def indices(self, *pages: int) -> torch.Tensor:
        """The tokens of these pages."""
        return torch.cat([torch.arange(p * self.page_size, (p + 1) * self.page_size) for p in pages])

    def _page(self, index: int) -> torch.Tensor:
        before: tuple[slice[Any, Any, Any], ...] = (slice(None),) * len(self.leading)
        if self.layout == "layer_first":
            return self.kv_buffer[(*before, slice(None), slice(index, index + self.page_size))]
        if self.layout == "page_first":
            return self.kv_buffer[(*before, slice(index, index + self.page_size))]
        return self.kv_buffer[(*before, slice(index // self.page_size, index // self.page_size + 1))].squeeze(
            len(before)
        )

    def get_data_page(self, index: Any, flat: bool = True) -> torch.Tensor:
        page = self._page(int(index))
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros_like(self._page(0)).flatten()

    def set_from_flat_data_page(self, index: Any, data_page: torch.Tensor) -> None:
        page = self._page(int(index))
        page[:] = data_page.reshape(page.shape)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        """Addresses and bytes of each page's parts, K and V taking turns."""
        assert len(indices) % self.page_size == 0
        places = []
        for index in indices[:: self.page_size].tolist():
            page = self._page(index)
            parts = [page] if not self.leading else [page[0], page[1]]
            if self.layout == "layer_first":
                parts = [part[layer] for layer in range(LAYERS) for part in parts]
            places += [part.data_ptr() for part in parts]
        of_page = self._page(0).numel() * self.dtype.itemsize
        per_page = len(places) // max(1, len(indices) // self.page_size)
        return places, [of_page // per_page] * len(places)


@dataclass
class StorageConfig:
    """The fields of SGLang's HiCacheStorageConfig that are read."""

    model_name: str | None = "some/model"
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    extra_config: dict[str, Any] = field(default_factory=dict)


@dataclass
class ExtraInfo:
    """SGLang's HiCacheStorageExtraInfo."""

    prefix_keys: list[str] | None = None
