"""Keys as words and as columns of them, of every width."""

import numpy as np
import pytest

from hybridkv.tiers.directory.key_column import KeyColumn
from hybridkv.tiers.directory.packed import PackedKeys
from hybridkv.tiers.keys import Keys


def _keys(count: int, width: int) -> list[bytes]:
    data = np.random.default_rng(width).bytes(count * width)
    return [data[at * width : (at + 1) * width] for at in range(count)]


@pytest.mark.parametrize("width", [8, 9, 16, 20, 32, 63, 64])
def test_packed_keys_are_the_same_from_a_list_and_from_keys(width: int) -> None:
    keys = _keys(5, width)
    from_list, from_keys = PackedKeys.of(keys), PackedKeys.of(Keys.of(keys))
    assert from_list.as_list() == from_keys.as_list() == keys
    assert np.array_equal(from_list.words, from_keys.words)


def test_lengths_may_differ_and_none_is_empty() -> None:
    keys = [b"", b"a" * 8, b"", b"b" * 20]
    packed = PackedKeys.of(keys)
    assert packed.as_list() == keys
    assert packed[np.array([3, 0])].as_list() == [b"b" * 20, b""]
    assert PackedKeys.of([]).as_list() == []


def test_the_parents_of_a_chain() -> None:
    keys = _keys(3, 16)
    assert PackedKeys.of(keys).after(b"").as_list() == [b"", *keys[:-1]]
    assert PackedKeys.of(keys).after(b"p" * 16).as_list() == [b"p" * 16, *keys[:-1]]


@pytest.mark.parametrize("width", [8, 9, 16, 33, 64])
def test_a_column_gives_back_what_was_put_and_widens(width: int) -> None:
    column = KeyColumn()
    column.extend(10)
    narrow, wide = _keys(2, 8), _keys(3, width)
    column.put(np.array([0, 1]), PackedKeys.of(narrow))
    column.put(np.array([7, 3, 5]), PackedKeys.of(wide))
    assert column.of(np.array([7, 3, 5])) == wide
    assert column.of(np.array([0, 7, 2])) == [narrow[0], wide[0], b""]
    assert [column[row] for row in (1, 3, 9)] == [narrow[1], wide[1], b""]
    assert column.given(np.array([0, 2, 5])).tolist() == [True, False, True]
    column.clear(np.array([7]))
    assert column[7] == b""


@pytest.mark.parametrize("width", [8, 9, 33, 64])
def test_padded_keys_have_zeros_behind_them_and_none_where_there_is_no_key(width: int) -> None:
    column = KeyColumn()
    column.extend(4)
    keys = _keys(3, width)
    column.put(np.array([0, 1, 2]), PackedKeys.of(keys))
    column.clear(np.array([1]))
    values, lengths = column.padded(np.array([2, 1, 0, 3]))
    assert [value.tobytes() for value in values] == [key.ljust(64, b"\0") for key in (keys[2], b"", keys[0], b"")]
    assert lengths.tolist() == [width, 0, width, 0]


def test_a_narrow_key_in_a_wide_column_leaves_nothing_of_the_one_before() -> None:
    column = KeyColumn()
    column.extend(1)
    column.put(np.array([0]), PackedKeys.of([b"w" * 64]))
    column.put(np.array([0]), PackedKeys.of([b"n" * 8]))
    assert column.equal(np.array([0]), PackedKeys.of([b"n" * 8])).tolist() == [True]
    assert not column.words(np.array([0]))[0, 1:].any()


def test_a_zero_more_is_another_key() -> None:
    column = KeyColumn()
    column.extend(1)
    column.put(np.array([0]), PackedKeys.of([b"k" * 8]))
    assert column.equal(np.array([0]), PackedKeys.of([b"k" * 8 + b"\0" * 8])).tolist() == [False]
