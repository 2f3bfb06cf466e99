"""Between wire messages and what the facade takes and gives. Packed fields are described in `proto/hybridkv.proto`.

Whatever comes from a peer is checked here for form (lengths, ranges of enums, finite numbers) and answered with
InvalidArgumentError that names the message's field; what it refers to is checked by the facade. Arrays made from
bytes are read-only views of them. Pure functions, thread-safe.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import FINGERPRINT_BYTES, MAX_KEY_BYTES, MIN_KEY_BYTES, Namespace
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.states import Tier

MAX_WAIT_S = 3600.0
MAX_POOLS = 64

_TIER_TO_WIRE: dict[Tier | None, pb.Tier] = {
    None: pb.TIER_ANY,
    Tier.GPU: pb.TIER_GPU,
    Tier.CPU: pb.TIER_CPU,
    Tier.DISK: pb.TIER_DISK,
}
_TIER_FROM_WIRE: dict[int, Tier | None] = {int(wire): tier for tier, wire in _TIER_TO_WIRE.items()}


def tier_to_wire(tier: Tier | None) -> pb.Tier:
    """None is TIER_ANY."""
    return _TIER_TO_WIRE[tier]


def tier_from_wire(value: int) -> Tier | None:
    """Raises InvalidArgumentError for a number that is no tier (proto3 enums are open)."""
    try:
        return _TIER_FROM_WIRE[value]
    except KeyError:
        raise InvalidArgumentError("tier", f"{value} is no tier; known: 0 (any) to {pb.TIER_DISK}") from None


# -------------------------------------------------------------------------------------------------- keys and columns


def keys_to_wire(keys: Keys) -> tuple[bytes, int]:
    """`(keys, key_bytes)` as the requests carry them."""
    return keys.packed, keys.width


def keys_from_wire(packed: bytes, key_bytes: int, field: str = "keys") -> Keys:
    """Raises InvalidArgumentError when the width is not 8..64 or the bytes are no whole number of keys."""
    if not MIN_KEY_BYTES <= key_bytes <= MAX_KEY_BYTES:
        raise InvalidArgumentError("key_bytes", f"{key_bytes} is not in {MIN_KEY_BYTES}..{MAX_KEY_BYTES}")
    if len(packed) % key_bytes:
        raise InvalidArgumentError(field, f"{len(packed)} bytes are no multiple of key_bytes {key_bytes}")
    return Keys(packed, key_bytes)


def packed(column: npt.NDArray[Any]) -> bytes:
    """A column as bytes, little-endian; for states, tiers, outcomes (u8) and slots (SLOT_DTYPE)."""
    return np.ascontiguousarray(column).tobytes()


def states_from_wire(data: bytes, count: int, field: str = "states") -> npt.NDArray[np.uint8]:
    """One byte a key. Raises InvalidArgumentError unless there are `count`."""
    return _column(data, np.dtype(np.uint8), field, count)


def slots_from_wire(data: bytes, count: int, field: str = "slots") -> npt.NDArray[Any]:
    """SLOT_DTYPE [count]."""
    return _column(data, SLOT_DTYPE, field, count)


def indices_to_wire(indices: npt.NDArray[np.int64]) -> bytes:
    """u32 each."""
    return packed(np.asarray(indices, dtype="<u4"))


def indices_from_wire(data: bytes, field: str = "indices") -> npt.NDArray[np.int64]:
    """int64 [m]; whether they lie within the reservation is the facade's to say."""
    return _column(data, np.dtype("<u4"), field).astype(np.int64)


def checksums_to_wire(checksums: npt.NDArray[np.uint64]) -> bytes:
    return packed(np.asarray(checksums, dtype="<u8"))


def checksums_from_wire(data: bytes, field: str = "checksums") -> npt.NDArray[np.uint64]:
    """uint64 [m]."""
    return _column(data, np.dtype("<u8"), field)


def events_to_wire(events: Sequence[tuple[int, object]]) -> list[pb.DeviceEvent]:
    """Exported events, as bytes."""
    return [pb.DeviceEvent(pool=pool, event=event) for pool, event in events if isinstance(event, bytes)]


def events_from_wire(events: Sequence[pb.DeviceEvent], field: str = "events") -> list[tuple[int, bytes]]:
    """(pool, event). Whether they are pools and events is the facade's to say."""
    if len(events) > MAX_POOLS:
        raise InvalidArgumentError(field, f"{len(events)}, one for each pool belongs; the limit is {MAX_POOLS}")
    return [(event.pool, event.event) for event in events]


def _column(data: bytes, dtype: np.dtype[Any], field: str, count: int | None = None) -> npt.NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise InvalidArgumentError(field, f"{len(data)} bytes are no multiple of {dtype.itemsize}")
    if count is not None and len(data) != count * dtype.itemsize:
        raise InvalidArgumentError(field, f"{len(data)} bytes where {count} times {dtype.itemsize} belong")
    return np.frombuffer(data, dtype=dtype)


# ---------------------------------------------------------------------------------------------------------- numbers


def wait_from_wire(wait_s: float, field: str = "wait_s") -> float:
    """Seconds in 0..3600. Raises InvalidArgumentError for others and for NaN."""
    if not math.isfinite(wait_s) or not 0.0 <= wait_s <= MAX_WAIT_S:
        raise InvalidArgumentError(field, f"{wait_s} is not in 0..{MAX_WAIT_S:g} seconds")
    return wait_s


def hints_to_wire(hints: Hints) -> pb.Hints | None:
    """None where there are none to send."""
    if hints == NO_HINTS:
        return None
    return pb.Hints(
        priority=hints.priority,
        expected_next_use_s=hints.expected_next_use_s,
        request_class=hints.request_class,
        end_of_session=hints.end_of_session,
    )


def hints_from_wire(message: pb.Hints) -> Hints:
    """`Hints` checks the values."""
    return Hints(
        priority=message.priority if message.HasField("priority") else None,  # type: ignore[arg-type]
        expected_next_use_s=message.expected_next_use_s if message.HasField("expected_next_use_s") else None,
        request_class=message.request_class if message.HasField("request_class") else None,
        end_of_session=message.end_of_session,
    )


def fingerprint_from_wire(data: bytes, field: str = "fingerprint") -> bytes | None:
    """32 bytes, or None when empty."""
    if len(data) not in (0, FINGERPRINT_BYTES):
        raise InvalidArgumentError(field, f"has {len(data)} bytes, {FINGERPRINT_BYTES} belong")
    return data or None


# -------------------------------------------------------------------------------------------------------- namespaces


def namespace_to_wire(space: Namespace) -> pb.Namespace:
    return pb.Namespace(
        model=space.model,
        revision=space.revision,
        config_digest=space.config_digest,
        adapter=space.adapter,
        salt=space.salt,
        rank=space.rank,
        world=space.world,
        key_bytes=space.key_bytes,
        layout=layout_to_wire(space.layout),
    )


def namespace_from_wire(message: pb.Namespace) -> Namespace:
    """Raises InvalidArgumentError naming the field; Namespace and BlockLayout check the values."""
    if not message.HasField("layout"):
        raise InvalidArgumentError("namespace.layout", "is missing")
    return Namespace(
        model=message.model,
        revision=message.revision,
        config_digest=message.config_digest,
        adapter=message.adapter,
        layout=layout_from_wire(message.layout),
        salt=message.salt,
        rank=message.rank,
        world=message.world,
        key_bytes=message.key_bytes,
    )


def layout_to_wire(layout: BlockLayout) -> pb.Layout:
    if layout.opaque_bytes is not None:
        return pb.Layout(opaque_bytes=layout.opaque_bytes, block_tokens=layout.block_tokens, tag=layout.tag)
    return pb.Layout(
        layers=layout.layers,
        kv_heads=layout.kv_heads,
        head_dim=layout.head_dim,
        dtype=layout.dtype,
        block_tokens=layout.block_tokens,
        order=layout.order,
    )


def layout_from_wire(message: pb.Layout) -> BlockLayout:
    if message.opaque_bytes:
        return BlockLayout.opaque(message.opaque_bytes, message.block_tokens, message.tag)
    return BlockLayout(
        layers=message.layers,
        kv_heads=message.kv_heads,
        head_dim=message.head_dim,
        dtype=message.dtype,
        block_tokens=message.block_tokens,
        order=message.order,
        tag=message.tag,
    )
