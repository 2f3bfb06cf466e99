"""Hashes of (namespace, key) for the key index, by multipliers that are drawn anew in every process.

Vector multiply-shift over 32-bit words: s = b + a₀·namespace + Σ aᵢ·xᵢ mod 2⁶⁴, whose upper 32 bits are strongly universal
(M. Thorup, High Speed Hashing for Integers and Strings, §3.4), folded and multiplied once more by an odd number, which is
universal in its upper bits. So whoever chooses keys without knowing the numbers cannot make them collide more than by
chance. Words of 64 bits would not do: keys that differ in the uppermost bits of two words collide whatever the numbers.
"""

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.packed import Words

_HALVES = 16  # 64 bytes, the widest key
_MASK = (1 << 64) - 1
_FOLD = np.uint64(32)

Hashes = NDArray[np.uint64]


class KeyHash:
    """`seed` None: from the system's randomness. Zeros behind a key do not change its hash."""

    def __init__(self, seed: int | None = None) -> None:
        numbers = np.random.default_rng(seed).integers(0, 1 << 64, _HALVES + 3, np.uint64)
        self._factors = numbers[:_HALVES]
        self._namespace, self._offset, self._last = numbers[_HALVES], numbers[_HALVES + 1], numbers[_HALVES + 2] | 1
        self._plain = [int(number) for number in numbers]

    def of(self, words: Words, namespaces: int | NDArray[np.int16]) -> Hashes:
        """uint64[n] of keys of one namespace, or of one namespace each."""
        halves = np.ascontiguousarray(words).view(np.uint32)
        sums: Hashes = halves.astype(np.uint64) @ self._factors[: halves.shape[1]]
        if isinstance(namespaces, int):
            sums += np.uint64((self._plain[_HALVES] * namespaces + self._plain[_HALVES + 1]) & _MASK)
        else:
            sums += namespaces.astype(np.uint64) * self._namespace + self._offset
        sums ^= sums >> _FOLD
        sums *= self._last
        return sums

    def of_one(self, key: bytes, namespace: int) -> int:
        """The same of one key."""
        factors = self._plain
        total = factors[_HALVES] * namespace + factors[_HALVES + 1]
        for number, start in enumerate(range(0, len(key), 4)):
            total += factors[number] * int.from_bytes(key[start : start + 4], "little")
        total &= _MASK
        return (total ^ (total >> 32)) * (factors[_HALVES + 2] | 1) & _MASK
