"""Where a block's bytes are in vLLM's per-layer tensors, and what of that is identity.

A block here is layer-major: the page of the group's first layer, then the second's, and so on. A page is one layer's part of
one of vLLM's blocks, in its physical order, as opaque bytes: what a backend puts in it is its own business.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hybridkv.connectors.vllm.groups import Group
from hybridkv.tiers.errors import FailedPreconditionError

if TYPE_CHECKING:
    import torch

Rows = npt.NDArray[Any]
_WORDS = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Page:
    """One layer's part of a block.

    `shape` is the logical one of a block, `order` its axes from the outermost in memory to the innermost. `runs` are
    (count, stride in bytes) of the axes that are not contiguous with what lies inside them; `run_bytes` is what is.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    run_bytes: int

    @property
    def nbytes(self) -> int:
        return self.run_bytes * int(np.prod([count for count, _ in self.runs], dtype=np.int64))

    def identity(self) -> tuple[object, ...]:
        """What must be equal for two engines to share a page; where it lies in the engine's memory is not part of it."""
        return self.dtype, self.shape, self.order


def page_of(layer: str, tensor: "torch.Tensor", blocks: int) -> Page:
    """The page of a layer's cache, a tensor whose first axis is the block. Raises FailedPreconditionError."""
    if tensor.dim() < 2 or tensor.shape[0] != blocks:
        shape = tuple(tensor.shape)
        raise FailedPreconditionError(
            f"hybridkv cannot serve {layer}: its cache of shape {shape} does not start with the {blocks} blocks"
        )
    item = tensor.element_size()
    shape, strides = tuple(tensor.shape[1:]), tuple(stride * item for stride in tensor.stride()[1:])
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis)))
    runs, run_bytes = _collapsed([(shape[axis], strides[axis]) for axis in order], item)
    return Page(str(tensor.dtype).removeprefix("torch."), shape, order, runs, run_bytes)


def _collapsed(axes: list[tuple[int, int]], item: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Axes from the outermost in; those that are contiguous with all that lies inside them become one run of bytes."""
    run_bytes = item
    while axes and (axes[-1][1] == run_bytes or axes[-1][0] == 1):
        run_bytes *= axes.pop()[0]
    return tuple(axis for axis in axes if axis[0] > 1), run_bytes


def rows_of(tensor: "torch.Tensor", page: Page) -> Rows:
    """A host tensor's blocks as an array of words [blocks, runs…, run], no copy: `rows[ids]` are whole pages."""
    import torch

    base = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    start, pitch = int(tensor.storage_offset()) * tensor.element_size(), tensor.stride(0) * tensor.element_size()
    word = _word_of(start, pitch, page.run_bytes, *(stride for _, stride in page.runs))
    flat = base.numpy()[start:]
    words = flat[: len(flat) // word * word].view(f"u{word}")
    shape = (tensor.shape[0], *(count for count, _ in page.runs), page.run_bytes // word)
    strides = (pitch, *(stride for _, stride in page.runs), word)
    return np.lib.stride_tricks.as_strided(words, shape, strides)


def _word_of(*sizes: int) -> int:
    """The largest word that all of these byte counts are multiples of."""
    return next(word for word in _WORDS if all(size % word == 0 for size in sizes))


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """A group's block: `offsets[l]` is where layer l's page starts in it."""

    group: Group
    pages: tuple[Page, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        ends = np.cumsum([page.nbytes for page in self.pages]).tolist()
        return (0, *ends[:-1])

    @property
    def payload_bytes(self) -> int:
        return sum(page.nbytes for page in self.pages)

    def identity(self) -> tuple[object, ...]:
        return self.group.window, tuple(page.identity() for page in self.pages)


def layout_of(group: Group, caches: "dict[str, torch.Tensor]", blocks: int) -> GroupLayout:
    """The layout of a group from the caches that vLLM registered."""
    missing = [layer for layer in group.layers if layer not in caches]
    if missing:
        raise FailedPreconditionError(f"hybridkv cannot serve this model: vLLM registered no cache for {missing[0]}")
    return GroupLayout(group, tuple(page_of(layer, caches[layer], blocks) for layer in group.layers))
