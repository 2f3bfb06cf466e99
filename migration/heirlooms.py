"""Sealed slots of a daemon before this one, as columns read from their headers; and which of them may not be served."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.blocks import Checksum
from hybridkv.tiers.directory.packed import WORD_BYTES, PackedKeys
from hybridkv.tiers.header_format import FINGERPRINT_BYTES, MAX_KEY_BYTES
from hybridkv.tiers.headers import HeaderRegion
from hybridkv.tiers.states import BlockState

Indices = NDArray[np.int64]
U64s = NDArray[np.uint64]

_LEAST_KEY_BYTES = 8
_PIECE = 4096
"""Headers looked at together: all that is read of them comes from the processor's cache after the first touch."""


@dataclass(frozen=True, slots=True, eq=False)
class Heirlooms:
    """Headers `indices` and the offsets of their slots, int64 [n]. The rest is what the headers say: `prints` are the
    fingerprints, uint64 [n, 4], `keys` and `parents` as wide as the widest, zeros behind each. Columns of n rows."""

    indices: Indices
    offsets: Indices
    prints: U64s
    keys: U64s
    key_bytes: NDArray[np.uint16]
    parents: U64s
    parent_bytes: NDArray[np.uint16]
    sizes: U64s
    checksums: U64s
    extent_epochs: U64s
    state: NDArray[np.uint32]
    checked: NDArray[np.uint8]
    private: NDArray[np.uint8]
    sealed_at: NDArray[np.float64]
    last_access_at: NDArray[np.float64]
    access_count: NDArray[np.float32]

    @classmethod
    def of(cls, headers: HeaderRegion, indices: Indices, offsets: Indices) -> Self:
        """One pass over the headers."""
        widest = int(headers.headers["key_bytes"][indices].max(initial=0)) if len(indices) else 0
        words = -(-min(max(widest, WORD_BYTES), MAX_KEY_BYTES) // WORD_BYTES)
        pieces = [
            _columns(headers.headers[indices[first : first + _PIECE]], words)
            for first in range(0, max(len(indices), 1), _PIECE)
        ]
        joined: list[Any] = [np.concatenate(column) for column in zip(*pieces, strict=True)]
        return cls(indices, offsets, *joined)

    def __len__(self) -> int:
        return len(self.indices)

    def chosen(self, positions: Indices) -> Self:
        """Those at these positions."""
        if len(positions) == len(self):
            return self
        return type(self)(*(getattr(self, column.name)[positions] for column in fields(self)))

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

    def packed_keys(self) -> PackedKeys:
        return PackedKeys(self.keys, self.key_bytes.astype(np.uint8))

    def packed_parents(self) -> PackedKeys:
        """Length 0 where there is none."""
        return PackedKeys(self.parents, self.parent_bytes.astype(np.uint8))


def _columns(rows: NDArray[Any], words: int) -> list[NDArray[Any]]:
    """In the order of `Heirlooms`, from `prints` on."""
    return [
        _words(rows["fingerprint"], FINGERPRINT_BYTES // WORD_BYTES),
        _key_words(rows["key"], rows["key_bytes"], words),
        np.ascontiguousarray(rows["key_bytes"]),
        _key_words(rows["parent"], rows["parent_bytes"], words),
        *(np.ascontiguousarray(rows[name]) for name in ("parent_bytes", "length", "checksum", "extent_epoch", "state")),
        *(np.ascontiguousarray(rows[name]) for name in ("checked", "private")),
        *(np.ascontiguousarray(rows[name]) for name in ("sealed_at", "last_access_at", "access_count")),
    ]


def _words(column: NDArray[Any], words: int) -> U64s:
    raw: U64s = np.ascontiguousarray(column).view(np.uint64).reshape(len(column), column.dtype.itemsize // WORD_BYTES)
    return np.ascontiguousarray(raw[:, :words])


def _key_words(column: NDArray[Any], lengths: NDArray[np.uint16], words: int) -> U64s:
    """What lies behind a key is no part of it."""
    raw = _words(column, words)
    if len(raw) and not (lengths == words * WORD_BYTES).all():
        raw.view(np.uint8)[np.arange(words * WORD_BYTES) >= lengths[:, np.newaxis]] = 0
    return raw


def judged(headers: HeaderRegion, found: Heirlooms) -> dict[str, Indices]:
    """Positions of what may not be served, by the reason; each stands under one."""
    extents = found.indices // headers.slots_per_extent
    malformed = found.sizes != headers.extents["slot_bytes"][extents]
    malformed |= found.extent_epochs != headers.extents["epoch"][extents]
    malformed |= (found.key_bytes < _LEAST_KEY_BYTES) | (found.key_bytes > MAX_KEY_BYTES)
    malformed |= found.parent_bytes > MAX_KEY_BYTES
    reasons: dict[str, Indices] = {}
    left = np.ones(len(found), np.bool_)
    for reason, mask in (
        ("removed", found.state != BlockState.SEALED),
        ("private", found.private != 0),
        ("without_checksum", (found.checked != Checksum.CLAIMED) & (found.checked != Checksum.VERIFIED)),
        ("malformed", malformed),
    ):
        reasons[reason] = np.flatnonzero(left & mask)
        left &= ~mask
    return reasons


def first_of_each(found: Heirlooms) -> NDArray[np.bool_]:
    """Where a key comes for the first time. bool [n]."""
    mixed = np.zeros(len(found), np.uint64)
    for column in range(found.keys.shape[1]):
        mixed = (mixed ^ found.keys[:, column]) * np.uint64(0x9E3779B97F4A7C15)
    ranked = np.sort(mixed)
    twice = ranked[1:][ranked[1:] == ranked[:-1]]
    single = np.ones(len(found), np.bool_)
    seen: set[bytes] = set()
    for position in np.flatnonzero(np.isin(mixed, twice)).tolist() if len(twice) else ():
        key = found.keys[position].tobytes()
        single[position] = key not in seen
        seen.add(key)
    return single


def _commonest(values: NDArray[Any]) -> int:
    if (values == values[0]).all():
        return int(values[0])
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[np.argmax(counts)])
