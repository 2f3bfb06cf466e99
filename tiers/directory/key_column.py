"""A column of keys: fixed width, so that a key costs its bytes and no object."""

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.columns import Column
from hybridkv.tiers.directory.packed import WORD_BYTES, PackedKeys, Words, as_list
from hybridkv.tiers.header_format import MAX_KEY_BYTES, PaddedKeys
from hybridkv.tiers.replacement import Rows

_FIRST_WORDS = 2


class KeyColumn:
    """One key a row, or none. `column[row]` is the key, empty where there is none. No lock.

    Rows are as wide as the widest key that came: a wider one makes all wider, in one copy.
    """

    __slots__ = ("_lengths", "_words")

    def __init__(self) -> None:
        self._words = Column(np.uint64, width=_FIRST_WORDS)
        self._lengths = Column(np.uint8)

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, row: int) -> bytes:
        key: bytes = self._words.values[row].tobytes()[: self._lengths.values[row]]
        return key

    def of(self, rows: Rows) -> list[bytes]:
        """The keys of `rows`."""
        return as_list(self._words.values.take(rows, 0), self._lengths.values[rows])

    def padded(self, rows: Rows) -> PaddedKeys:
        """The keys of `rows` as headers have them."""
        lengths = self._lengths.values[rows]
        words = self._words.values.take(rows, 0)
        words[lengths == 0] = 0
        found = np.zeros((len(rows), MAX_KEY_BYTES // WORD_BYTES), np.uint64)
        found[:, : words.shape[1]] = words
        return PaddedKeys(found.view(f"V{MAX_KEY_BYTES}").ravel(), lengths.astype(np.uint16))

    def words(self, rows: Rows) -> Words:
        return self._words.values.take(rows, 0)

    def given(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows have a key. bool [n]."""
        return np.asarray(self._lengths.values[rows] != 0)

    def equal(self, rows: Rows, keys: PackedKeys) -> NDArray[np.bool_]:
        """Does each row hold the key of the same place in `keys`? bool [n]."""
        mine, width = self._words.values.take(rows, 0), keys.words.shape[1]
        same: NDArray[np.bool_] = self._lengths.values.take(rows) == keys.lengths
        for word in range(min(width, mine.shape[1])):
            same &= mine[:, word] == keys.words[:, word]
        return same

    def extend(self, length: int) -> None:
        self._words.extend(length)
        self._lengths.extend(length)

    def put(self, rows: Rows, keys: PackedKeys) -> None:
        width = keys.words.shape[1]
        if width > self._words.values.shape[1]:
            self._widen(width)
        self._words.values[rows, :width] = keys.words
        if width < self._words.values.shape[1]:
            self._words.values[rows, width:] = 0
        self._lengths.values[rows] = keys.lengths

    def _widen(self, words: int) -> None:
        wider, old = Column(np.uint64, width=words), self._words.values
        wider.extend(len(old))
        wider.values[:, : old.shape[1]] = old
        self._words = wider

    def clear(self, rows: Rows) -> None:
        self._lengths.values[rows] = 0

    @property
    def key_bytes(self) -> int:
        """Bytes of the widest key there is room for."""
        return int(self._words.values.shape[1]) * WORD_BYTES
