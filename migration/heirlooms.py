"""Sealed slots of a daemon before this one, as columns read from their headers; and which of them may not be served."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.blocks import Checksum
from hybridkv.tiers.directory.packed import WORD_BYTES, PackedKeys
from hybridkv.tiers.header_format import FINGERPRINT_BYTES, HEADER_DTYPE, MAX_KEY_BYTES
from hybridkv.tiers.headers import HeaderRegion
from hybridkv.tiers.states import BlockState

Indices = NDArray[np.int64]
U64s = NDArray[np.uint64]

_LEAST_KEY_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Heirlooms:
    """Headers `indices` and the offsets of their slots, int64 [n]; the other columns likewise. `headers` is where the rest is
    read from when it is needed."""

    headers: HeaderRegion
    indices: Indices
    offsets: Indices
    prints: U64s
    """Fingerprints, uint64 [n, 4]."""
    sizes: U64s
    key_bytes: NDArray[np.uint16]
    parent_bytes: NDArray[np.uint16]
    checksums: U64s

    @classmethod
    def of(cls, headers: HeaderRegion, indices: Indices, offsets: Indices) -> Self:
        return cls(
            headers,
            indices,
            offsets,
            _words(headers, "fingerprint", FINGERPRINT_BYTES)[indices],
            *(headers.headers[name][indices] for name in ("length", "key_bytes", "parent_bytes", "checksum")),
        )

    def __len__(self) -> int:
        return len(self.indices)

    def chosen(self, positions: Indices) -> Self:
        """Those at these positions."""
        columns = (self.prints, self.sizes, self.key_bytes, self.parent_bytes, self.checksums)
        taken: Iterable[Any] = (column[positions] for column in columns)
        return type(self)(self.headers, self.indices[positions], self.offsets[positions], *taken)

    def fingerprints(self) -> list[bytes]:
        """The namespaces there are. One pass over the columns for each."""
        left, found = self.prints, []
        while len(left):
            found.append(left[0].tobytes())
            left = left[(left != left[0]).any(1)]
        return found

    def of_space(self, fingerprint: bytes) -> Self:
        """Those of one namespace."""
        return self.chosen(np.flatnonzero((self.prints == np.frombuffer(fingerprint, np.uint64)).all(1)))

    def commonest(self) -> tuple[int, int]:
        """The block size and the width of keys that most have."""
        return _commonest(self.sizes), _commonest(self.key_bytes)

    def keys(self) -> PackedKeys:
        return self._packed("key", self.key_bytes)

    def parents(self) -> PackedKeys:
        """Length 0 where there is none."""
        return self._packed("parent", self.parent_bytes)

    def read(self, name: str) -> NDArray[Any]:
        """Another field of the headers."""
        column: NDArray[Any] = self.headers.headers[name][self.indices]
        return column

    def _packed(self, name: str, lengths: NDArray[np.uint16]) -> PackedKeys:
        width = int(lengths.max(initial=0))
        words = -(-max(width, 1) // WORD_BYTES)
        raw = np.ascontiguousarray(_words(self.headers, name, words * WORD_BYTES)[self.indices])
        # What lies behind a key is no part of it.
        behind = np.arange(words * WORD_BYTES) >= lengths[:, np.newaxis] if width % WORD_BYTES else None
        if behind is not None:
            raw.view(np.uint8)[behind] = 0
        elif (lengths == 0).any():
            raw[lengths == 0] = 0
        return PackedKeys(raw, lengths.astype(np.uint8))


def judged(headers: HeaderRegion, found: Heirlooms) -> dict[str, Indices]:
    """Positions of what may not be served, by the reason; each stands under one."""
    slot_bytes = headers.extents["slot_bytes"][found.indices // headers.slots_per_extent]
    epochs = headers.extents["epoch"][found.indices // headers.slots_per_extent]
    malformed = (found.sizes != slot_bytes) | (found.read("extent_epoch") != epochs)
    malformed |= (found.key_bytes < _LEAST_KEY_BYTES) | (found.key_bytes > MAX_KEY_BYTES)
    malformed |= found.parent_bytes > MAX_KEY_BYTES
    removed = found.read("state") != BlockState.SEALED
    private = found.read("private") != 0
    bare = ~np.isin(found.read("checked"), (Checksum.CLAIMED, Checksum.VERIFIED))
    reasons: dict[str, Indices] = {}
    left = np.ones(len(found), np.bool_)
    for reason, mask in (
        ("removed", removed),
        ("private", private),
        ("without_checksum", bare),
        ("malformed", malformed),
    ):
        reasons[reason] = np.flatnonzero(left & mask)
        left &= ~mask
    return reasons


def first_of_each(found: Heirlooms) -> NDArray[np.bool_]:
    """Where a key comes for the first time. bool [n]."""
    words = found.keys().words
    mixed = np.zeros(len(found), np.uint64)
    for column in range(words.shape[1]):
        mixed = (mixed ^ words[:, column]) * np.uint64(0x9E3779B97F4A7C15)
    _, first, counts = np.unique(mixed, return_index=True, return_counts=True)
    single = np.ones(len(found), np.bool_)
    if len(first) == len(found):
        return single
    seen: set[bytes] = set()
    again = np.flatnonzero(np.isin(mixed, mixed[first[counts > 1]]))
    for position in again.tolist():
        key = words[position].tobytes()
        single[position] = key not in seen
        seen.add(key)
    return single


def _words(headers: HeaderRegion, name: str, nbytes: int) -> U64s:
    """A field of all headers as rows of words, no copy. uint64 [headers, nbytes / 8]."""
    start = HEADER_DTYPE.fields[name][1] // WORD_BYTES if HEADER_DTYPE.fields else 0
    rows = headers.headers.view(np.uint64).reshape(-1, HEADER_DTYPE.itemsize // WORD_BYTES)
    words: U64s = rows[:, start : start + nbytes // WORD_BYTES]
    return words


def _commonest(values: NDArray[Any]) -> int:
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[np.argmax(counts)])
