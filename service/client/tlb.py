"""A TLB: where a sequence's blocks lie, as told once and checked from then on in shared memory, without a call.

Direct-mapped and bounded: the entry of a block is its number modulo the size, and the last that was learned stays. What is
found here is not believed: whoever uses it compares extent epoch and generation with the headers, before and after.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.paging.entries import PRIVATE, RESIDENT, Words, words_of
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.pools import SLOT_DTYPE

ENTRIES_COUNT = 1 << 14
"""How many a sequence has unless told otherwise: 512k tokens in blocks of 32. Each takes 80 bytes, when it is used."""
MAX_ENTRIES_COUNT = 1 << 22
_FIRST_ENTRIES = 64
_ENTRY_BYTES = 8 + SLOT_DTYPE.itemsize + 5 * 8

Slots = npt.NDArray[Any]
"""SLOT_DTYPE [n]; all zero where there is no translation."""
Blocks = npt.NDArray[np.int64]
U64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
One = tuple[int, int, int, int, int, int]
"""One translation as plain numbers, in the order of SLOT_DTYPE: offset, generation, extent epoch, header, extent, pool."""


@dataclass(frozen=True, slots=True)
class TlbCounts:
    """Block by block: a hit was known and held; an invalidation was known and held no longer (it is a miss, too)."""

    hits: int = 0
    misses: int = 0
    invalidations: int = 0

    def since(self, before: "TlbCounts") -> "TlbCounts":
        """What was counted after `before`."""
        return TlbCounts(
            self.hits - before.hits, self.misses - before.misses, self.invalidations - before.invalidations
        )


class Tlb:
    """Of one sequence. Thread-safe."""

    def __init__(self, limit_count: int = ENTRIES_COUNT) -> None:
        """`limit_count` is rounded up to a power of two."""
        limit = checked_int("tlb_entries", limit_count, 1, MAX_ENTRIES_COUNT)
        self._limit = 1 << (limit - 1).bit_length()
        self._lock = threading.Lock()
        self._used = 0
        self._hits = self._misses = self._invalidations = 0
        self._quick_hits = itertools.count()  # what several threads may add to without a lock; a look adds one, too
        self._looks = 0
        self._ones: dict[
            int, One
        ] = {}  # entries as plain numbers, for `known`: made when asked for, emptied by any change
        self._resize(min(self._limit, _FIRST_ENTRIES))

    def __len__(self) -> int:
        return self._used

    @property
    def limit(self) -> int:
        """The most entries there will be."""
        return self._limit

    @property
    def nbytes(self) -> int:
        """Bytes of the entries, used or not."""
        return self._size * _ENTRY_BYTES

    @property
    def counts(self) -> TlbCounts:
        with self._lock:
            quick = next(self._quick_hits) - self._looks
            self._looks += 1
            return TlbCounts(self._hits + quick, self._misses, self._invalidations)

    def learn(self, blocks: Blocks, slots: Slots) -> None:
        """Take over what the daemon said; rows without a slot (generation 0) teach nothing."""
        told = slots["generation"] != 0
        if not told.all():
            blocks, slots = blocks[told], slots[told]
        if not len(blocks):
            return
        with self._lock:
            while self._used + len(blocks) > self._size // 2 and self._size < self._limit:
                self._grow()
            self._put(blocks, slots)

    def known(self, block: int) -> One | None:
        """The translation of one block, not looked at. Counted as a hit: `disproved` takes that back."""
        one = self._ones.get(block)
        if one is not None:
            next(self._quick_hits)
            return one
        with self._lock:
            at = block & self._mask
            if self._tag_words[at] != block + 1:
                self._misses += 1
                return None
            self._hits += 1
            found: One = self._slots.item(at)
            self._ones[block] = found
            return found

    def find(self, blocks: Blocks) -> Slots:
        """The translations of many, not looked at; all zero where there is none. Counted likewise."""
        with self._lock:
            at = blocks & self._mask
            slots: Slots = self._slots[at]
            absent = self._tags[at] != blocks + 1
            slots[absent] = _NONE
            missed = int(np.count_nonzero(absent))
            self._misses += missed
            self._hits += len(blocks) - missed
            return slots

    def checked(self, generations: U64s, epochs: U64s) -> "CheckedTlb":
        """All that is known, compared with the counters as they are now (`HeaderReader.counters`), as a copy to look many
        blocks up in. What holds no longer is forgotten."""
        with self._lock:
            used = self._tags != 0
            holds = generations[self._headers] == self._generations
            holds &= epochs[self._extents] == self._epochs
            stale = self._tags[used & ~holds] - 1
            self._invalidations += len(stale)
            self._drop(stale)
            return CheckedTlb(self._tags.copy(), self._words.copy(), self._mask, self._count)

    def _count(self, hits: int, misses: int) -> None:
        with self._lock:
            self._hits += hits
            self._misses += misses

    def disproved(self, blocks: Blocks) -> None:
        """What was found for these does not hold: forget it, and count it as missed."""
        with self._lock:
            self._hits -= len(blocks)
            self._misses += len(blocks)
            self._invalidations += len(blocks)
            self._drop(blocks)

    def forget(self, blocks: Blocks) -> None:
        """These are to be asked for again, by no fault of theirs."""
        with self._lock:
            self._drop(blocks)

    def clear(self) -> None:
        """Forget everything; the counts stay."""
        with self._lock:
            self._resize(min(self._limit, _FIRST_ENTRIES))
            self._used = 0

    # ---------------------------------------------------------------------------------------------- under the lock

    def _put(self, blocks: Blocks, slots: Slots) -> None:
        self._ones.clear()
        at = blocks & self._mask
        self._tags[at] = blocks + 1  # of several blocks with one entry the last stays, here and below
        self._slots[at] = slots
        self._words[at] = entries_of(slots)
        for column, name in (
            (self._headers, "header"),
            (self._extents, "extent"),
            (self._generations, "generation"),
            (self._epochs, "extent_epoch"),
        ):
            column[at] = slots[name]
        self._used = int(np.count_nonzero(self._tags))

    def _drop(self, blocks: Blocks) -> None:
        self._ones.clear()
        at = blocks & self._mask
        self._tags[at[self._tags[at] == blocks + 1]] = 0
        self._used = int(np.count_nonzero(self._tags))

    def _grow(self) -> None:
        tags, slots = self._tags, self._slots
        self._resize(2 * self._size)
        kept = np.flatnonzero(tags)
        self._put(tags[kept] - 1, slots[kept])

    def _resize(self, size: int) -> None:
        self._ones.clear()
        self._size, self._mask = size, size - 1
        self._tags = np.zeros(size, np.int64)  # block + 1; 0: no entry
        self._slots: Slots = np.zeros(size, SLOT_DTYPE)
        self._words: Words = np.zeros(size, np.int64)
        self._headers, self._extents = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._generations, self._epochs = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
        self._tag_words = self._tags.data

    def __repr__(self) -> str:
        return f"Tlb({self._used} of {self._limit}, {self.counts})"


class CheckedTlb:
    """What a TLB knew and what held at one moment. Thread-safe."""

    def __init__(self, tags: Blocks, words: Words, mask: int, count: Callable[[int, int], None]) -> None:
        self._tags, self._words, self._mask, self._count = tags, words, mask, count

    def words(self, blocks: Blocks) -> tuple[Words, Bools]:
        """Entries (`paging.entries`) of many blocks, any block any number of times; and which are known (else 0)."""
        at = blocks & self._mask
        words = self._words.take(at, mode="wrap")
        known = self._tags.take(at, mode="wrap")
        known -= 1
        found: Bools = known == blocks
        hits = int(np.count_nonzero(found))
        self._count(hits, len(blocks) - hits)
        if hits < len(blocks):
            words[~found] = 0
        return words, found


def entries_of(slots: Slots) -> Words:
    """Entries of slots: RESIDENT, and PRIVATE where the generation is odd; 0 for a slot that is all zero."""
    there = slots["generation"] != 0
    private = slots["generation"] % 2 == 1
    flags = np.where(private, RESIDENT | PRIVATE, RESIDENT)
    return np.where(there, words_of(slots["pool"], slots["offset"].astype(np.int64), flags), 0)


_NONE = np.zeros(1, SLOT_DTYPE)[0]
