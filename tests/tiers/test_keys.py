"""Keys and the chain hash: equal everywhere, rooted in the namespace, and hard to misuse."""

import os
import pickle
import subprocess
import sys
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys, chain
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

SPACE = Namespace(
    model="SmolLM2-135M",
    revision="r1",
    config_digest="c1",
    adapter="a1",
    layout=BlockLayout(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", block_tokens=32),
    salt="s1",
    rank=1,
    world=2,
)
SMALL = Namespace(model="m", layout=BlockLayout.opaque(5000, 4, "hnd"), key_bytes=32)
GOLDEN = ["cdc6bd6c6f3dcdac27ff889821d86505", "450d35d2bf319d51de7af0d02ec2c5c9", "20c7eb63079e69f7d48d192889071a81"]

CHILD = """
from hybridkv.tiers.keys import chain
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
layout = BlockLayout(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", block_tokens=32)
space = Namespace(model="SmolLM2-135M", revision="r1", config_digest="c1", adapter="a1", layout=layout, salt="s1",
                  rank=1, world=2)
print(space.fingerprint.hex(), *(key.hex() for key in chain(space, list(range(100)))))
"""


def hexes(keys: Keys) -> list[str]:
    return [key.hex() for key in keys]


def test_golden_chains() -> None:
    assert hexes(chain(SPACE, list(range(100)))) == GOLDEN
    extremes = chain(SMALL, [0, 1, 2, 2**32 - 1])
    assert hexes(extremes) == ["ae39b02f0e24ed6d6cd4e1b0dca78a7a122602d3c9829a1cb3775017a5cc566b"]


def test_a_key_is_the_hash_of_parent_and_tokens() -> None:
    tokens = np.arange(12, dtype="<u4")
    parent, expected = SMALL.fingerprint, []
    for block in tokens.reshape(3, 4):
        parent = blake2b(parent + block.tobytes(), digest_size=32, person=b"hybridkv.chain.1").digest()
        expected.append(parent)
    assert list(chain(SMALL, tokens)) == expected


def test_equal_in_every_process() -> None:
    outputs = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, check=True)
        outputs.add(run.stdout.strip())
    assert outputs == {" ".join([SPACE.fingerprint.hex(), *GOLDEN])}


def test_every_form_of_tokens_gives_the_same_keys() -> None:
    torch = pytest.importorskip("torch")
    tokens = list(range(100))
    wanted = chain(SPACE, tokens)
    strided = np.arange(200).reshape(100, 2)[:, 0] // 2
    big_endian = np.arange(100, dtype=">u4")
    for form in (tuple(tokens), range(100), np.arange(100, dtype=np.uint8), strided, big_endian, torch.arange(100)):
        assert chain(SPACE, form) == wanted, type(form)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 10))
def test_a_chain_continues_from_its_parent(tokens: list[int], blocks: int) -> None:
    whole = chain(SMALL, tokens)
    assert len(whole) == len(tokens) // 4
    if 0 < blocks <= len(whole):
        assert whole[:blocks] == chain(SMALL, tokens[: blocks * 4])
        assert whole[blocks:] == chain(SMALL, tokens[blocks * 4 :], parent=whole[blocks - 1])


@given(st.lists(st.integers(0, 2**32 - 1), min_size=12, max_size=12), st.integers(0, 11))
def test_a_token_changes_its_block_and_all_after_it(tokens: list[int], at: int) -> None:
    other = [*tokens]
    other[at] ^= 1
    same = [a == b for a, b in zip(chain(SMALL, tokens), chain(SMALL, other), strict=True)]
    assert same == [block < at // 4 for block in range(3)]


def test_no_full_block_gives_no_keys() -> None:
    for tokens in ([], [1, 2, 3], np.array([], dtype=np.int64), ()):
        found = chain(SMALL, tokens)
        assert (len(found), found.width) == (0, 32)


@pytest.mark.parametrize(
    "tokens",
    [
        [-1, 0, 0, 0],
        [2**32, 0, 0, 0],
        [2**70, 0, 0, 0],
        [1.5, 0, 0, 0],
        ["a", "b"],
        [[1, 2], [3, 4]],
        [None],
        None,
        7,
        "tokens",
        np.zeros((2, 2), np.int64),
        np.zeros(4, np.float32),
        np.array([True, False]),
        np.array([-1]),
        np.array([2**32], dtype=np.uint64),
        (2**70, 1),
        ((1, 2), (3,)),
    ],
    ids=repr,
)
def test_wrong_tokens_are_refused(tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        chain(SMALL, tokens)
    assert caught.value.field == "tokens"


@pytest.mark.parametrize("parent", [b"", b"x" * 16, "x" * 32, 5], ids=repr)
def test_a_parent_of_another_width_is_refused(parent: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="parent: must be a key of 32 bytes"):
        chain(SMALL, [1, 2, 3, 4], parent=parent)


def test_keys_are_a_sequence() -> None:
    parts = [bytes([i]) * 8 for i in range(5)]
    keys = Keys.of(parts)
    assert (len(keys), keys.width, keys.packed) == (5, 8, b"".join(parts))
    assert list(keys) == keys.as_list() == parts
    assert (keys[0], keys[-1]) == (parts[0], parts[4])
    assert parts[3] in keys
    assert Keys.of(keys) is keys
    with pytest.raises(IndexError):
        keys[5]


@given(st.integers(0, 9), st.slices(9))
def test_slices_are_those_of_a_list(count: int, cut: slice) -> None:
    parts = [os.urandom(7) + bytes([0]) for _ in range(count)]
    keys = Keys.of(parts, 8)
    assert isinstance(keys[cut], Keys)
    assert list(keys[cut]) == parts[cut]
    assert keys[cut].width == 8


def test_zero_bytes_at_the_ends_survive() -> None:
    key = bytes(3) + b"middle" + bytes(3)
    assert Keys.of([key]).as_list() == [key]


def test_equality_is_by_content_and_width() -> None:
    keys = Keys(b"a" * 16, 8)
    assert keys == Keys.of([b"a" * 8] * 2)
    assert hash(keys) == hash(Keys.of([b"a" * 8] * 2))
    assert keys != Keys(b"a" * 16, 16)
    assert keys != [b"a" * 8] * 2


def test_repr_shows_count_width_and_first_keys() -> None:
    assert repr(Keys(b"\x01" * 24, 8)) == "Keys(3 × 8 bytes: [0101010101010101, 0101010101010101, …])"


def test_keys_are_immutable_and_picklable() -> None:
    keys = Keys(b"a" * 16, 8)
    with pytest.raises(AttributeError):
        keys.packed = b""
    assert pickle.loads(pickle.dumps(keys)) == keys


@pytest.mark.parametrize(
    ("given_keys", "width"),
    [
        ([b"x" * 7], None),
        ([b"x" * 65], None),
        ([b"x" * 8, b"x" * 9], None),
        ([b"x" * 8], 16),
        (Keys(b"x" * 8, 8), 16),
        ([], None),
        ([], 7),
        (["x" * 8], None),
        ([bytearray(8)], None),
        (b"x" * 8, None),
        ("x" * 8, None),
        (5, None),
        ([b"x" * 8], 8.0),
    ],
    ids=repr,
)
def test_wrong_keys_are_refused(given_keys: Any, width: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Keys.of(given_keys, width)
    assert caught.value.field == "keys"


@pytest.mark.parametrize(("packed", "width"), [(b"x" * 9, 8), (bytearray(8), 8), (b"", 0), (b"x" * 65, 65)], ids=repr)
def test_wrong_packed_keys_are_refused(packed: Any, width: int) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Keys(packed, width)
    assert caught.value.field == "keys"


def test_no_keys_of_a_given_width() -> None:
    assert list(Keys.of([], 16)) == []
    assert Keys.of(iter([b"x" * 64])).width == 64
