"""Keys as rows of words: what the block table compares, hashes and stores, many at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.keys import Keys

WORD_BYTES = 8

Words = NDArray[np.uint64]
"""uint64[n, w]: one key a row, zeros behind it; as wide as the widest needs."""


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """`lengths` uint8[n]: bytes of each key; 0: none (a parent that is not named)."""

    words: Words
    lengths: NDArray[np.uint8]

    @classmethod
    def of(cls, keys: "Sequence[bytes] | PackedKeys") -> "PackedKeys":
        """`Keys` are seen in place where their width allows it; a list is gone through once."""
        if isinstance(keys, PackedKeys):
            return keys
        if isinstance(keys, Keys):
            return cls(_words(keys.packed, keys.width, len(keys)), np.full(len(keys), keys.width, np.uint8))
        lengths = np.fromiter(map(len, keys), np.uint8, len(keys))
        widest = int(lengths.max(initial=0))
        if widest and lengths.min() == widest:
            return cls(_words(b"".join(keys), widest, len(keys)), lengths)
        words = np.zeros((len(keys), _width(widest)), np.uint64)
        for width in np.unique(lengths).tolist():
            if width:
                some = _words(b"".join(key for key in keys if len(key) == width), width, -1)
                words[lengths == width, : some.shape[1]] = some
        return cls(words, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, positions: NDArray[np.int64]) -> Self:
        return type(self)(self.words.take(positions, 0), self.lengths.take(positions))

    def after(self, parent: bytes) -> "PackedKeys":
        """Of keys that are a chain, the parents: `parent` (empty: none) is the first one's."""
        first = PackedKeys.of([parent])
        words, lengths = np.zeros_like(self.words), np.empty_like(self.lengths)
        words[1:], lengths[1:] = self.words[:-1], self.lengths[:-1]
        words[:1, : first.words.shape[1]], lengths[:1] = first.words, first.lengths
        return PackedKeys(words, lengths)

    def as_list(self) -> list[bytes]:
        return as_list(self.words, self.lengths)


def as_list(words: Words, lengths: NDArray[np.uint8]) -> list[bytes]:
    """The keys as bytes objects."""
    if not len(lengths):
        return []
    width = int(lengths[0])
    if width and (lengths == width).all():
        packed = np.ascontiguousarray(np.ascontiguousarray(words).view(np.uint8)[:, :width])
        found: list[bytes] = packed.view(f"V{width}").ravel().tolist()
        return found
    packed_bytes, stride = words.tobytes(), words.shape[1] * WORD_BYTES
    starts = range(0, len(packed_bytes), stride)
    return [packed_bytes[at : at + length] for at, length in zip(starts, lengths.tolist(), strict=True)]


def _width(key_bytes: int) -> int:
    """Words of a key; one at least."""
    return max(1, -(-key_bytes // WORD_BYTES))


def _words(packed: bytes, width: int, count: int) -> Words:
    """uint64[count, w] of keys that lie one after another; `count` -1: as many as there are."""
    if width % WORD_BYTES == 0:
        return np.frombuffer(packed, np.uint64).reshape(count, width // WORD_BYTES)
    raw = np.frombuffer(packed, np.uint8).reshape(count, width)
    padded = np.zeros((len(raw), _width(width) * WORD_BYTES), np.uint8)
    padded[:, :width] = raw
    return padded.view(np.uint64)
