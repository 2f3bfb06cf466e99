"""Block tables: where the blocks of sequences lie, as paged-attention kernels take it, held while kernels use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from hybridkv.paging.replies import Want
from hybridkv.paging.states import PageState
from hybridkv.paging.windows import Window, reach
from hybridkv.service.client.core import Budget
from hybridkv.service.client.hold import Hold
from hybridkv.service.client.pages import IN_PLACE, Pages
from hybridkv.service.client.token_views import layer_tensor
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.device.views import tensor_of
from hybridkv.tiers.errors import (
    ExpiredError,
    FailedPreconditionError,
    HybridKVError,
    InvalidArgumentError,
    NotFoundError,
)
from hybridkv.tiers.layout import BlockLayout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Row:
    """What one sequence puts in a table: `blocks` virtual blocks of `tokens` tokens; those from `write_from` on are to be
    written, those in `reads` (start, end) are to be read."""

    pages: Pages
    tokens: int
    blocks: int
    write_from: int
    reads: tuple[tuple[int, int], ...]


def row_of(pages: Pages, tokens: int, block_tokens: int, write_from: int | None, window: Window | None) -> Row:
    """The row of a sequence of `tokens` tokens, to be written from position `write_from` on (None: nowhere). Raises
    InvalidArgumentError."""
    at = checked_int("write_from", tokens if write_from is None else write_from, 0, tokens)
    blocks = -(-tokens // block_tokens)
    first = blocks if at == tokens else at // block_tokens
    spans = [range(blocks)]
    if window is not None:
        seen = reach(window, max(0, tokens - 1), tokens, block_tokens)
        spans = [seen.sinks, seen.window]
    reads = tuple((span.start, min(span.stop, first)) for span in spans if span.start < min(span.stop, first))
    return Row(pages, tokens, blocks, first, reads)


class _Held(Hold):
    """One lease, kept alive by the session's renewer."""

    def give_back(self) -> bool:
        """Whether the daemon must be told."""
        return self._end()


class BlockTable:
    """Tables of one or more sequences of one pool; a context manager that lets go at its end. Thread-safe.

    `array`: int32 [sequences, most blocks], the block's address in the pool divided by block_bytes, which is its row in
    `layer`; 0 fills up rows that are shorter, and stands for blocks that a window leaves out. `lengths`: int32
    [sequences], tokens; they say how much of a row counts. What is readable is leased: it stays where it is until
    `release`. Blocks to be written are the sequence's own: they stay until it is forked, suspended, published or closed.
    """

    def __init__(self, rows: Sequence[Row], layout: BlockLayout, budget: Budget, timeout_s: float) -> None:
        """Faults everything in and holds it. Raises what a fault does, FailedPreconditionError for a block that has no
        content, InvalidArgumentError for sequences of several pools or sessions; nothing is held then."""
        self._pages = _common(rows)
        self._layout = layout
        self._timeout_s = timeout_s
        self._held: list[_Held] = []
        self.pool = self._pages.pool
        self.lengths: npt.NDArray[np.int32] = np.array([row.tokens for row in rows], np.int32)
        self.array: npt.NDArray[np.int32] = np.zeros((len(rows), max(row.blocks for row in rows)), np.int32)
        try:
            self._fill(rows, budget)
        except BaseException:
            self.release()
            raise

    @property
    def valid(self) -> bool:
        """Whether everything in it is still held. Turns False for good."""
        return all(held.valid for held in self._held)

    def layer(self, layer: int, *, writable: bool = False) -> "torch.Tensor":
        """K and V of a layer over the whole pool: [slots, 2, tokens, heads, dim], no copy; see `layer_tensor`.

        `writable`: for blocks to be written; host memory is mapped read-only otherwise, and a write to it faults.
        """
        pool = self._pages.memory.pool(self.pool, writable=writable)
        return layer_tensor(tensor_of(pool) if isinstance(pool, np.ndarray) else pool, self._layout, layer)

    def tensor(self, device: str = "cpu") -> "torch.Tensor":
        """`array` as torch.int32 on `device`."""
        import torch

        return torch.from_numpy(self.array).to(device)

    def release(self) -> None:
        """Let go: blocks may move from now on. What kernels on the current stream still read is waited for by the daemon,
        not here. May be called again."""
        ended = [held for held in self._held if held.give_back()]
        if not ended:
            return
        memory = self._pages.memory
        events = memory.events({self.pool}) if memory.is_device(self.pool) else []
        for held in ended:
            try:
                self._pages.attachment.transport.release(held.hold_id, events=events, timeout_s=self._timeout_s)
            except (LostError, NotFoundError, ExpiredError):
                continue  # gone already, which is what was asked for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.release()
        except HybridKVError:
            if error is None:
                raise

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"BlockTable({len(self)} sequences, {self.array.shape[1]} blocks, pool {self.pool})"

    # ------------------------------------------------------------------------------------------------ inside

    def _fill(self, rows: Sequence[Row], budget: Budget) -> None:
        limit = self._pages.attachment.attached.limits.keys_per_call_count
        for wants, places in _calls(rows, limit):
            reply = self._pages.fault_wants(wants, budget, hold=True)
            for lease in reply.leases:
                if lease:
                    self._held.append(_Held(self._pages.attachment, lease, reply.expires_in_s, "block table"))
            at = 0
            for want, (number, row) in zip(wants, places, strict=True):
                part = slice(at, at + len(want.blocks))
                self._place(number, row, want, reply.states[part], reply.slots[part])
                at += len(want.blocks)

    def _place(
        self, number: int, row: Row, want: Want, states: npt.NDArray[np.uint8], slots: npt.NDArray[np.void]
    ) -> None:
        empty = np.flatnonzero(~np.isin(states, IN_PLACE))
        if len(empty):
            block, state = int(want.blocks[empty[0]]), PageState(states[empty[0]])
            raise FailedPreconditionError(f"sequence {want.sequence}: block {block} is {state.name}: it has no content")
        row.pages.tlb.learn(want.blocks, slots)
        offsets = slots["offset"].astype(np.int64)
        if np.any(offsets % self._layout.block_bytes):
            raise FailedPreconditionError(f"pool {self.pool}: its memory is several allocations, no table spans them")
        self.array[number, want.blocks] = offsets // self._layout.block_bytes


def _common(rows: Sequence[Row]) -> Pages:
    if not rows:
        raise InvalidArgumentError("sequences", "must not be empty")
    first = rows[0].pages
    for row in rows:
        row.pages.check_open()
        if row.pages.attachment is not first.attachment or row.pages.pool != first.pool:
            raise InvalidArgumentError("sequences", "must be of one client and lie in one pool")
    return first


def _calls(rows: Sequence[Row], limit: int) -> list[tuple[list[Want], list[tuple[int, Row]]]]:
    """Wants of all rows, in calls of at most `limit` blocks, each with the row's number."""
    calls: list[tuple[list[Want], list[tuple[int, Row]]]] = []
    room = 0
    for number, row in enumerate(rows):
        spans = [*((start, end, False) for start, end in row.reads), (row.write_from, row.blocks, True)]
        for start, end, write in spans:
            at = start
            while at < end:
                if room == 0:
                    calls.append(([], []))
                    room = limit
                count = min(room, end - at)
                calls[-1][0].append(Want(row.pages.sequence, np.arange(at, at + count), write))
                calls[-1][1].append((number, row))
                at += count
                room -= count
    return calls
