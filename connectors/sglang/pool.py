"""SGLang's host pool: what a page of it is, and its bytes.

In each of the four layouts the pool's one tensor is, in bytes, `[outer, pages, inner]`:

    layer_first        (2, layers, tokens, heads, dim)       outer = 2 · layers
    page_first         (2, tokens, layers, heads, dim)       outer = 2
    page_first_direct  (2, pages, layers, page, heads, dim)  outer = 2
    page_head          (2, pages, heads, page, layers, dim)  outer = 2

(MLA pools have no leading 2.) So a page is `[:, page, :]`, which is also its flat data page, and a batch of pages is copied
as runs of `inner` bytes that need no loop in Python. `get_page_buffer_meta` says the same, page by page; it is asked once,
to see that it does. A pool without such a tensor is read and written by flat data pages.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.memory import Stack
from hybridkv.tiers.device.base import Bytes, Offsets
from hybridkv.tiers.device.batch import Runs
from hybridkv.tiers.device.memcopy import copy_runs
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.layout import MAX_BLOCK_BYTES, MAX_BLOCK_TOKENS
from hybridkv.tiers.pools import MIN_BLOCK_BYTES

TOKEN_AXES = {"layer_first": -3, "page_first": -4, "page_first_direct": -5, "page_head": -5}
"""The axis of tokens (of pages in the latter two) of each layout's tensor."""

_BY_PAGE = frozenset({"page_first_direct", "page_head"})


class Pages(Protocol):
    """The pages of a host pool. `shape` tells apart what is laid out otherwise. Not thread-safe for one and the same page.

    Both methods take the page number of each key of a call, and stacks of blocks of some of them. They raise
    InvalidArgumentError for a page outside of the pool.
    """

    page_bytes: int
    shape: str

    def read(self, pages: Offsets, stacks: Sequence[Stack]) -> None:
        """Copy pages of the pool to their blocks."""

    def write(self, pages: Offsets, stacks: Sequence[Stack]) -> None:
        """Copy blocks to their pages of the pool."""


class HostPool:
    """A host pool as the backend sees it. Raises InvalidArgumentError for what cannot be served, naming why.

    `tag` names everything of the pool that makes a page's bytes.
    """

    def __init__(self, pool: Any) -> None:
        self.page_tokens = int(_asked(pool, "page_size"))
        self.layout = str(_asked(pool, "layout"))
        if not 1 <= self.page_tokens <= MAX_BLOCK_TOKENS:
            limit = f"must be within [1, {MAX_BLOCK_TOKENS}] tokens, got {self.page_tokens}"
            raise InvalidArgumentError("host pool.page_size", limit)
        self.pages: Pages = _pages_of(pool, self.layout, self.page_tokens)
        self.page_bytes = self.pages.page_bytes
        self._check_size()
        layers = f"{getattr(pool, 'start_layer', 0)}-{getattr(pool, 'end_layer', '')}"
        self.tag = f"sglang/{self.layout}/{_dtypes(pool)}/{self.pages.shape}/layers {layers}"

    def page_numbers(self, host_indices: Any, count: int) -> Offsets:
        """The pages that `host_indices` (a token index for each token of `count` pages) name."""
        tokens = np.asarray(host_indices, np.int64).reshape(-1)
        if len(tokens) != count * self.page_tokens:
            belong = f"{count} keys of {self.page_tokens} tokens need {count * self.page_tokens} indices"
            raise InvalidArgumentError("host_indices", f"{belong}, got {len(tokens)}")
        first = tokens[:: self.page_tokens]
        if np.any(first % self.page_tokens):
            raise InvalidArgumentError("host_indices", "a page must begin at a multiple of the page size")
        return first // self.page_tokens

    def _check_size(self) -> None:
        if not self.page_bytes:
            raise InvalidArgumentError("host pool", "its pages have no bytes: a pool of this kind cannot be served")
        if self.page_bytes < MIN_BLOCK_BYTES:
            needed = -(-MIN_BLOCK_BYTES * self.page_tokens // self.page_bytes)
            raise InvalidArgumentError(
                "host pool.page_size",
                f"a page of {self.page_tokens} tokens has {self.page_bytes} bytes, a block must have {MIN_BLOCK_BYTES}: "
                f"start SGLang with --page-size {needed} or more",
            )
        if self.page_bytes > MAX_BLOCK_BYTES:
            limit = f"a page has {self.page_bytes} bytes, a block may have {MAX_BLOCK_BYTES}: use a smaller --page-size"
            raise InvalidArgumentError("host pool.page_size", limit)


class TensorPages:
    """Pages within one contiguous host tensor."""

    def __init__(self, tensor: Any, layout: str, page_tokens: int) -> None:
        axis = len(tensor.shape) + TOKEN_AXES[layout]
        if axis not in (0, 1, 2):
            raise InvalidArgumentError("host pool.kv_buffer", f"{layout} has no shape like {tuple(tensor.shape)}")
        per_index = 1 if layout in _BY_PAGE else page_tokens
        self.count, left = divmod(int(tensor.shape[axis]), per_index)
        if left or not self.count:
            limit = f"{tensor.shape[axis]} tokens are no multiple of the page size {page_tokens}"
            raise InvalidArgumentError("host pool.kv_buffer", limit)
        self._bytes = _flat(tensor)
        self._outer = int(np.prod(tensor.shape[:axis], dtype=np.int64))
        self._inner = self._bytes.nbytes // (self._outer * self.count)
        self.page_bytes = self._outer * self._inner
        kept = [str(size) for size in tensor.shape]
        kept[axis] = "pages" if layout in _BY_PAGE else f"pages*{page_tokens}"
        self.shape = "x".join(kept)

    def read(self, pages: Offsets, stacks: Sequence[Stack]) -> None:
        for stack in stacks:
            at, to = self._offsets(pages[stack.indices], stack.rows * stack.blocks.shape[1])
            copy_runs(stack.blocks.reshape(-1), self._bytes, Runs(to, at, np.full(len(at), self._inner, np.int64)))

    def write(self, pages: Offsets, stacks: Sequence[Stack]) -> None:
        for stack in stacks:
            at, to = self._offsets(pages[stack.indices], stack.rows * stack.blocks.shape[1])
            copy_runs(self._bytes, stack.blocks.reshape(-1), Runs(at, to, np.full(len(at), self._inner, np.int64)))

    def addresses(self, page: int) -> npt.NDArray[np.int64]:
        """Where the parts of one page lie in this process's memory, in the order in which a block has them."""
        at, _ = self._offsets(np.array([page]), np.zeros(1, np.int64))
        return at + int(self._bytes.__array_interface__["data"][0])

    def _offsets(self, pages: Offsets, starts: Offsets) -> tuple[Offsets, Offsets]:
        """Of every part of these pages: its offset in the tensor, and in the array in which the blocks begin at `starts`."""
        if len(pages) and not (pages.min() >= 0 and pages.max() < self.count):
            limit = f"must be within the pool's {self.count} pages, got {int(pages.min())} to {int(pages.max())}"
            raise InvalidArgumentError("host_indices", limit)
        outer = np.arange(self._outer, dtype=np.int64)
        inside = (pages[:, None] + outer * self.count) * self._inner
        return inside.reshape(-1), (starts[:, None] + outer * self._inner).reshape(-1)


class FlatPages:
    """Pages that only the pool itself can take and give, one flat tensor at a time."""

    def __init__(self, pool: Any, page_tokens: int) -> None:
        sample = pool.get_dummy_flat_data_page()
        self._pool, self._page_tokens = pool, page_tokens
        self.page_bytes = int(sample.numel() * sample.element_size())
        self.shape = f"flat {type(pool).__name__} of {self.page_bytes}"

    def read(self, pages: Offsets, stacks: Sequence[Stack]) -> None:
        for page, block in self._pairs(pages, stacks):
            block[: self.page_bytes] = self._checked(self._pool.get_data_page(page * self._page_tokens, flat=True))

    def write(self, pages: Offsets, stacks: Sequence[Stack]) -> None:
        for page, block in self._pairs(pages, stacks):
            fresh = self._pool.get_dummy_flat_data_page()
            self._checked(fresh)[:] = block[: self.page_bytes]
            self._pool.set_from_flat_data_page(page * self._page_tokens, fresh)

    def _pairs(self, pages: Offsets, stacks: Sequence[Stack]) -> Iterator[tuple[int, Bytes]]:
        for stack in stacks:
            for page, row in zip(pages[stack.indices].tolist(), stack.rows.tolist(), strict=True):
                yield page, stack.blocks[row]

    def _checked(self, page: Any) -> Bytes:
        flat = _flat(page)
        if flat.nbytes != self.page_bytes:
            raise InvalidArgumentError("host pool", f"a flat page has {flat.nbytes} bytes, {self.page_bytes} belong")
        return flat


def _pages_of(pool: Any, layout: str, page_tokens: int) -> Pages:
    tensor: Any = getattr(pool, "kv_buffer", None)
    if layout in TOKEN_AXES and hasattr(tensor, "data_ptr") and tensor.is_contiguous() and tensor.device.type == "cpu":
        pages = TensorPages(tensor, layout, page_tokens)
        _check_meta(pool, pages, page_tokens)
        return pages
    if not all(
        hasattr(pool, name) for name in ("get_data_page", "get_dummy_flat_data_page", "set_from_flat_data_page")
    ):
        reason = f"layout {layout!r}: neither one host tensor in {', '.join(TOKEN_AXES)} nor flat data pages"
        raise InvalidArgumentError("host pool", f"{type(pool).__name__} cannot be served: {reason}")
    return FlatPages(pool, page_tokens)


def _check_meta(pool: Any, pages: TensorPages, page_tokens: int) -> None:
    """The first and the last page lie where the pool says. Raises InvalidArgumentError."""
    if not hasattr(pool, "get_page_buffer_meta"):
        return
    import torch  # whoever has a pool has torch

    for page in {0, pages.count - 1}:
        tokens = torch.arange(page * page_tokens, (page + 1) * page_tokens)
        places, sizes = pool.get_page_buffer_meta(tokens)
        ours = pages.addresses(page).tolist()
        if sorted(places) != ours or sum(sizes) != pages.page_bytes:
            said = f"{len(places)} parts, {sum(sizes)} bytes; expected {len(ours)} parts, {pages.page_bytes} bytes"
            raise InvalidArgumentError("host pool", f"page {page} lies elsewhere than its layout says: {said}")


def _asked(pool: Any, name: str) -> Any:
    if not hasattr(pool, name):
        raise InvalidArgumentError(f"host pool.{name}", f"{type(pool).__name__} has none")
    return getattr(pool, name)


def _dtypes(pool: Any) -> str:
    """The dtype in memory and, where it differs, what it stands for: fp8 pools of either kind are stored as uint8."""
    kinds = (_asked(pool, "dtype"), getattr(getattr(pool, "device_pool", None), "dtype", None))
    return "-".join(dict.fromkeys(str(kind).removeprefix("torch.") for kind in kinds if kind is not None))


def _flat(tensor: Any) -> Bytes:
    """A contiguous host tensor's bytes, no copy."""
    import torch

    flat: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return flat
