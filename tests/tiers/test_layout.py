"""BlockLayout: sizes, limits, equality, the round trip of its fields."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.layout import DTYPE_BYTES, MAX_BLOCK_BYTES, ORDERS, BlockLayout

SHAPE: dict[str, Any] = {"layers": 30, "kv_heads": 3, "head_dim": 64, "dtype": "bfloat16", "block_tokens": 32}


def test_sizes_of_a_real_model() -> None:
    layout = BlockLayout(**SHAPE)
    assert layout.payload_bytes == 2 * 30 * 3 * 64 * 2 * 32 == 737_280
    assert layout.block_bytes == 737_280


@pytest.mark.parametrize(("dtype", "size"), DTYPE_BYTES.items())
def test_payload_follows_the_dtype(dtype: str, size: int) -> None:
    assert BlockLayout(**{**SHAPE, "dtype": dtype}).payload_bytes == 2 * 30 * 3 * 64 * 32 * size


def test_block_bytes_are_rounded_up_to_512() -> None:
    layout = BlockLayout(layers=3, kv_heads=1, head_dim=80, dtype="uint8", block_tokens=10)
    assert (layout.payload_bytes, layout.block_bytes) == (4800, 5120)


@given(st.integers(4096, MAX_BLOCK_BYTES))
def test_block_bytes_are_the_least_multiple_that_holds_the_payload(size: int) -> None:
    layout = BlockLayout.opaque(size, 16, "any")
    assert layout.payload_bytes == size
    assert layout.block_bytes % 512 == 0
    assert size <= layout.block_bytes < size + 512


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": 0}, "layout.layers"),
        ({"layers": 4097}, "layout.layers"),
        ({"kv_heads": -1}, "layout.kv_heads"),
        ({"kv_heads": 4097}, "layout.kv_heads"),
        ({"head_dim": 65_537}, "layout.head_dim"),
        ({"head_dim": 64.0}, "layout.head_dim"),
        ({"layers": True}, "layout.layers"),
        ({"layers": "30"}, "layout.layers"),
        ({"block_tokens": 0}, "layout.block_tokens"),
        ({"block_tokens": 65_537}, "layout.block_tokens"),
        ({"dtype": "bf16"}, "layout.dtype"),
        ({"dtype": ["uint8"]}, "layout.dtype"),
        ({"order": "hnd"}, "layout.order"),
        ({"tag": "x"}, "layout.tag"),
        ({"layers": 1, "kv_heads": 1, "block_tokens": 1}, "layout.block_bytes"),
        ({"layers": 4096, "kv_heads": 128, "head_dim": 1024}, "layout.block_bytes"),
    ],
)
def test_a_wrong_value_names_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        BlockLayout(**{**SHAPE, **change})
    assert caught.value.field == field


def test_the_message_gives_the_limit_and_the_value() -> None:
    with pytest.raises(InvalidArgumentError, match=r"layout.layers: must be within \[1, 4096\], got 5000"):
        BlockLayout(**{**SHAPE, "layers": 5000})


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((4095, 16, "t"), "layout.block_bytes"),
        ((MAX_BLOCK_BYTES + 1, 16, "t"), "layout.block_bytes"),
        ((4096.0, 16, "t"), "layout.block_bytes"),
        ((4096, 0, "t"), "layout.block_tokens"),
        ((4096, 16, ""), "layout.tag"),
        ((4096, 16, "x" * 257), "layout.tag"),
        ((4096, 16, "\ud800"), "layout.tag"),
        ((4096, 16, None), "layout.tag"),
    ],
)
def test_a_wrong_opaque_value_names_its_field(arguments: Any, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        BlockLayout.opaque(*arguments)
    assert caught.value.field == field


def test_the_limits_themselves_are_allowed() -> None:
    assert BlockLayout.opaque(4096, 65_536, "x" * 256).block_bytes == 4096
    assert BlockLayout.opaque(MAX_BLOCK_BYTES, 1, "x").block_bytes == MAX_BLOCK_BYTES


def test_an_opaque_layout_takes_no_shape() -> None:
    with pytest.raises(InvalidArgumentError, match="opaque"):
        BlockLayout(**SHAPE, opaque_bytes=8192, tag="x")
    assert BlockLayout.opaque(8192, 16, "x").is_opaque
    assert not BlockLayout(**SHAPE).is_opaque


def test_every_order_is_another_layout() -> None:
    assert len({BlockLayout(**SHAPE, order=order) for order in ORDERS}) == len(ORDERS)


@pytest.mark.parametrize("layout", [BlockLayout(**SHAPE, order="vk"), BlockLayout.opaque(5000, 16, "paged")])
def test_canonical_fields_make_the_same_layout(layout: BlockLayout) -> None:
    assert BlockLayout.from_canonical(layout.canonical()) == layout


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "other"},
        {"kind": ["shaped"]},
        {"kind": "opaque", "block_bytes": 4096, "block_tokens": 1},
        {"kind": "opaque", "block_bytes": 4096, "block_tokens": 1, "tag": "x", "layers": 3},
        {**BlockLayout(**SHAPE).canonical(), "opaque_bytes": 4096},
        "opaque",
    ],
)
def test_wrong_canonical_fields_are_refused(fields: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="layout"):
        BlockLayout.from_canonical(fields)


def test_a_layout_is_frozen() -> None:
    layout = BlockLayout(**SHAPE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.layers = 31  # type: ignore[misc]
