"""Copies between caches on a CUDA device and blocks in host memory. NOT RUN ON A GPU YET: tested against a fake.

Host memory that this process maps from the daemon is not page-locked here, so that pages go through page-locked buffers of our
own. Loads run on one stream and stores on another, so that neither delays the computation, which waits by events only.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridkv.connectors.vllm.layout import GroupLayout, Page, Rows
from hybridkv.connectors.vllm.transfer import Ids, copy_rows
from hybridkv.service.client.memory import Stack

if TYPE_CHECKING:
    import torch


class Streams:
    """What is CUDA's own of it: streams, events and page-locked memory of one device. The fake of the tests has these."""

    def __init__(self, device: "torch.device") -> None:
        import torch

        self._cuda: Any = torch.cuda
        self.device = device
        self.load = self._cuda.Stream(device)
        self.store = self._cuda.Stream(device)

    def on(self, stream: Any) -> AbstractContextManager[None]:
        """Inside, work goes to `stream`."""
        entered: AbstractContextManager[None] = self._cuda.stream(stream)
        return entered

    def record(self, stream: Any = None) -> Any:
        """An event behind what the stream was given so far; None: the calling thread's current one."""
        event = self._cuda.Event()
        event.record(self._cuda.current_stream(self.device) if stream is None else stream)
        return event

    def have_wait(self, event: Any, stream: Any = None) -> None:
        """The stream (None: the current one) goes on only behind `event`."""
        (self._cuda.current_stream(self.device) if stream is None else stream).wait_event(event)

    def pinned(self, nbytes: int) -> "torch.Tensor":
        """Page-locked host memory, uint8 [nbytes]."""
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


class CudaTransfer:
    """One group's copies, host to device and back. Scatters belong to one thread and gathers to another."""

    def __init__(self, layout: GroupLayout, caches: "Sequence[torch.Tensor]", streams: Streams) -> None:
        """`caches`: the group's tensors in the order of its layers."""
        self._layout = layout
        self._streams = streams
        self._pages = [pages_of(cache, page) for cache, page in zip(caches, layout.pages, strict=True)]
        self._kept: list[tuple[Any, torch.Tensor]] = []

    def scatter(self, layer: int, stacks: Sequence[Stack], ids: Ids) -> None:
        """The pages into page-locked memory here, the rest on the load stream."""
        import torch

        page, cache = self._layout.pages[layer], self._pages[layer]
        staging = self._streams.pinned(len(ids) * page.nbytes)
        rows = staging.numpy().reshape(len(ids), page.nbytes)
        for stack in stacks:
            copy_rows(self._cut(layer, stack), stack.rows, rows, stack.indices)
        with self._streams.on(self._streams.load):
            device = staging.to(cache.device, non_blocking=True).view(cache.dtype)
            cache.index_copy_(0, torch.from_numpy(ids).to(cache.device), device.reshape(len(ids), *cache.shape[1:]))
            self._kept.append((self._streams.record(self._streams.load), staging))

    def scattered(self, layer: int) -> Any:
        return self._streams.record(self._streams.load)

    def wait(self, mark: Any) -> None:
        self._streams.have_wait(mark)

    def finish(self) -> None:
        """The buffers of copies that are over go back."""
        for event, _ in self._kept:
            event.synchronize()
        self._kept.clear()

    def mark_computed(self) -> Any:
        return self._streams.record()

    def gather(self, layer: int, stacks: Sequence[Stack], ids: Ids, computed: Any) -> None:
        import torch

        page, cache, wanted = self._layout.pages[layer], self._pages[layer], np.concatenate([s.indices for s in stacks])
        staging = self._streams.pinned(len(wanted) * page.nbytes)
        self._streams.have_wait(computed, self._streams.store)
        with self._streams.on(self._streams.store):
            chosen = cache.index_select(0, torch.from_numpy(ids[wanted]).to(cache.device))
            staging.copy_(chosen.reshape(-1).view(torch.uint8), non_blocking=True)
            done = self._streams.record(self._streams.store)
        done.synchronize()
        rows, first = staging.numpy().reshape(len(wanted), page.nbytes), 0
        for stack in stacks:
            copy_rows(rows, np.arange(first, first + len(stack.rows)), self._cut(layer, stack), stack.rows)
            first += len(stack.rows)

    def _cut(self, layer: int, stack: Stack) -> Rows:
        """The layer's pages of a stack's blocks."""
        start = self._layout.offsets[layer]
        return stack.blocks[:, start : start + self._layout.pages[layer].nbytes]


def pages_of(cache: "torch.Tensor", page: Page) -> "torch.Tensor":
    """The cache as int64 [blocks, runs…, words], no copy (uint8 where a run is no multiple of 8 bytes)."""
    import torch

    item = cache.element_size()
    fits = all(size % 8 == 0 for size in (page.run_bytes, cache.stride(0) * item, cache.storage_offset() * item))
    fits = fits and all(stride % 8 == 0 for _, stride in page.runs)
    dtype, width = (torch.int64, 8) if fits else (torch.uint8, 1)
    flat = torch.empty(0, dtype=dtype, device=cache.device).set_(cache.untyped_storage())
    shape = (cache.shape[0], *(count for count, _ in page.runs), page.run_bytes // width)
    strides = (cache.stride(0) * item // width, *(stride // width for _, stride in page.runs), 1)
    return flat.as_strided(shape, strides, cache.storage_offset() * item // width)
