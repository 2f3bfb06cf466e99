"""Copies between vLLM's per-layer caches and blocks in host memory, one layer of many blocks at a time.

`HostTransfer` is for caches in host memory; `cuda_transfer.py` has the one for devices. Both sides of a copy must stay where
they are until it is done: blocks by a lease or a reservation, vLLM's blocks by its scheduler.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.connectors.vllm.layout import GroupLayout, Rows, rows_of
from hybridkv.service.client.memory import Stack

Ids = npt.NDArray[np.int64]


class Transfer(Protocol):
    """One group's copies. `ids[i]` is vLLM's block of the hold's block i. Layers are counted within the group."""

    def scatter(self, layer: int, stacks: Sequence[Stack], ids: Ids) -> None:
        """Blocks into the layer's cache; may still be under way when it returns: see `scattered`."""

    def scattered(self, layer: int) -> Any:
        """A mark behind the layer's scatters so far, for `wait`."""

    def wait(self, mark: Any) -> None:
        """Have the computation of the calling thread wait for what lies before `mark`."""

    def finish(self) -> None:
        """Return once every scatter so far has been done."""

    def mark_computed(self) -> Any:
        """A mark behind what the calling thread has computed so far, for `gather`."""

    def gather(self, layer: int, stacks: Sequence[Stack], ids: Ids, computed: Any) -> None:
        """The layer's pages into blocks; done when it returns. Starts once `computed` is reached."""


class HostTransfer:
    """Host to host. Everything is done when it returns, so that marks say nothing. Copies release the GIL."""

    def __init__(self, layout: GroupLayout, caches: Sequence[Any]) -> None:
        """`caches`: the group's tensors in the order of its layers."""
        self._rows: list[Rows] = [rows_of(cache, page) for cache, page in zip(caches, layout.pages, strict=True)]
        self._ranges = [
            slice(start, start + page.nbytes) for start, page in zip(layout.offsets, layout.pages, strict=True)
        ]

    def scatter(self, layer: int, stacks: Sequence[Stack], ids: Ids) -> None:
        for stack, pages in self._pages(layer, stacks):
            copy_rows(pages, stack.rows, self._rows[layer], ids[stack.indices])

    def gather(self, layer: int, stacks: Sequence[Stack], ids: Ids, computed: Any) -> None:
        for stack, pages in self._pages(layer, stacks):
            copy_rows(self._rows[layer], ids[stack.indices], pages, stack.rows)

    def _pages(self, layer: int, stacks: Sequence[Stack]) -> list[tuple[Stack, Rows]]:
        """Each stack's blocks, seen as this layer's pages."""
        rows, cut = self._rows[layer], self._ranges[layer]
        return [(s, s.blocks[:, cut].view(rows.dtype).reshape(len(s.blocks), *rows.shape[1:])) for s in stacks]

    def scattered(self, layer: int) -> None:
        return None

    def wait(self, mark: None) -> None:
        return None

    def finish(self) -> None:
        return None

    def mark_computed(self) -> None:
        return None


def copy_rows(source: Rows, at: Ids, target: Rows, to: Ids) -> None:
    """`target[to[i]] = source[at[i]]`. Long runs of neighbours on both sides go as one piece each, without the
    intermediate copy that an indexed assignment makes."""
    breaks = np.flatnonzero((np.diff(at) != 1) | (np.diff(to) != 1)) + 1
    if len(breaks) * MIN_RUN > len(at):
        target[to] = source[at]
        return
    for first, last in pairwise([0, *breaks.tolist(), len(at)]):
        count = last - first
        target[to[first] : to[first] + count] = source[at[first] : at[first] + count]


MIN_RUN = 8
"""Mean length of runs from which they are copied one by one."""
