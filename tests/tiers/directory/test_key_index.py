"""The index against a plain dictionary: growth, tombs, tags that are equal by chance, and batches that meet in one slot."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridkv.tiers.directory.key_index import KeyIndex
from hybridkv.tiers.replacement import NO_ROW, Rows

Hashes = NDArray[np.uint64]


class World:
    """An index, and what it should say. A key is a number here, and row r holds key `key_of[r]`."""

    def __init__(self, hash_of: Callable[[Rows], Hashes]) -> None:
        self.index = KeyIndex()
        self.hash_of = hash_of
        self.rows: dict[int, int] = {}
        self.key_of = np.full(1 << 20, -1, np.int64)
        self.next_row = 0

    def insert(self, keys: list[int]) -> None:
        new = np.array([key for key in dict.fromkeys(keys) if key not in self.rows], np.int64)
        rows = np.arange(self.next_row, self.next_row + len(new))
        self.next_row += len(new)
        self.key_of[rows] = new
        self.rows.update(zip(new.tolist(), rows.tolist(), strict=True))
        self.index.insert(self.hash_of(new), rows)

    def remove(self, keys: list[int]) -> None:
        known = np.array([key for key in dict.fromkeys(keys) if key in self.rows], np.int64)
        self.index.remove(self.hash_of(known), np.array([self.rows.pop(key) for key in known.tolist()], np.int64))

    def _find_one(self, key: int, hashed: int) -> int:
        return self.index.find_one(hashed, lambda row: bool(self.key_of[row] == key))

    def agree(self, keys: list[int]) -> None:
        asked = np.array(keys, np.int64)
        found = self.index.find(self.hash_of(asked), lambda rows, at: self.key_of[rows] == asked[at])
        assert found.tolist() == [self.rows.get(key, NO_ROW) for key in keys]
        for key, hashed in zip(keys[:20], self.hash_of(asked)[:20].tolist(), strict=True):
            assert self._find_one(key, hashed) == self.rows.get(key, NO_ROW)
        assert len(self.index) == len(self.rows)
        assert self.index.check() == []


def spread(keys: Rows) -> Hashes:
    return keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def crowded(keys: Rows) -> Hashes:
    """All in one shard, four to a tag."""
    return (keys // 4).astype(np.uint64) << np.uint64(24)


def test_it_grows_and_shrinks_with_what_it_holds() -> None:
    world = World(spread)
    for start in range(0, 60_000, 3000):
        world.insert(list(range(start, start + 3000)))
    world.agree(list(range(0, 120_000, 7)))
    world.remove(list(range(0, 60_000, 2)))
    world.agree(list(range(0, 60_000, 5)))
    world.remove(list(range(60_000)))
    world.agree([1, 2, 3, 59_999])


def test_tombs_do_not_pile_up() -> None:
    world = World(spread)
    world.insert(list(range(2000)))
    slots = _slots(world.index)
    for start in range(2000, 60_000, 100):
        world.insert(list(range(start, start + 100)))
        world.remove(list(range(start - 2000, start - 1900)))
    world.agree(list(range(57_000, 60_100)))
    assert _slots(world.index) <= 2 * slots


def _slots(index: KeyIndex) -> int:
    return int(repr(index).split()[3])


def test_keys_with_equal_tags_are_told_apart() -> None:
    world = World(crowded)
    world.insert(list(range(100)))
    world.agree(list(range(140)))
    world.remove([0, 1, 2, 40, 43])
    world.agree(list(range(140)))
    world.insert([0, 43, 200])
    world.agree([*range(140), 200])


def test_a_key_that_leads_to_another_row_stays() -> None:
    world = World(spread)
    world.insert([1])
    world.index.remove(spread(np.array([1])), np.array([77]))
    world.agree([1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 300), max_size=60)), max_size=25),
    st.sampled_from([spread, crowded]),
)
def test_it_is_a_dictionary(steps: list[tuple[bool, list[int]]], hash_of: Callable[[Rows], Hashes]) -> None:
    world = World(hash_of)
    for comes, keys in steps:
        (world.insert if comes else world.remove)(keys)
        world.agree(list(range(0, 301, 3)))
