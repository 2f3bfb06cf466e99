"""Reading and writing single tokens of a sequence: block by block, by the layout's views. Pages are faulted as needed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.paging.states import PageState
from hybridkv.service.client.core import Budget
from hybridkv.service.client.outputs import rows_of
from hybridkv.service.client.pages import IN_PLACE, Pages
from hybridkv.service.client.token_views import RAW_DTYPES, TOKEN_AXIS, raw_tokens, shape_of, tokens_of
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.layout import DTYPE_BYTES, BlockLayout


def write_tokens(pages: Pages, layout: BlockLayout, length: int, position: int, kv: Any, budget: Budget) -> None:
    """See `Sequence.write`. Raises InvalidArgumentError past the sequence's end."""
    _check_host(pages)
    shape_of(layout, 0)
    raw = raw_tokens(kv, layout, "kv")
    count = raw.shape[TOKEN_AXIS]
    start = _checked_range(position, count, length)
    if not count:
        return
    spans = list(_spans(start, count, layout.block_tokens))
    slots = pages.writable(np.array([block for block, _, _ in spans]), budget)
    for (_, first, part), slot in zip(spans, slots, strict=True):
        tokens = tokens_of(pages.memory.writable_block(slot), layout)
        tokens[:, :, first : first + part.stop - part.start] = raw[:, :, part]


def read_tokens(
    pages: Pages, layout: BlockLayout, length: int, position: int, count: int, budget: Budget
) -> npt.NDArray[Any]:
    """See `Sequence.read`."""
    out = np.empty(shape_of(layout, checked_int("count", count, 0, 1 << 40)), RAW_DTYPES[DTYPE_BYTES[layout.dtype]])
    start = _checked_range(position, count, length)
    spans = list(_spans(start, count, layout.block_tokens))
    blocks = np.array([block for block, _, _ in spans], np.int64)
    rows = np.empty((len(blocks), layout.block_bytes), np.uint8)
    states = pages.copy_out(blocks, rows_of(rows, len(blocks), layout.block_bytes), budget)
    empty = np.flatnonzero(~np.isin(states, IN_PLACE))
    if len(empty):
        block, state = int(blocks[empty[0]]), PageState(states[empty[0]])
        raise FailedPreconditionError(f"sequence {pages.sequence}: block {block} is {state.name}: it has no content")
    for (_, first, part), row in zip(spans, rows, strict=True):
        out[:, :, part] = tokens_of(row, layout)[:, :, first : first + part.stop - part.start]
    return out


def _spans(start: int, count: int, block_tokens: int) -> Iterator[tuple[int, int, slice]]:
    """(block, first token in it, the tokens of the range that lie in it)."""
    done = 0
    while done < count:
        block, first = divmod(start + done, block_tokens)
        part = min(block_tokens - first, count - done)
        yield block, first, slice(done, done + part)
        done += part


def _checked_range(position: int, count: int, length: int) -> int:
    start = checked_int("position", position, 0, length)
    if start + count > length:
        raise InvalidArgumentError("position", f"{start} and {count} tokens end behind the sequence's {length}")
    return start


def _check_host(pages: Pages) -> None:
    if pages.memory.is_device(pages.pool):
        raise FailedPreconditionError("the sequence lies in device memory: write to `writable` or to a table's layers")
