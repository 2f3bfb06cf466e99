"""The index from hashes of keys to rows: open addressing, looked up for many keys at once.

An entry is a word: 31 bits of the hash (the *tag*) over the row's number plus one; 0 is an empty slot. The hash's upper
bits choose one of many small tables (*shards*), each of which grows by itself, so that nobody waits for all of it.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.columns import Column
from hybridkv.tiers.directory.key_hash import Hashes
from hybridkv.tiers.replacement import NO_ROW, Rows

Same = Callable[[Rows, NDArray[np.int64]], NDArray[np.bool_]]
"""(rows, positions): does each row hold the key at that position of the keys that are looked up? bool[n]."""

_SHARD_BITS = 10
_SHARDS = 1 << _SHARD_BITS
_FIRST_SLOTS = 16
_RESERVED_LEVELS = 12  # some twenty million keys
_TAG_BITS = 31
_TAG_MASK = (1 << _TAG_BITS) - 1
_SHARD_SHIFT = 64 - _SHARD_BITS
_TAG_SHIFT = _SHARD_SHIFT - _TAG_BITS
_HALF = 32
_LOW = (1 << _HALF) - 1
_EMPTY = 0
_TOMB = 1  # tag 0, which no key has: was used, and others may lie beyond
_FEW = 16  # keys for which a loop costs less than another round over arrays
_BASE, _MASK, _AT, _TAG, _PLACE = range(5)
"""Lines of a search: where each key's shard begins, the last slot's number in it, the slot looked at, the tag, and which of
the keys it is."""

Slots = NDArray[np.int64]
Search = NDArray[np.int64]


class KeyIndex:
    """Rows by hash; whether a row's key is the one that is meant, the caller says. No lock.

    Linear probing; at most 5/8 of a shard's slots are in use, tombs included. Slots of level k (2^k times the first size)
    have their place in one column, after those of the levels below; a level's memory goes back once no shard is on it.
    """

    def __init__(self) -> None:
        self._entries = Column(np.int64, reserve=_level_begins(_RESERVED_LEVELS))
        self._entries.extend(_level_begins(1))
        self._level = np.zeros(_SHARDS, np.int64)
        self._live = np.zeros(_SHARDS, np.int64)
        self._filled = np.zeros(_SHARDS, np.int64)  # live ones and tombs
        self._base = np.zeros(_SHARDS, np.int64)
        self._mask = np.zeros(_SHARDS, np.int64)
        self._shift = np.zeros(_SHARDS, np.int64)
        self._set_level(np.arange(_SHARDS), np.zeros(_SHARDS, np.int64))

    def __len__(self) -> int:
        return int(self._live.sum())

    def __repr__(self) -> str:
        return f"KeyIndex({len(self)} keys in {int(self._mask.sum()) + _SHARDS} slots)"

    # ------------------------------------------------------------------------------------------------ look

    def find(self, hashes: Hashes, same: Same) -> Rows:
        """Row of each key, NO_ROW where there is none. int64 [n]."""
        shards, tags = _split(hashes)
        entries, last = self._entries.values, np.zeros(len(hashes), np.int64)
        search = self._search(shards, tags)
        while search.shape[1] > _FEW:
            there = entries.take(search[_BASE] + search[_AT])
            last[search[_PLACE]] = there
            on = ((there != _EMPTY) & (there >> _HALF != search[_TAG])).nonzero()[0]
            search = _next(search, on)
        for base, mask, at, tag, place in search.T.tolist():
            last[place] = self._probe(base, mask, at, tag)
        found: Rows = np.where(last >> _HALF == tags, (last & _LOW) - 1, NO_ROW)
        known = (found != NO_ROW).nonzero()[0]
        for place in known[~same(found[known], known)].tolist():  # another key with the same tag lies before it
            found[place] = self._find_beyond(int(hashes[place]), same, place)
        return found

    def _find_beyond(self, hashed: int, same: Same, place: int) -> int:
        position = np.array([place], np.int64)
        return self.find_one(hashed, lambda row: bool(same(np.array([row], np.int64), position)[0]))

    def _probe(self, base: int, mask: int, at: int, tag: int) -> int:
        """The first entry from there on that has the tag, or is empty."""
        entry_at = self._entries.values.item
        while (there := entry_at(base + at)) and there >> _HALF != tag:
            at = (at + 1) & mask
        return int(there)

    def find_one(self, hashed: int, same: Callable[[int], bool]) -> int:
        """The same of one key."""
        shard, tag = hashed >> _SHARD_SHIFT, hashed >> _TAG_SHIFT & _TAG_MASK | 1
        base, mask, entry_at = int(self._base[shard]), int(self._mask[shard]), self._entries.values.item
        at = tag >> int(self._shift[shard])
        while there := entry_at(base + at):
            if there >> _HALF == tag and same((there & _LOW) - 1):
                return int(there & _LOW) - 1
            at = (at + 1) & mask
        return NO_ROW

    # ------------------------------------------------------------------------------------------------ change

    def insert(self, hashes: Hashes, rows: Rows) -> None:
        """The keys, none of which is here, lead to `rows` from now on."""
        shards, tags = _split(hashes)
        counts = np.bincount(shards, minlength=_SHARDS)
        full = (8 * (self._filled + counts) > 5 * (self._mask + 1)).nonzero()[0]
        if len(full):
            self._rebuild(full, (self._live + counts)[full])
        self._place(shards, tags, tags << _HALF | rows + 1)
        self._live += counts

    def _place(self, shards: Slots, tags: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        """Put new entries into the first slots from their homes on that are free."""
        entries, fresh = self._entries.values, np.zeros(len(new), np.bool_)
        search = self._search(shards, tags)
        while search.shape[1] > _FEW:
            where, place = search[_BASE] + search[_AT], search[_PLACE]
            there, mine = entries.take(where), new.take(place)
            free = there <= _TOMB
            entries[where[free]] = mine[free]
            won = entries.take(where) == mine  # of two that came to one slot, one is there
            fresh[place] = won & (there == _EMPTY)
            search = _next(search, (~won).nonzero()[0])
        entry_at = entries.item
        for base, mask, at, _, place in search.T.tolist():
            while entry_at(base + at) > _TOMB:
                at = (at + 1) & mask
            fresh[place] = entries[base + at] == _EMPTY
            entries[base + at] = new[place]
        self._filled += np.bincount(shards[fresh], minlength=_SHARDS)

    def remove(self, hashes: Hashes, rows: Rows) -> None:
        """The keys lead nowhere from now on; those that do not lead to their row stay."""
        shards, tags = _split(hashes)
        entries, old = self._entries.values, tags << _HALF | rows + 1
        found = np.zeros(len(old), np.bool_)
        bare = np.zeros(len(old), np.bool_)
        search = self._search(shards, tags)
        while search.shape[1] > _FEW:
            where, place = search[_BASE] + search[_AT], search[_PLACE]
            there, wanted = entries.take(where), old.take(place)
            hit = there == wanted
            beyond = entries.take(search[_BASE] + (search[_AT] + 1 & search[_MASK]))
            empty = hit & (beyond == _EMPTY)  # nothing lies beyond: no tomb is needed
            entries[where[hit]] = np.where(empty, _EMPTY, _TOMB)[hit]
            found[place], bare[place] = hit, empty
            search = _next(search, (~hit & (there != _EMPTY)).nonzero()[0])
        entry_at = entries.item
        for base, mask, at, _, place in search.T.tolist():
            wanted = old[place]
            while (there := entry_at(base + at)) != wanted and there != _EMPTY:
                at = (at + 1) & mask
            if there != _EMPTY:
                found[place] = True
                bare[place] = entry_at(base + (at + 1 & mask)) == _EMPTY
                entries[base + at] = _EMPTY if bare[place] else _TOMB
        self._live -= np.bincount(shards[found], minlength=_SHARDS)
        self._filled -= np.bincount(shards[bare], minlength=_SHARDS)

    # ------------------------------------------------------------------------------------------------ shards

    def _search(self, shards: Slots, tags: NDArray[np.int64]) -> Search:
        """Each key at its home: the slot that the tag's upper bits name."""
        search = np.empty((5, len(tags)), np.int64)
        self._base.take(shards, out=search[_BASE])
        self._mask.take(shards, out=search[_MASK])
        np.right_shift(tags, self._shift.take(shards), out=search[_AT])
        search[_TAG] = tags
        search[_PLACE] = np.arange(len(tags))
        return search

    def _rebuild(self, shards: Slots, keys: NDArray[np.int64]) -> None:
        """Each shard gets room for so many keys, and loses its tombs."""
        entries, kept, counts = self._entries.values, [], []
        for base, slots in zip(self._base[shards].tolist(), (self._mask[shards] + 1).tolist(), strict=True):
            old = entries[base : base + slots]
            kept.append(old[old > _TOMB])
            counts.append(len(kept[-1]))
            old[:] = _EMPTY
        before, level = self._level[shards], self._level[shards].copy()
        while (small := 16 * keys > 7 * (_FIRST_SLOTS << level)).any():
            level += small
        self._entries.extend(max(len(self._entries), _level_begins(int(level.max()) + 1)))
        self._set_level(shards, level)
        self._filled[shards] = 0
        again = np.concatenate(kept)
        self._place(np.repeat(shards, counts), again >> _HALF, again)
        for left in np.setdiff1d(before, self._level).tolist():
            self._entries.release(_level_begins(left), _level_begins(left + 1))

    def _set_level(self, shards: Slots, level: NDArray[np.int64]) -> None:
        self._level[shards] = level
        slots = _FIRST_SLOTS << level
        self._base[shards] = _FIRST_SLOTS * _SHARDS * ((1 << level) - 1) + shards * slots
        self._mask[shards] = slots - 1
        self._shift[shards] = _TAG_BITS - np.log2(slots).astype(np.int64)

    # ------------------------------------------------------------------------------------------------ law

    def check(self) -> list[str]:
        """One line for each shard whose counts are not what its slots hold."""
        found = []
        for shard in range(_SHARDS):
            base = int(self._base[shard])
            slots = self._entries.values[base : base + int(self._mask[shard]) + 1]
            live, filled = int(np.count_nonzero(slots > _TOMB)), int(np.count_nonzero(slots))
            if (live, filled) != (self._live[shard], self._filled[shard]) or 8 * filled > 5 * len(slots):
                found.append(f"key index: shard {shard} holds {live} keys in {filled} of {len(slots)} slots")
        return found


def _level_begins(level: int) -> int:
    """Slots of all levels below."""
    return _FIRST_SLOTS * _SHARDS * ((1 << level) - 1)


def _split(hashes: Hashes) -> tuple[Slots, NDArray[np.int64]]:
    """Shard and tag of each."""
    tags = (hashes >> np.uint64(_TAG_SHIFT)).astype(np.int64) & _TAG_MASK | 1
    return (hashes >> np.uint64(_SHARD_SHIFT)).astype(np.int64), tags


def _next(search: Search, on: Slots) -> Search:
    """Those of the keys that go on, one slot further."""
    left = search.take(on, 1)
    left[_AT] += 1
    left[_AT] &= left[_MASK]
    return left
