"""Ghosts: identities of blocks that left a pool, remembered for a while, first in first out.

A ring holds (identity, tag); a set-associative index of ring positions finds an identity in one vectorised look-up, at
25 bytes a ghost. A bucket that overflows loses its oldest ghost (well under 1 in 100 at the load kept here), and two
identities of 64 bits may be taken for one another: policies only learn from ghosts, so both cost a little quality at most.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Identities = NDArray[np.uint64]
Tags = NDArray[np.int64]

_WAYS: Final = 16
_LOAD: Final = 2  # index places per ghost
_NOBODY: Final = -1  # in the index: no ghost
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads consecutive identities


class Ghosts:
    """At most `limit` identities, each with a tag. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._set_up(max(1, limit))

    def _set_up(self, limit: int) -> None:
        self.limit = limit
        self._identities: Identities = np.zeros(limit, np.uint64)
        self._tags: Tags = np.zeros(limit, np.int64)
        self._alive: NDArray[np.bool_] = np.zeros(limit, np.bool_)
        buckets = 1 << max(0, (_LOAD * limit - 1) // _WAYS).bit_length()
        self._shift = np.uint64(64 - buckets.bit_length() + 1) if buckets > 1 else None
        self._index = np.full((buckets, _WAYS), _NOBODY, np.int32)
        self._next = 0  # pushes so far; the ring position is this modulo the limit
        self._oldest = 0
        self._count = 0

    def __len__(self) -> int:
        """Ghosts that may still be found or forgotten."""
        return self._count

    def __repr__(self) -> str:
        return f"Ghosts({self._count}/{self.limit})"

    def push(self, identities: Identities, tags: Tags) -> Tags:
        """Remember `identities` (distinct, in this order): the tags of those forgotten for them."""
        starts = range(0, len(identities), self.limit)
        parts = [self._push(identities[at : at + self.limit], tags[at : at + self.limit]) for at in starts]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _push(self, identities: Identities, tags: Tags) -> Tags:
        at = np.arange(self._next, self._next + len(identities)) % self.limit
        forgotten = self._forget(at)
        self._next += len(identities)
        self._oldest = max(self._oldest, self._next - self.limit)
        self._identities[at] = identities
        self._tags[at] = tags
        self._alive[at] = True
        self._count += len(at)
        if len(at):
            self._enter(self._buckets(identities), at)
        return forgotten

    def _forget(self, at: NDArray[np.int64]) -> Tags:
        gone = at[self._alive[at]]
        self._alive[gone] = False
        self._count -= len(gone)
        return self._tags[gone]

    def _buckets(self, identities: Identities) -> NDArray[np.int64]:
        if self._shift is None:
            return np.zeros(len(identities), np.int64)
        return ((identities * _MIX) >> self._shift).astype(np.int64)

    def _enter(self, buckets: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Put ring positions into the index: one a bucket and round, so that no two of a batch take one place."""
        mine = np.unique(buckets)
        places = self._index[mine]  # those that lead to positions written just now meant what was there before
        self._index[mine] = np.where((places - at[0]) % self.limit < len(at), _NOBODY, places)
        while len(buckets):
            unique, first = np.unique(buckets, return_index=True)
            places = self._index[unique]
            age = (self._next - 1 - places) % self.limit
            dead = (places == _NOBODY) | ~self._alive[places]
            dead |= self._buckets(self._identities[places.ravel()]).reshape(places.shape) != unique[:, None]
            self._index[unique, np.where(dead, self.limit, age).argmax(axis=1)] = at[first]
            if len(unique) == len(buckets):
                return
            buckets, at = np.delete(buckets, first), np.delete(at, first)

    def take(self, identities: Identities) -> tuple[NDArray[np.bool_], Tags]:
        """Which of `identities` (distinct) are ghosts, bool[n], and their tags (0 elsewhere). They are ghosts no more."""
        if not self._count or not len(identities):
            return np.zeros(len(identities), np.bool_), np.zeros(len(identities), np.int64)
        places = self._index[self._buckets(identities)]
        match = (places != _NOBODY) & self._alive[places] & (self._identities[places] == identities[:, None])
        found = match.any(axis=1)
        at = places[np.arange(len(places)), match.argmax(axis=1)][found].astype(np.int64)
        tags = np.zeros(len(identities), np.int64)
        tags[found] = self._tags[at]
        self._forget(at)
        return found, tags

    def trim(self, most: int) -> None:
        """Forget the oldest until at most `most` are left."""
        most = max(0, most)
        while self._count > most:
            excess = self._count - most
            at = np.arange(self._oldest, min(self._oldest + max(64, excess), self._next)) % self.limit
            alive = np.flatnonzero(self._alive[at])
            step = len(at) if len(alive) <= excess else int(alive[excess])
            self._forget(at[:step])
            self._oldest += step

    def resize(self, limit: int) -> Tags:
        """Another limit: the tags of those forgotten. Costs as much as pushing all that stay."""
        limit = max(1, limit)
        if limit == self.limit:
            return np.zeros(0, np.int64)
        at = np.arange(self._oldest, self._next) % self.limit
        at = at[self._alive[at]]
        identities, tags = self._identities[at], self._tags[at]
        self._set_up(limit)
        return self.push(identities, tags)

    def check(self) -> list[str]:
        """One line for each finding that the inner state is broken."""
        alive = int(np.count_nonzero(self._alive))
        found = [] if alive == self._count else [f"ghosts: {alive} are alive, {self._count} counted"]
        if self._next - self._oldest > self.limit:
            found.append(f"ghosts: {self._next - self._oldest} in a ring of {self.limit}")
        return found
