"""Translations: where blocks lie, remembered by the client and checked against shared memory, without a call.

A translation is (pool, extent, extent epoch, slot, generation), with the slot's offset and header: a SLOT_DTYPE. Both
counters only grow, so one that holds after a copy held during all of it: what was copied is the block of the key. That
takes loads which other processors see in program order, as on x86-64; elsewhere blocks are read under leases.
"""

import platform
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.pools import SLOT_DTYPE

CALL_FREE = platform.machine().lower() in ("x86_64", "amd64")
"""Whether blocks may be read here by their translation alone."""

TRANSLATIONS_COUNT = 1 << 16
"""How many a client keeps unless told otherwise; each takes about 220 bytes with a key of 16."""
MAX_TRANSLATIONS_COUNT = 1 << 24

Slots = npt.NDArray[Any]
"""SLOT_DTYPE [n]; all zero where there is no translation."""
Bools = npt.NDArray[np.bool_]
One = tuple[int, int, int, int, int, int]
"""One translation as plain numbers, in the order of SLOT_DTYPE: offset, generation, extent epoch, header, extent, pool."""


@dataclass(frozen=True, slots=True)
class TranslationCounts:
    """What became of lookups, key by key: a hit held when it was found, an invalidation held no longer (and is a miss,
    too). Since the session began."""

    entries: int
    hits: int
    misses: int
    invalidations: int


class Translations:
    """The translations of one session, at most `limit_count`; beyond that the oldest go. Thread-safe.

    One key has one translation, the last that was learned: a block may lie in several pools. They belong to a session,
    since a pool's number means nothing to another daemon.
    """

    def __init__(self, valid: Callable[[Slots], Bools], limit_count: int = TRANSLATIONS_COUNT) -> None:
        """`valid` tells without a call which translations hold now. `limit_count` 0: nothing is kept."""
        self._valid = valid
        self._limit = checked_int("translations_count", limit_count, 0, MAX_TRANSLATIONS_COUNT)
        self._lock = threading.Lock()
        self._index: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._slots = np.zeros(1, SLOT_DTYPE)  # the last row stays zero: it stands for every key that is not known
        self._oldest = 0
        self._hits = self._misses = self._invalidations = 0

    def __len__(self) -> int:
        return len(self._index)

    @property
    def counts(self) -> TranslationCounts:
        with self._lock:
            return TranslationCounts(len(self._index), self._hits, self._misses, self._invalidations)

    def learn(self, keys: Keys, slots: Slots) -> None:
        """Take over what the daemon said of `keys`; rows without a slot (generation 0) teach nothing."""
        told = slots["generation"] != 0
        listed = keys.as_list()
        if not told.all():
            where = np.flatnonzero(told)
            listed, slots = [listed[i] for i in where.tolist()], slots[where]
        listed, slots = listed[-self._limit :], slots[-self._limit :]
        if not self._limit or not listed:
            return
        with self._lock:
            entries = [self._entry_of(key) for key in listed]
            self._slots[entries] = slots

    def find(self, keys: Keys) -> Slots:
        """The translations that are known and hold now; all zero elsewhere. Those that hold no longer are forgotten.

        An answer holds for the moment of the look: whoever copies asks `valid` again after the copy.
        """
        listed = keys.as_list()
        with self._lock:
            unknown = len(self._slots) - 1
            entries = np.fromiter(map(self._index.get, listed, repeat(unknown)), np.int64, len(listed))
            slots = self._slots[entries]
        told = slots["generation"] != 0
        wrong = told & ~self._valid(slots)
        self._count(int(np.count_nonzero(told)), len(listed) - int(np.count_nonzero(told)), 0)
        if wrong.any():
            self.invalidate(keys.at(np.flatnonzero(wrong)), slots[wrong])
            slots[wrong] = _NONE
        return slots

    def known(self, key: bytes) -> One | None:
        """The translation of one key, not looked at: whoever uses it checks it, and calls `disproved` when it is wrong."""
        with self._lock:
            entry = self._index.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            return cast(One, self._slots.item(entry))

    def disproved(self, key: bytes, one: One) -> None:
        """What `known` gave does not hold."""
        self.invalidate((key,), np.array([one], SLOT_DTYPE))

    def invalidate(self, keys: Sequence[bytes], slots: Slots) -> None:
        """What `find` gave for these holds no longer. What was learned for their keys since then stays."""
        with self._lock:
            for key, slot in zip(keys, slots, strict=True):
                entry = self._index.get(key)
                if entry is not None and self._slots[entry] == slot:
                    del self._index[key]
        self._count(-len(keys), len(keys), len(keys))

    def clear(self) -> None:
        """Forget everything; the counts stay."""
        with self._lock:
            self._index.clear()
            self._keys.clear()
            self._slots = np.zeros(1, SLOT_DTYPE)
            self._oldest = 0

    def _entry_of(self, key: bytes) -> int:
        """Under the lock: the entry of `key`, that of the oldest key when there is none and no room."""
        entry = self._index.get(key)
        if entry is not None:
            return entry
        if len(self._keys) < self._limit:
            entry = len(self._keys)
            self._keys.append(key)
            if entry == len(self._slots) - 1:
                self._grow()
        else:
            entry, self._oldest = self._oldest, (self._oldest + 1) % self._limit
            gone = self._keys[entry]
            if self._index.get(gone) == entry:
                del self._index[gone]
            self._keys[entry] = key
        self._index[key] = entry
        return entry

    def _grow(self) -> None:
        grown = np.zeros(min(self._limit, max(64, 2 * len(self._slots))) + 1, SLOT_DTYPE)
        grown[: len(self._slots)] = self._slots
        self._slots = grown

    def _count(self, hits: int, misses: int, invalidations: int) -> None:
        with self._lock:
            self._hits += hits
            self._misses += misses
            self._invalidations += invalidations

    def __repr__(self) -> str:
        return f"Translations({len(self)} of {self._limit}, {self._hits} hits, {self._misses} misses)"


_NONE = np.zeros(1, SLOT_DTYPE)[0]
