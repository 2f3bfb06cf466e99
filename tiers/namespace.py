"""Whose blocks they are: the fields that make KV reusable, and the fingerprint over all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

from hybridkv.tiers.checks import checked_int, checked_names, checked_text
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.layout import BlockLayout

FINGERPRINT_BYTES = 32
MAX_TEXT_BYTES = 1024
MAX_WORLD = 1 << 16
MIN_KEY_BYTES = 8
MAX_KEY_BYTES = 64

OWNER_TAG_BYTES = 8

_PERSON = b"hybridkv.space.1"  # 16 bytes, BLAKE2b's limit; the digit is the version of the encoding below
_OWNER_TAG_PERSON = b"hybridkv.owner.1"
_OWNED_PERSON = b"hybridkv.owned.1"
_TEXTS = ("model", "revision", "config_digest", "adapter", "salt")
_NAMES = frozenset({*_TEXTS, "layout", "rank", "world", "key_bytes"})


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """All that must be equal for two workers to share blocks; one changed field is another namespace.

    `config_digest` is the caller's digest of whatever else changes KV (RoPE scaling, quantisation scales, …); `salt`
    keeps tenants apart and is not shown by `repr`; `rank` of `world` is the tensor-parallel rank; `key_bytes` is the
    width of every key here. A wrong value raises InvalidArgumentError naming the field.

    `fingerprint`: 32 bytes, BLAKE2b over every field, the same in every process, release and machine.
    """

    model: str
    revision: str = ""
    config_digest: str = ""
    adapter: str = ""
    layout: BlockLayout
    salt: str = field(default="", repr=False)
    rank: int = 0
    world: int = 1
    key_bytes: int = 16
    fingerprint: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _TEXTS:
            checked_text(f"namespace.{name}", getattr(self, name), MAX_TEXT_BYTES, allow_empty=name != "model")
        if not isinstance(self.layout, BlockLayout):
            raise InvalidArgumentError("namespace.layout", f"must be a BlockLayout, got {type(self.layout).__name__}")
        self._set("world", checked_int("namespace.world", self.world, 1, MAX_WORLD))
        self._set("rank", checked_int("namespace.rank", self.rank, 0, self.world - 1))
        self._set("key_bytes", checked_int("namespace.key_bytes", self.key_bytes, MIN_KEY_BYTES, MAX_KEY_BYTES))
        self._set("fingerprint", _fingerprint(self.fields()))

    def fields(self) -> dict[str, object]:
        """Every field as plain values (`layout` as a dict of its own): what travels in an attach."""
        named = {name: getattr(self, name) for name in _NAMES if name != "layout"}
        return {**named, "layout": self.layout.canonical()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Self:
        """The namespace that `fields` described; missing, unknown and wrong fields are refused."""
        values = checked_names("namespace", fields, _NAMES)
        layout = values["layout"]
        if not isinstance(layout, Mapping):
            raise InvalidArgumentError("namespace.layout", f"must be a mapping, got {type(layout).__name__}")
        return cls(**{**values, "layout": BlockLayout.from_canonical(layout)})  # type: ignore[arg-type]

    def _set(self, name: str, value: int | bytes) -> None:
        object.__setattr__(self, name, value)


def owner_tag(owner: str) -> bytes:
    """The first 8 bytes of the fingerprint of every namespace of this tenant."""
    return blake2b(owner.encode(), digest_size=OWNER_TAG_BYTES, person=_OWNER_TAG_PERSON).digest()


def owned_fingerprint(owner: str, fingerprint: bytes) -> bytes:
    """What a namespace is known by when it belongs to the tenant `owner`: 32 bytes, another for every owner. They begin with
    the owner's tag, so that after a restart blocks on disk are known to be the tenant's."""
    rest = FINGERPRINT_BYTES - OWNER_TAG_BYTES
    named = blake2b(_tagged(b"s", owner.encode()) + fingerprint, digest_size=rest, person=_OWNED_PERSON)
    return owner_tag(owner) + named.digest()


def _fingerprint(fields: Mapping[str, object]) -> bytes:
    return blake2b(_encoded(fields), digest_size=FINGERPRINT_BYTES, person=_PERSON).digest()


def _encoded(value: object) -> bytes:
    """An encoding that no two different values share: type letter, length of the body (u32, little-endian), body."""
    if isinstance(value, Mapping):
        body = b"".join(_encoded(name) + _encoded(value[name]) for name in sorted(value))
        return _tagged(b"m", body)
    if isinstance(value, str):
        return _tagged(b"s", value.encode())
    if isinstance(value, int):
        return _tagged(b"i", str(value).encode())
    raise TypeError(f"no encoding for {type(value).__name__}")


def _tagged(letter: bytes, body: bytes) -> bytes:
    return letter + len(body).to_bytes(4, "little") + body
