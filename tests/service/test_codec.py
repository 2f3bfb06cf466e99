"""What goes over the wire comes back; what has the wrong form is refused by name."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service import codec
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import DTYPE_BYTES, ORDERS, BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.states import Tier

text = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=20)
names = text.filter(bool)
layouts = st.one_of(
    st.builds(
        BlockLayout,
        layers=st.integers(8, 64),
        kv_heads=st.integers(1, 8),
        head_dim=st.sampled_from([64, 128]),
        dtype=st.sampled_from(sorted(DTYPE_BYTES)),
        block_tokens=st.integers(16, 32),
        order=st.sampled_from(sorted(ORDERS)),
    ),
    st.builds(BlockLayout.opaque, st.integers(4096, 1 << 20), st.integers(1, 64), names),
)
spaces = st.builds(
    Namespace,
    model=names,
    revision=text,
    config_digest=text,
    adapter=text,
    layout=layouts,
    salt=text,
    rank=st.integers(0, 3),
    world=st.integers(4, 8),
    key_bytes=st.integers(8, 64),
)


@given(spaces)
def test_a_namespace_keeps_its_fingerprint(space: Namespace) -> None:
    sent = pb.Namespace.FromString(codec.namespace_to_wire(space).SerializeToString())
    back = codec.namespace_from_wire(sent)
    assert back == space
    assert back.fingerprint == space.fingerprint


@given(st.integers(8, 64).flatmap(lambda w: st.lists(st.binary(min_size=w, max_size=w), min_size=1, max_size=20)))
def test_keys_come_back(keys: list[bytes]) -> None:
    packed, width = codec.keys_to_wire(Keys.of(keys))
    assert list(codec.keys_from_wire(packed, width)) == keys


@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_are_keys_or_refused_by_name(packed: bytes, width: int) -> None:
    fits = 8 <= width <= 64 and len(packed) % width == 0
    if fits:
        assert codec.keys_from_wire(packed, width).packed == packed
    else:
        with pytest.raises(InvalidArgumentError, match=r"^key(s|_bytes): \d+"):
            codec.keys_from_wire(packed, width)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=30), st.lists(st.integers(0, 2**64 - 1), max_size=30))
def test_indices_and_checksums_come_back(indices: list[int], checksums: list[int]) -> None:
    sent = codec.indices_to_wire(np.array(indices, dtype=np.int64))
    assert len(sent) == 4 * len(indices)
    assert codec.indices_from_wire(sent).tolist() == indices
    assert codec.indices_from_wire(sent).dtype == np.int64
    sums = codec.checksums_to_wire(np.array(checksums, dtype=np.uint64))
    assert codec.checksums_from_wire(sums).tolist() == checksums


@given(st.binary(max_size=100), st.integers(0, 4))
def test_columns_have_the_length_of_the_keys(data: bytes, count: int) -> None:
    for read, size in ((codec.states_from_wire, 1), (codec.slots_from_wire, 32)):
        if len(data) == count * size:
            assert codec.packed(read(data, count)) == data
        else:
            with pytest.raises(InvalidArgumentError, match="bytes"):
                read(data, count)


def test_slots_come_back_whatever_their_stride() -> None:
    slots = np.zeros(6, dtype=SLOT_DTYPE)
    slots["offset"] = np.arange(6) * 4096
    sent = codec.packed(slots[::2])
    assert len(sent) == 3 * 32
    assert codec.slots_from_wire(sent, 3)["offset"].tolist() == [0, 8192, 16384]


@pytest.mark.parametrize("tier", [None, *Tier])
def test_tiers_come_back(tier: Tier | None) -> None:
    assert codec.tier_from_wire(codec.tier_to_wire(tier)) is tier


def test_wire_tiers_are_as_the_protocol_says() -> None:
    assert [codec.tier_to_wire(tier) for tier in (None, Tier.GPU, Tier.CPU, Tier.DISK)] == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [-1, 4, 1000])
def test_a_number_that_is_no_tier_is_refused(value: int) -> None:
    with pytest.raises(InvalidArgumentError, match="tier"):
        codec.tier_from_wire(value)


@given(st.floats())
def test_waits_are_finite_and_bounded(wait_s: float) -> None:
    if math.isfinite(wait_s) and 0 <= wait_s <= codec.MAX_WAIT_S:
        assert codec.wait_from_wire(wait_s) == wait_s
    else:
        with pytest.raises(InvalidArgumentError, match=r"^wait_s: "):
            codec.wait_from_wire(wait_s)


def test_a_fingerprint_has_32_bytes_or_none() -> None:
    assert codec.fingerprint_from_wire(b"") is None
    assert codec.fingerprint_from_wire(bytes(32)) == bytes(32)
    with pytest.raises(InvalidArgumentError, match="fingerprint"):
        codec.fingerprint_from_wire(bytes(31))
