"""A sequence's page table: which page of its address space is where, in memory that follows what is mapped.

    position -> block (position // block_tokens) -> page (block // k)
    root[page // 128] -> leaf[page % 128] -> one entry for k blocks in k adjacent slots
                                          -> SPLIT: a table of k entries, where the blocks of a page are not adjacent

Callers map and unmap blocks; the table joins k of them to one entry where their slots are adjacent and of one extent.
Nothing here knows what a block holds, who shares it, or when it is moved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hybridkv.paging.entries import (
    CALLER_FLAGS,
    FLAG_MASK,
    MAPPED,
    NO_FLAG,
    OFFSET_MASK,
    POOL_SHIFT,
    RESIDENT,
    SPLIT,
    Blocks,
    PageFlag,
    Place,
    Words,
    words_of,
)
from hybridkv.paging.nodes import NO_NODE, NodeStore
from hybridkv.paging.table_checks import MAX_SPACE_BLOCKS, checked_blocks, checked_page_blocks, checked_positions
from hybridkv.paging.walk import walk
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.pools import BLOCK_ALIGN_BYTES

_NONE = np.zeros(0, np.int64)

LEAF_SHIFT = 7
LEAF_PAGES = 1 << LEAF_SHIFT
SPLIT_ID_SHIFT = 9  # where an entry that is split has the number of its table, instead of an offset


@dataclass(frozen=True, slots=True)
class Regrouped:
    """What a change of the page size came to: entries before and after, and the pages that only need their blocks moved
    to adjacent slots to become one entry each (all k blocks are mapped and resident, in one pool)."""

    entries_before: int
    entries_after: int
    scattered: npt.NDArray[np.int64]


class PageTable:
    """Blocks of `block_tokens` tokens and `block_bytes` bytes, pages of `page_blocks` (a power of two) blocks.

    `extent_bytes` names the pools whose pages must not cross the end of an extent. Not thread-safe: whoever changes
    tables of one family (a table and its forks share nodes) or reads them holds one lock.
    """

    def __init__(
        self,
        block_tokens: int,
        block_bytes: int,
        page_blocks: int = 1,
        extent_bytes: Mapping[int, int] | None = None,
    ) -> None:
        self.block_tokens = checked_int("block_tokens", block_tokens, 1, 1 << 16)
        self.block_bytes = checked_int("block_bytes", block_bytes, BLOCK_ALIGN_BYTES, 1 << 30)
        if self.block_bytes % BLOCK_ALIGN_BYTES:
            raise InvalidArgumentError("block_bytes", f"must be a multiple of {BLOCK_ALIGN_BYTES}, got {block_bytes}")
        self.page_blocks = checked_page_blocks(page_blocks)
        self._page_shift = self.page_blocks.bit_length() - 1
        self._extent_bytes = dict(extent_bytes or {})
        self._root: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self._leaves = NodeStore(LEAF_PAGES)
        self._splits = NodeStore(self.page_blocks)
        self._blocks = 0
        self._entries = 0

    # ------------------------------------------------------------------------------------------------ figures

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        return self.page_blocks * self.block_tokens

    @property
    def mapped_count(self) -> int:
        """Mapped blocks."""
        return self._blocks

    @property
    def entry_count(self) -> int:
        """Entries in use: one a joined page; for a split page one for it and one for each mapped block."""
        return self._entries

    @property
    def nbytes(self) -> int:
        """Bytes of the table, with nodes it shares with forks counted in full."""
        return self._root.nbytes + self._leaves.nbytes + self._splits.nbytes

    # ------------------------------------------------------------------------------------------------ changes

    def map(self, blocks: Any, pools: Any, offsets: Any, flags: Any = PageFlag.RESIDENT) -> None:
        """Map blocks (int [n], no block twice), or map them elsewhere: pool and byte offset of each one's slot.

        `pools` and `flags` may be single values. Raises InvalidArgumentError; then nothing is changed.
        """
        wanted = checked_blocks(blocks)
        words = np.broadcast_to(words_of(pools, offsets, flags), wanted.shape)
        self._store(wanted, words)

    def unmap(self, blocks: Any) -> None:
        """Unmap blocks; those that are not mapped stay so."""
        wanted = checked_blocks(blocks)
        self._store(wanted, np.zeros(len(wanted), np.int64))

    def set_flags(self, blocks: Any, on: PageFlag = NO_FLAG, off: PageFlag = NO_FLAG) -> None:
        """Change flags (CALLER_FLAGS) of those of `blocks` that are mapped."""
        if (on | off) & ~CALLER_FLAGS:
            raise InvalidArgumentError("flags", f"may hold {CALLER_FLAGS!r} only")
        wanted = checked_blocks(blocks)
        words = self.words(wanted)
        there = words != 0
        self._store(wanted[there], (words[there] & ~np.int64(off)) | np.int64(on))

    def clear(self) -> None:
        """Unmap everything, and give back what is not shared."""
        leaves = np.unique(self._root[self._root != NO_NODE])
        self._splits.release(self._split_ids(leaves[~self._leaves.shared(leaves)]))
        self._leaves.release(leaves)
        self._root = np.zeros(1, np.int64)
        self._blocks = self._entries = 0

    def clone(self) -> Self:
        """A fork's table: equal now, independent from now on. Nodes are copied when one of the two changes them."""
        twin = type(self)(self.block_tokens, self.block_bytes, self.page_blocks, self._extent_bytes)
        self._leaves.share(self._root)
        twin._root, twin._leaves, twin._splits = self._root.copy(), self._leaves, self._splits
        twin._blocks, twin._entries = self._blocks, self._entries
        return twin

    def regroup(self, page_blocks: int) -> Regrouped:
        """Change the page size: join blocks whose slots are adjacent, split pages apart. No block is moved."""
        size = checked_page_blocks(page_blocks)
        before = self._entries
        blocks, words = self.mapped() if before else (_NONE, _NONE)
        self.clear()
        self.page_blocks = size
        self._page_shift = size.bit_length() - 1
        self._leaves, self._splits = NodeStore(LEAF_PAGES), NodeStore(size)
        self._store(blocks, words)
        return Regrouped(before, self._entries, self.scattered())

    # ------------------------------------------------------------------------------------------------ questions

    def words(self, blocks: Any) -> Words:
        """The entry of each block (`paging.entries`), 0 where nothing is mapped; a block of a joined page has its own
        slot's offset."""
        wanted = checked_blocks(blocks, distinct=False)
        return self._lookup(wanted)

    def translate(self, position: int) -> Place | None:
        """Where the token at `position` is, or None where nothing is mapped (past the end, too)."""
        checked_int("position", position, 0, MAX_SPACE_BLOCKS * self.block_tokens - 1)
        block, token = divmod(position, self.block_tokens)
        page, sub = divmod(block, self.page_blocks)
        leaf = page >> LEAF_SHIFT
        if leaf >= len(self._root):
            return None
        word = int(self._leaves.words[(int(self._root[leaf]) << LEAF_SHIFT) + (page & (LEAF_PAGES - 1))])
        if word & SPLIT:
            word = int(self._splits.words[(word >> SPLIT_ID_SHIFT << self._page_shift) + sub])
            sub = 0
        if not word:
            return None
        offset = (word & OFFSET_MASK) + sub * self.block_bytes
        return Place(word >> POOL_SHIFT, offset, token, PageFlag(word & FLAG_MASK))

    def translate_many(self, positions: Any) -> Words:
        """The entry of the block that holds each position, int64 [n]: 0 where nothing is mapped.

        `paging.entries` takes entries apart (`pools_of`, `offsets_of`); the token within the block is
        position % block_tokens. Consecutive positions of one block cost little more than the block.
        """
        return walk(checked_positions(positions), self.block_tokens, self._lookup)

    def mapped(self) -> tuple[Blocks, Words]:
        """All mapped blocks in order, and their entries."""
        leaves = np.flatnonzero(self._root)
        pages = (leaves[:, None] << LEAF_SHIFT) + np.arange(LEAF_PAGES)
        entries = self._leaves.rows()[self._root[leaves]]
        pages = pages[entries != 0]
        words = self._expanded(pages)
        blocks = pages[:, None] * self.page_blocks + np.arange(self.page_blocks)
        return blocks[words != 0], words[words != 0]

    def scattered(self) -> npt.NDArray[np.int64]:
        """Pages whose k blocks are all mapped and resident, with equal flags, in one pool, but not in adjacent slots."""
        if self._blocks == self._entries * self.page_blocks:  # no page is split
            return _NONE
        leaves = np.flatnonzero(self._root)
        entries = self._leaves.rows()[self._root[leaves]]
        pages = ((leaves[:, None] << LEAF_SHIFT) + np.arange(LEAF_PAGES))[(entries & SPLIT) != 0]
        words = self._expanded(pages)
        alike = ((words ^ words[:, :1]) & ~np.int64(OFFSET_MASK)) == 0
        return np.asarray(pages[alike.all(1) & ((words[:, 0] & RESIDENT) != 0)])

    # ------------------------------------------------------------------------------------------------ inside

    def _lookup(self, blocks: Blocks) -> Words:
        pages = blocks if self.page_blocks == 1 else blocks >> self._page_shift
        at = self._root.take(pages >> LEAF_SHIFT, mode="clip")  # past its end the root says NO_NODE
        at <<= LEAF_SHIFT
        at += pages & (LEAF_PAGES - 1)
        words: Words = self._leaves.words.take(at, mode="clip")
        if self.page_blocks == 1:
            return words
        sub = blocks & (self.page_blocks - 1)
        split = (words & SPLIT) != 0
        if not split.any():
            return np.where(words != 0, words + sub * self.block_bytes, 0)
        joined = (words != 0) & ~split
        words[joined] += sub[joined] * self.block_bytes
        words[split] = self._splits.words[(words[split] >> SPLIT_ID_SHIFT << self._page_shift) + sub[split]]
        return words

    def _expanded(self, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The entries of all blocks of pages: int64 [n, page_blocks]."""
        blocks = pages[:, None] * self.page_blocks + np.arange(self.page_blocks)
        return self._lookup(blocks.reshape(-1)).reshape(-1, self.page_blocks)

    def _store(self, blocks: Blocks, words: Words) -> None:
        if not len(blocks):
            return
        if (blocks[1:] <= blocks[:-1]).any():
            order = np.argsort(blocks, kind="stable")
            blocks, words = blocks[order], words[order]
        of_page = blocks >> self._page_shift
        pages = _distinct(of_page)
        places = _distinct(pages >> LEAF_SHIFT)
        self._own_leaves(places)
        if self.page_blocks == 1:
            self._write_single(blocks, words)
        else:
            self._write_spread(of_page, pages, blocks, words)
        if not words.all():
            self._drop_empty_leaves(places)

    def _write_single(self, blocks: Blocks, words: Words) -> None:
        """Pages of one block are always one entry."""
        at = (self._root[blocks >> LEAF_SHIFT] << LEAF_SHIFT) + (blocks & (LEAF_PAGES - 1))
        more = int(np.count_nonzero(words)) - int(np.count_nonzero(self._leaves.words[at]))
        self._leaves.words[at] = words
        self._blocks += more
        self._entries += more

    def _write_spread(self, of_page: Blocks, pages: Blocks, blocks: Blocks, words: Words) -> None:
        spread = self._expanded(pages)
        before = int(np.count_nonzero(spread))
        spread[np.searchsorted(pages, of_page), blocks & (self.page_blocks - 1)] = words
        self._blocks += int(np.count_nonzero(spread)) - before
        self._write(pages, spread)

    def _write(self, pages: npt.NDArray[np.int64], spread: npt.NDArray[np.int64]) -> None:
        """Set whole pages, whose leaves are ours: joined where they can be, split where they cannot."""
        at = (self._root[pages >> LEAF_SHIFT] << LEAF_SHIFT) + (pages & (LEAF_PAGES - 1))
        old = self._leaves.words[at]
        old_split = (old & SPLIT) != 0
        old_ids = old[old_split] >> SPLIT_ID_SHIFT
        self._entries -= int(np.count_nonzero(old)) + int(np.count_nonzero(self._splits.rows()[old_ids]))
        self._splits.release(old_ids)
        split = ~self._joinable(spread) & spread.any(1)
        entries = spread[:, 0].copy()
        ids = self._splits.new(int(split.sum()))
        self._splits.rows()[ids] = spread[split]
        entries[split] = ids << SPLIT_ID_SHIFT | (SPLIT | MAPPED)
        self._leaves.words[at] = entries
        self._entries += int(np.count_nonzero(entries)) + int(np.count_nonzero(spread[split]))

    def _joinable(self, spread: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which pages have all their blocks in adjacent slots of one extent of one pool, with equal flags."""
        steps = np.arange(self.page_blocks) * self.block_bytes
        first = spread[:, 0]
        joined = (spread == first[:, None] + steps).all(1) & (first != 0)
        for pool, size in self._extent_bytes.items():
            here = joined & (first >> POOL_SHIFT == pool)
            start = (first[here] & OFFSET_MASK) // size
            joined[here] = start == ((first[here] & OFFSET_MASK) + steps[-1]) // size
        return np.asarray(joined)

    def _own_leaves(self, wanted: npt.NDArray[np.int64]) -> None:
        """There is a leaf of our own at each of these places of the root."""
        if (last := int(wanted[-1])) >= len(self._root) - 1:  # the root's last place stays NO_NODE
            self._root = np.concatenate([self._root, np.zeros(last + 2 - len(self._root), np.int64)])
        missing = wanted[self._root[wanted] == NO_NODE]
        self._root[missing] = self._leaves.new(len(missing))
        shared = wanted[self._leaves.shared(self._root[wanted])]
        if len(shared):
            self._splits.share(self._split_ids(self._root[shared]))
            self._root[shared] = self._leaves.copies(self._root[shared])

    def _split_ids(self, leaves: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The split tables that these leaves lead to."""
        words = self._leaves.rows()[leaves].reshape(-1)
        return np.asarray(words[(words & SPLIT) != 0] >> SPLIT_ID_SHIFT)

    def _drop_empty_leaves(self, places: npt.NDArray[np.int64]) -> None:
        ids = self._root[places]
        empty = ~self._leaves.rows()[ids].any(1)
        self._leaves.release(ids[empty])
        self._root[places[empty]] = NO_NODE

    def __repr__(self) -> str:
        return f"PageTable({self._blocks} blocks in {self._entries} entries, pages of {self.page_blocks})"


def _distinct(ordered: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The values of an array that does not decrease, each once."""
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return np.asarray(ordered[first])
