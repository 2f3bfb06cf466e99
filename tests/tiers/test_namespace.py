"""Namespace: the fingerprint covers every field, unambiguously, and never changes."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

LAYOUT = BlockLayout(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", block_tokens=32)
SPACE = Namespace(
    model="SmolLM2-135M",
    revision="r1",
    config_digest="c1",
    adapter="a1",
    layout=LAYOUT,
    salt="s1",
    rank=1,
    world=2,
)
TEXT = st.text(max_size=8)


def test_golden_fingerprints() -> None:
    """Blocks on disk carry these: a change here loses every user's disk tier and must be a new version."""
    assert SPACE.fingerprint.hex() == "94103a32b663c9a1761044196d6dfefec23430f9c2c709aea145ca96830e13ea"
    opaque = Namespace(model="m", layout=BlockLayout.opaque(5000, 4, "hnd"), key_bytes=32)
    assert opaque.fingerprint.hex() == "7e5f8520407f67f54396c2d9a5e77cfcbf209fe85fdb82035b3b18111bcfb091"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "SmolLM2-360M"},
        {"revision": "r2"},
        {"config_digest": "c2"},
        {"adapter": ""},
        {"salt": "s2"},
        {"rank": 0},
        {"world": 3},
        {"key_bytes": 32},
        {"layout": dataclasses.replace(LAYOUT, layers=31)},
        {"layout": dataclasses.replace(LAYOUT, kv_heads=4)},
        {"layout": dataclasses.replace(LAYOUT, head_dim=128)},
        {"layout": dataclasses.replace(LAYOUT, dtype="float16")},
        {"layout": dataclasses.replace(LAYOUT, block_tokens=16)},
        {"layout": dataclasses.replace(LAYOUT, order="vk")},
        {"layout": BlockLayout.opaque(LAYOUT.block_bytes, 32, "x")},
    ],
    ids=str,
)
def test_every_field_is_in_the_fingerprint(change: dict[str, Any]) -> None:
    other = dataclasses.replace(SPACE, **change)
    assert other.fingerprint != SPACE.fingerprint
    assert other != SPACE


def test_opaque_layouts_differ_by_size_tokens_and_tag() -> None:
    layouts = [BlockLayout.opaque(*a) for a in ((8192, 16, "x"), (8193, 16, "x"), (8192, 17, "x"), (8192, 16, "y"))]
    assert len({Namespace(model="m", layout=layout).fingerprint for layout in layouts}) == 4


@given(st.tuples(TEXT, TEXT, TEXT, TEXT), st.tuples(TEXT, TEXT, TEXT, TEXT))
def test_equal_fingerprints_mean_equal_fields(one: tuple[str, ...], two: tuple[str, ...]) -> None:
    names = ("revision", "config_digest", "adapter", "salt")
    first = Namespace(model="m", layout=LAYOUT, **dict(zip(names, one, strict=True)))  # type: ignore[arg-type]
    second = Namespace(model="m", layout=LAYOUT, **dict(zip(names, two, strict=True)))  # type: ignore[arg-type]
    assert (first.fingerprint == second.fingerprint) == (one == two)


def test_text_does_not_run_from_one_field_into_the_next() -> None:
    one = Namespace(model="ab", revision="c", layout=LAYOUT)
    two = Namespace(model="a", revision="bc", layout=LAYOUT)
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize("space", [SPACE, Namespace(model="ü", layout=BlockLayout.opaque(4096, 1, "t"), key_bytes=8)])
def test_fields_round_trip(space: Namespace) -> None:
    again = Namespace.from_fields(space.fields())
    assert again == space
    assert again.fingerprint == space.fingerprint


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": ""}, "namespace.model"),
        ({"model": 3}, "namespace.model"),
        ({"model": "x" * 1025}, "namespace.model"),
        ({"revision": "é" * 513}, "namespace.revision"),
        ({"salt": "\udc00"}, "namespace.salt"),
        ({"adapter": None}, "namespace.adapter"),
        ({"world": 0}, "namespace.world"),
        ({"world": 65_537}, "namespace.world"),
        ({"rank": 2}, "namespace.rank"),
        ({"rank": -1}, "namespace.rank"),
        ({"key_bytes": 7}, "namespace.key_bytes"),
        ({"key_bytes": 65}, "namespace.key_bytes"),
        ({"layout": {"layers": 3}}, "namespace.layout"),
    ],
)
def test_a_wrong_value_names_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        dataclasses.replace(SPACE, **change)
    assert caught.value.field == field


def test_the_limits_themselves_are_allowed() -> None:
    space = Namespace(model="é" * 512, layout=LAYOUT, rank=65_535, world=65_536, key_bytes=64)
    assert len(space.fingerprint) == 32


@pytest.mark.parametrize(
    "change", [{"extra": 1}, {"layout": "x"}, {"layout": {**LAYOUT.canonical(), "kind": "x"}}], ids=str
)
def test_wrong_fields_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"namespace|layout"):
        Namespace.from_fields({**SPACE.fields(), **change})


@pytest.mark.parametrize("name", sorted(SPACE.fields()))
def test_a_missing_field_is_refused_by_name(name: str) -> None:
    fields = SPACE.fields()
    del fields[name]
    with pytest.raises(InvalidArgumentError, match=name):
        Namespace.from_fields(fields)


@pytest.mark.parametrize("fields", ["model", None, [1]], ids=repr)
def test_what_is_no_mapping_is_refused(fields: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="namespace: must be a mapping"):
        Namespace.from_fields(fields)


def test_the_salt_is_not_shown() -> None:
    assert "s1" not in repr(SPACE)
    assert "SmolLM2-135M" in repr(SPACE)
