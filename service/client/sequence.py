"""`Sequence`: a virtual KV address space of one request, over the daemon's own pool."""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from hybridkv.paging.replies import AdvanceReply, ResizeReply, ResumeReply, StickyReply, SuspendReply
from hybridkv.paging.windows import Window
from hybridkv.service.client.block_table import BlockTable, Row, row_of
from hybridkv.service.client.core import Budget
from hybridkv.service.client.memory import Events
from hybridkv.service.client.outputs import rows_of
from hybridkv.service.client.pages import Located, Pages
from hybridkv.service.client.sequence_tokens import SequenceTokens
from hybridkv.service.client.tlb import Tlb, TlbCounts
from hybridkv.service.client.token_io import read_tokens, write_tokens
from hybridkv.service.client.translated import Translated, translated
from hybridkv.service.sequence_codec import column_of
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.errors import ExpiredError, HybridKVError, InvalidArgumentError
from hybridkv.tiers.keys import Keys

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
States = npt.NDArray[np.uint8]
WAIT_S = 1.0
_REPORT_EVERY = 4096


class Sequence:
    """Tokens of a request, and the pages that hold their KV. A context manager that closes at its end. Thread-safe, but for
    writers: one at a time, and none while it is forked, suspended, published or closed.

    Unit of its methods: *positions* are tokens, *blocks* are position // block_tokens, whatever the page size. Methods with
    `timeout_s` may wait so long for copies and room, and raise DeadlineExceededError beyond, ResourceExhaustedError when no
    room can be made; nothing has changed then. A sequence ends with its session (ExpiredError).
    """

    def __init__(self, pages: Pages, tokens: SequenceTokens, page_blocks: int, cached: int, timeout_s: float) -> None:
        """Made by `KV.open_sequence` and `fork`. `cached`: blocks that were found."""
        self._pages = pages
        self._calls = pages.attachment.transport.sequences
        self._tokens = tokens
        self._published = cached
        self._timeout_s = timeout_s
        self._reported = TlbCounts()
        self._page_blocks = page_blocks
        self.cached_blocks = cached
        self.layout = tokens.space.layout
        self._block_tokens = self.layout.block_tokens

    # ------------------------------------------------------------------------------------------------ figures

    def __len__(self) -> int:
        """Tokens of the space."""
        return len(self._tokens)

    @property
    def sequence_id(self) -> int:
        return self._pages.sequence

    @property
    def cached_tokens(self) -> int:
        """Tokens at the start whose KV was found when it was opened."""
        return self.cached_blocks * self.layout.block_tokens

    @property
    def blocks(self) -> int:
        """Blocks of the space, the last of which may be partial."""
        return -(-len(self) // self.layout.block_tokens)

    @property
    def keys(self) -> Keys:
        """Keys of the full blocks."""
        return self._tokens.keys

    @property
    def pool(self) -> int:
        """Index of the pool that its pages lie in."""
        return self._pages.pool

    @property
    def tlb_counts(self) -> TlbCounts:
        return self._pages.tlb.counts

    @property
    def page_blocks(self) -> int:
        """Blocks of a page, as told last."""
        return self._page_blocks

    def describe(self) -> dict[str, Any]:
        """The daemon's figures of it; docs/paging.md lists them."""
        budget = self._budget()
        return self._told(lambda: self._calls.describe(self.sequence_id, timeout_s=budget.left_s()))

    # ------------------------------------------------------------------------------------------------ content

    def extend(self, tokens: Any) -> int:
        """Make the space longer by these tokens; the new length. Nothing is allocated until it is written."""
        more = self._tokens.following(tokens)
        budget = self._budget()
        self._told(lambda: self._calls.extend([(self.sequence_id, more.added)], timeout_s=budget.left_s()))
        self._tokens = more.after
        return len(self)

    def write(self, position: int, kv: Any, *, timeout_s: float = WAIT_S) -> None:
        """Write tokens from `position` on: an array or CPU tensor of the layout's order ([layers, 2, tokens, heads, dim], or
        [2, layers, tokens, heads, dim]) and item size. Pages are allocated, or copied when they are shared."""
        write_tokens(self._pages, self.layout, len(self), position, kv, self._budget(timeout_s))

    def read(self, position: int, count: int, *, timeout_s: float = WAIT_S) -> npt.NDArray[Any]:
        """A copy of `count` tokens from `position` on, as raw items in the layout's order. Raises FailedPreconditionError
        where a block has no content."""
        return read_tokens(self._pages, self.layout, len(self), position, count, self._budget(timeout_s))

    def write_blocks(self, blocks: Listed[int], data: Any, *, timeout_s: float = WAIT_S) -> None:
        """Write whole blocks: `data` has a row of block_bytes bytes for each."""
        chosen = self._blocks(blocks)
        rows = np.asarray(data).reshape(len(chosen), -1).view(np.uint8)
        if rows.shape[1] != self.layout.block_bytes:
            raise InvalidArgumentError("data", f"has rows of {rows.shape[1]} bytes; {self.layout.block_bytes} belong")
        slots = self._pages.writable(chosen, self._budget(timeout_s))
        for slot, row in zip(slots, rows, strict=True):
            self._pages.memory.writable_block(slot)[:] = row

    def read_blocks(self, blocks: Listed[int], out: Any, *, timeout_s: float = WAIT_S) -> States:
        """Copy blocks to the rows of `out` (see `KV.read`); a PageState each. READABLE, WRITABLE and FRESH rows are the
        block, others hold anything: UNMAPPED was never written, LOST has to be computed again. No call where translations
        are known."""
        chosen = self._blocks(blocks)
        target = rows_of(out, len(chosen), self.layout.block_bytes)
        states = self._pages.copy_out(chosen, target, self._budget(timeout_s))
        self._report()
        return states

    def writable(self, block: int, *, timeout_s: float = WAIT_S) -> "torch.Tensor":
        """The block as torch.uint8 [block_bytes] to be written in place, on the device it lies on, until the sequence is
        forked, suspended, published or closed. A shared block is copied first."""
        (slot,) = self._pages.writable(self._blocks([block]), self._budget(timeout_s))
        return self._pages.memory.tensor(slot, writable=True)

    def publish(self, tokens: int | None = None, *, timeout_s: float = WAIT_S) -> States:
        """Seal the full blocks up to `tokens` tokens (None: all) that are not published yet: others find them from now on. A
        PublishOutcome each. Their content must be written; views of them must be written to no more."""
        length = checked_int("tokens", len(self) if tokens is None else tokens, 0, len(self))
        budget = self._budget(timeout_s)
        outcomes = [np.zeros(0, np.uint8)]
        while self._published < length // self.layout.block_tokens:
            end = min(length // self.layout.block_tokens, self._published + self._limit)
            outcomes.append(self._publish(self._published, end, budget))
            self._published = end
        return np.concatenate(outcomes)

    # ------------------------------------------------------------------------------------------------ addresses

    def locate(self, position: int) -> Located | None:
        """Where a position is now; None where nothing is mapped or its block lies in a lower tier. No call on a TLB hit. Not
        held: to read what lies there, `read`, or take a `block_table`."""
        block, token = divmod(position, self._block_tokens)
        found = self._pages.locate(block, token)
        return found if found is not None else self._looked_up(position)

    def translate(self, positions: Any) -> Translated:
        """`locate` for an array of positions, int [n]."""
        return translated(self._pages, self.layout, len(self), positions, self._budget())

    def block_table(
        self, *, write_from: int | None = None, window: Window | None = None, timeout_s: float = WAIT_S
    ) -> BlockTable:
        """The table of the whole sequence, faulted in and held until released; from position `write_from` on for writing.
        With `window` only what attention at the last position looks at; other entries are 0. For several sequences at once:
        `KV.block_table`."""
        rows = [self.table_row(write_from, window)]
        return BlockTable(rows, self.layout, self._budget(timeout_s), self._timeout_s)

    def table_row(self, write_from: int | None = None, window: Window | None = None) -> Row:
        """What the sequence puts in a block table."""
        return row_of(self._pages, len(self), self._block_tokens, write_from, window)

    def fault(self, blocks: Listed[int], *, write: bool = False, timeout_s: float = WAIT_S) -> States:
        """Bring blocks up (or make them writable) without reading them: a PageState each."""
        return self._pages.fault(self._blocks(blocks), self._budget(timeout_s), write=write).states

    # ------------------------------------------------------------------------------------------------ life

    def fork(self, count: int = 1, *, timeout_s: float = WAIT_S) -> "list[Sequence]":
        """So many sequences equal to this one. Pages are shared until one of them is written to."""
        budget = self._budget(timeout_s)
        made: tuple[int, ...] = self._told(
            lambda: self._calls.fork(
                self.sequence_id, count, events=self._events(), wait_s=budget.wait_s(), timeout_s=budget.left_s()
            )
        )
        self._pages.tlb.clear()
        return [self._twin(number) for number in made]

    def suspend(self, *, timeout_s: float = WAIT_S) -> SuspendReply:
        """Leave the pool as a whole: what others do not use goes down a tier."""
        budget = self._budget(timeout_s)
        self._report(always=True)
        reply: SuspendReply = self._told(
            lambda: self._calls.suspend(
                [self.sequence_id], events=self._events(), wait_s=budget.wait_s(), timeout_s=budget.left_s()
            )
        )
        self._pages.tlb.clear()
        return reply

    def resume(self, *, timeout_s: float = WAIT_S) -> ResumeReply:
        """Come back in one batch."""
        budget = self._budget(timeout_s)
        return self._told(
            lambda: self._calls.resume([self.sequence_id], wait_s=budget.wait_s(), timeout_s=budget.left_s())
        )

    def advance(self, position: int, window: Window | None = None) -> AdvanceReply:
        """Tell where decode is, so that pages ahead are fetched and what is behind the window may go. `window` None: as told
        before, or as the accesses look."""
        budget = self._budget()
        return self._told(lambda: self._calls.advance(self.sequence_id, position, window, timeout_s=budget.left_s()))

    def adjust_page_size(self, page_blocks: int, *, timeout_s: float = WAIT_S) -> ResizeReply:
        """Pages of so many blocks from now on; only what adjacency demands is copied."""
        budget = self._budget(timeout_s)
        reply: ResizeReply = self._told(
            lambda: self._calls.adjust_page_size(
                page_blocks, self.sequence_id, wait_s=budget.wait_s(), timeout_s=budget.left_s()
            )
        )
        self._pages.tlb.clear()
        self._page_blocks = reply.page_blocks
        return reply

    def set_sticky(self, first_block: int, count: int, sticky: bool = True) -> StickyReply:
        """Never evict these blocks (sinks, system prompts). Raises ResourceExhaustedError beyond the pool's limit."""
        budget = self._budget()
        return self._told(
            lambda: self._calls.set_sticky(self.sequence_id, first_block, count, sticky, timeout_s=budget.left_s())
        )

    def close(self) -> None:
        """Give everything back. May be called again, and after the session has ended."""
        if self._pages.closed:
            return
        try:
            self._report(always=True)
            budget = self._budget()
            self._told(lambda: self._calls.close([self.sequence_id], events=self._events(), timeout_s=budget.left_s()))
        except ExpiredError:
            return  # gone already, which is what was asked for
        finally:
            self._pages.closed = True
            self._pages.tlb.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except HybridKVError:
            if error is None:
                raise

    def __repr__(self) -> str:
        state = "closed" if self._pages.closed else f"{len(self)} tokens, {self.blocks} blocks in pool {self.pool}"
        return f"Sequence({self.sequence_id}, {state})"

    # ------------------------------------------------------------------------------------------------ inside

    @property
    def _limit(self) -> int:
        return self._pages.attachment.attached.limits.keys_per_call_count

    def _budget(self, wait_s: float = 0.0) -> Budget:
        return Budget(wait_s, self._timeout_s)

    def _told(self, call: Callable[[], T]) -> T:
        return self._pages.told(call)

    def _blocks(self, blocks: Listed[int]) -> npt.NDArray[np.int64]:
        chosen = column_of(blocks)
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < self.blocks:
            raise InvalidArgumentError("blocks", f"must be within the sequence's {self.blocks}")
        return chosen

    def _events(self) -> Events:
        memory = self._pages.memory
        return memory.events({self.pool}) if memory.is_device(self.pool) else []

    def _looked_up(self, position: int) -> Located | None:
        checked_int("position", position, 0, 1 << 62)
        found = self.translate(np.array([position]))
        return Located(int(found.pools[0]), int(found.offsets[0]), int(found.tokens[0])) if found.resident[0] else None

    def _publish(self, first: int, end: int, budget: Budget) -> States:
        keys, pages = self.keys, self._pages
        blocks = np.arange(first, end)
        checksums = None
        if not pages.memory.is_device(self.pool):
            slots = pages.find(blocks)
            if bool((slots["generation"] % 2 == 1).all()):
                sums = (xxhash.xxh3_64_intdigest(pages.memory.block(slot).data) for slot in slots)
                checksums = np.fromiter(sums, np.uint64, len(blocks))
        outcomes: States = self._told(
            lambda: self._calls.publish(
                self.sequence_id,
                first,
                keys[first:end],
                parent=keys[first - 1] if first else b"",
                checksums=checksums,
                events=self._events(),
                wait_s=budget.wait_s(),
                timeout_s=budget.left_s(),
            )
        )
        pages.tlb.forget(blocks)
        return outcomes

    def _twin(self, number: int) -> "Sequence":
        pages = Pages(self._pages.attachment, number, self.pool, Tlb(self._pages.tlb.limit))
        twin = Sequence(pages, self._tokens, self._page_blocks, self.cached_blocks, self._timeout_s)
        twin._published = self._published
        return twin

    def _report(self, *, always: bool = False) -> None:
        """Tell the daemon what the TLB counted, now and then."""
        grown = self.tlb_counts.since(self._reported)
        total = grown.hits + grown.misses
        if total >= _REPORT_EVERY or (always and total):
            self._reported = self.tlb_counts
            budget = self._budget()
            self._told(
                lambda: self._calls.note_translations(
                    max(0, grown.hits), grown.misses, grown.invalidations, timeout_s=budget.left_s()
                )
            )
