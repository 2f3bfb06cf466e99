"""What blocks hold in benchmarks: bytes that follow from the key, so that every byte read can be checked anywhere."""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

SEED_BYTES = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)


class Content:
    """The bytes of blocks of one size: the SplitMix64 stream that the key's first eight bytes seed.

    Within a block no eight bytes repeat (the mixer is a bijection), and two keys share none but by chance, so a block
    that is torn, shifted, stale or another's does not pass. (Steele, Lea, Flood: Fast splittable pseudorandom number
    generators, OOPSLA 2014.) Works in scratch memory of its own: nothing is allocated per block. Not thread-safe.
    """

    def __init__(self, block_bytes: int) -> None:
        """`block_bytes` is a multiple of 8, as every layout's is."""
        lanes = block_bytes // SEED_BYTES
        self.block_bytes = block_bytes
        self._counter = np.arange(1, lanes + 1, dtype=np.uint64) * _GOLDEN
        self._value = np.empty(lanes, np.uint64)
        self._shifted = np.empty(lanes, np.uint64)
        self._equal = np.empty(lanes, np.bool_)

    def fill(self, key: bytes, out: Bytes) -> None:
        """Write the block of `key` (8 bytes or more) to `out`, uint8 [block_bytes], contiguous."""
        out.view(np.uint64)[:] = self._derive(key)

    def verify(self, key: bytes, block: Bytes) -> bool:
        """Whether `block`, uint8 [block_bytes], contiguous, is the block of `key`, every byte of it."""
        np.equal(self._derive(key), block.view(np.uint64), out=self._equal)
        return bool(self._equal.all())

    def _derive(self, key: bytes) -> npt.NDArray[np.uint64]:
        value, shifted = self._value, self._shifted
        np.add(self._counter, np.uint64(int.from_bytes(key[:SEED_BYTES], "little")), out=value)
        for shift, factor in _ROUNDS:
            np.right_shift(value, shift, out=shifted)
            np.bitwise_xor(value, shifted, out=value)
            np.multiply(value, factor, out=value)
        np.right_shift(value, _LAST_SHIFT, out=shifted)
        np.bitwise_xor(value, shifted, out=value)
        return value
