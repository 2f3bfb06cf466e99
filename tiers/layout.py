"""What fixes a block's size: its shape, its dtype, its tokens and the order of K and V in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from hybridkv.tiers.checks import checked_int, checked_names, checked_text
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.pools import BLOCK_ALIGN_BYTES, MIN_BLOCK_BYTES

MAX_BLOCK_BYTES = 1 << 30
MAX_BLOCK_TOKENS = 1 << 16
MAX_TAG_BYTES = 256
SHAPE_LIMITS = {"layers": 4096, "kv_heads": 4096, "head_dim": 1 << 16}

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
"""Item size of every dtype a layout may have; the names are PyTorch's."""

ORDERS = {
    "kv": "[layers, 2 (K, V), tokens, heads, dim]",
    "vk": "[layers, 2 (V, K), tokens, heads, dim]",
    "kv_split": "[2 (K, V), layers, tokens, heads, dim]",
}
"""Orders of a block's content. The order moves no byte here: it is identity, so that no two engines that lay K and V
out differently ever share a block. An engine with another order uses `BlockLayout.opaque` with a tag that names it."""

_SHAPED = frozenset({"kind", "layers", "kv_heads", "head_dim", "dtype", "block_tokens", "order"})
_OPAQUE = frozenset({"kind", "block_bytes", "block_tokens", "tag"})


@dataclass(frozen=True)
class BlockLayout:
    """The size and order of one block: `block_tokens` tokens, K and V of all layers of one rank, contiguous.

    Two layouts are equal when their blocks are interchangeable. A wrong value raises InvalidArgumentError. An opaque
    layout (see `opaque`) has no shape: layers, kv_heads and head_dim are 0 and the dtype is uint8.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    block_tokens: int
    order: str = "kv"
    opaque_bytes: int | None = None
    tag: str = ""

    @classmethod
    def opaque(cls, block_bytes: int, block_tokens: int, tag: str) -> Self:
        """A block of `block_bytes` bytes whose inside only the engine knows; `tag` (not empty) names that inside."""
        return cls(0, 0, 0, "uint8", block_tokens, opaque_bytes=block_bytes, tag=tag)

    def __post_init__(self) -> None:
        self._set("block_tokens", checked_int("layout.block_tokens", self.block_tokens, 1, MAX_BLOCK_TOKENS))
        if self.opaque_bytes is None:
            self._check_shape()
        else:
            self._check_opaque(self.opaque_bytes)
        if not MIN_BLOCK_BYTES <= self.block_bytes <= MAX_BLOCK_BYTES:
            limit = f"a block must be within [{MIN_BLOCK_BYTES}, {MAX_BLOCK_BYTES}] bytes, got {self.block_bytes}"
            raise InvalidArgumentError("layout.block_bytes", limit)

    @property
    def is_opaque(self) -> bool:
        """Whether only the size of the block is known."""
        return self.opaque_bytes is not None

    @property
    def payload_bytes(self) -> int:
        """Bytes of KV in a block."""
        if self.opaque_bytes is not None:
            return self.opaque_bytes
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype] * self.block_tokens

    @property
    def block_bytes(self) -> int:
        """Bytes a block takes in a tier: `payload_bytes` rounded up to a multiple of 512."""
        return -(-self.payload_bytes // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES

    def canonical(self) -> dict[str, int | str]:
        """Everything that makes this layout, as plain values: for the fingerprint and for the wire."""
        if self.opaque_bytes is not None:
            size = self.opaque_bytes
            return {"kind": "opaque", "block_bytes": size, "block_tokens": self.block_tokens, "tag": self.tag}
        return {
            "kind": "shaped",
            "layers": self.layers,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "block_tokens": self.block_tokens,
            "order": self.order,
        }

    @classmethod
    def from_canonical(cls, fields: Mapping[str, object]) -> Self:
        """The layout that `canonical` described; missing, unknown and wrong fields are refused."""
        kind = fields.get("kind") if isinstance(fields, Mapping) else None
        if kind == "opaque":
            values = checked_names("layout", fields, _OPAQUE)
            return cls.opaque(values["block_bytes"], values["block_tokens"], values["tag"])  # type: ignore[arg-type]
        if kind == "shaped":
            values = checked_names("layout", fields, _SHAPED)
            return cls(**{name: value for name, value in values.items() if name != "kind"})  # type: ignore[arg-type]
        raise InvalidArgumentError("layout.kind", f"must be 'shaped' or 'opaque', got {kind!r}")

    def _set(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)

    def _check_shape(self) -> None:
        for name, limit in SHAPE_LIMITS.items():
            self._set(name, checked_int(f"layout.{name}", getattr(self, name), 1, limit))
        if not isinstance(self.dtype, str) or self.dtype not in DTYPE_BYTES:
            raise InvalidArgumentError("layout.dtype", f"must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}")
        if not isinstance(self.order, str) or self.order not in ORDERS:
            raise InvalidArgumentError("layout.order", f"must be one of {', '.join(ORDERS)}, got {self.order!r}")
        if self.tag != "":
            raise InvalidArgumentError("layout.tag", "only an opaque layout has a tag")

    def _check_opaque(self, block_bytes: int) -> None:
        if (self.layers, self.kv_heads, self.head_dim, self.dtype, self.order) != (0, 0, 0, "uint8", "kv"):
            raise InvalidArgumentError("layout.opaque_bytes", "an opaque layout has no shape; use BlockLayout.opaque")
        size = checked_int("layout.block_bytes", block_bytes, MIN_BLOCK_BYTES, MAX_BLOCK_BYTES)
        self._set("opaque_bytes", size)
        checked_text("layout.tag", self.tag, MAX_TAG_BYTES, allow_empty=False)
