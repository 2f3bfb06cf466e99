"""The hash: the same for one key as for many, whatever stands behind it, and no prey to chosen keys."""

import numpy as np

from hybridkv.tiers.directory.key_hash import KeyHash
from hybridkv.tiers.directory.packed import PackedKeys

_MASK = (1 << 64) - 1


def test_one_key_hashes_as_many_do() -> None:
    for width in (8, 11, 16, 64):
        data = np.random.default_rng(width).bytes(20 * width)
        keys = [data[at * width : (at + 1) * width] for at in range(20)]
        hashed = KeyHash(7).of(PackedKeys.of(keys).words, 3)
        assert hashed.tolist() == [KeyHash(7).of_one(key, 3) for key in keys]


def test_zeros_behind_a_key_and_the_namespace_given_by_row_change_nothing() -> None:
    words = PackedKeys.of([b"abcdefgh", b"ABCDEFGH"]).words
    wider = np.hstack([words, np.zeros((2, 3), np.uint64)])
    hashed = KeyHash(1).of(words, 2)
    assert np.array_equal(KeyHash(1).of(wider, np.array([2, 2], np.int16)), hashed)
    assert not np.array_equal(KeyHash(1).of(words, 3), hashed)


def test_every_process_has_its_own() -> None:
    words = PackedKeys.of([b"abcdefgh"]).words
    assert KeyHash().of(words, 0).tolist() != KeyHash().of(words, 0).tolist()


def test_keys_that_differ_where_multipliers_weigh_least_do_not_collide() -> None:
    """Two words that differ in their uppermost byte only: a multiply-shift over 64-bit words has 256 values for them."""
    first, second = np.divmod(np.arange(1 << 16, dtype=np.uint64), np.uint64(256))
    words = np.stack([first << np.uint64(56), second << np.uint64(56)], axis=1)
    tops = KeyHash(5).of(words, 0) >> np.uint64(32)
    assert len(np.unique(tops)) > 65000
    busiest = np.bincount((tops >> np.uint64(22)).astype(np.int64)).max()
    assert busiest < 64 * 3  # of 1024 shards, which get 64 on average


def test_consecutive_numbers_spread_over_the_shards() -> None:
    words = np.arange(1 << 16, dtype=np.uint64).reshape(-1, 1)
    shards = (KeyHash(5).of(words, 0) >> np.uint64(54)).astype(np.int64)
    assert np.bincount(shards, minlength=1024).max() < 64 * 3
