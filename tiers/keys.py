"""Keys: the content identity of blocks, packed; and the chain hash that makes them from tokens."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.namespace import MAX_KEY_BYTES, MIN_KEY_BYTES, Namespace

MAX_TOKEN = (1 << 32) - 1
TOKEN_BYTES = 4

_PERSON = b"hybridkv.chain.1"  # 16 bytes, BLAKE2b's limit; the digit is the version of the chain


class Keys(Sequence[bytes]):
    """An immutable sequence of keys of equal width, held as one bytes object.

    `packed` holds the keys one after another, `width` is the bytes of each (8 to 64). A slice is again a Keys.
    """

    __slots__ = ("packed", "width")

    packed: bytes
    width: int

    def __init__(self, packed: bytes, width: int) -> None:
        """`packed` as it travels on the wire; its length must be a multiple of `width`."""
        size = _checked_width(width)
        if not isinstance(packed, bytes):
            raise InvalidArgumentError("keys", f"must be bytes, got {type(packed).__name__}")
        if len(packed) % size:
            raise InvalidArgumentError("keys", f"{len(packed)} bytes are no multiple of the key width {size}")
        object.__setattr__(self, "packed", packed)
        object.__setattr__(self, "width", size)

    @classmethod
    def of(cls, keys: "Iterable[bytes] | Keys", width: int | None = None) -> "Keys":
        """Keys from an iterable of bytes, all of `width` (default: that of the first; needed where there is none)."""
        if isinstance(keys, Keys):
            if width is not None and width != keys.width:
                raise InvalidArgumentError("keys", f"must be {width} bytes wide, got {keys.width}")
            return keys
        parts = _checked_parts(keys)
        if not parts and width is None:
            raise InvalidArgumentError("keys", "must not be empty where no width is given")
        size = _checked_width(len(parts[0]) if width is None else width)
        if wrong := set(map(len, parts)) - {size}:
            raise InvalidArgumentError("keys", f"must all be {size} bytes wide, got {sorted(wrong)[0]}")
        return _checked(b"".join(parts), size)

    def as_list(self) -> list[bytes]:
        """The keys as bytes objects, made in one pass in C (about 30 ns a key)."""
        found: list[bytes] = np.frombuffer(self.packed, f"V{self.width}").tolist()
        return found

    def at(self, indices: npt.NDArray[np.int64]) -> "Keys":
        """The keys at these positions, in their order, in one pass in C."""
        chosen = np.frombuffer(self.packed, f"V{self.width}")[indices]
        return _checked(chosen.tobytes(), self.width)

    def __len__(self) -> int:
        return len(self.packed) // self.width

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.as_list())

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "Keys": ...
    def __getitem__(self, index: int | slice) -> "bytes | Keys":
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return _checked(b"".join(self.as_list()[index]), self.width)
            return _checked(self.packed[start * self.width : stop * self.width], self.width)
        at = range(len(self))[index]
        return self.packed[at * self.width : (at + 1) * self.width]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Keys):
            return NotImplemented
        return self.packed == other.packed and self.width == other.width

    def __hash__(self) -> int:
        return hash((self.packed, self.width))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Keys is immutable: {name}")

    def __reduce__(self) -> tuple[type[Self], tuple[bytes, int]]:
        return type(self), (self.packed, self.width)

    def __repr__(self) -> str:
        shown = ", ".join(key.hex() for key in self[:2]) + (", …" if len(self) > 2 else "")
        return f"Keys({len(self)} × {self.width} bytes: [{shown}])"


def chain(space: Namespace, tokens: Any, parent: bytes | None = None) -> Keys:
    """The keys of the full blocks of `tokens`, each BLAKE2b over (parent key, the block's tokens as uint32 LE).

    The first block's parent is `parent` (a key of this namespace: `tokens` then follow that block), or the
    namespace's fingerprint. Tokens past the last full block are left out. `tokens`: one-dimensional integers in
    [0, 2^32): a list, an array, or anything NumPy can view (a CPU tensor). About 1 µs a block of 16 tokens.
    """
    if parent is not None and (not isinstance(parent, bytes) or len(parent) != space.key_bytes):
        raise InvalidArgumentError("parent", f"must be a key of {space.key_bytes} bytes, got {_described(parent)}")
    packed = memoryview(_token_bytes(tokens))
    stride = space.layout.block_tokens * TOKEN_BYTES
    # Copying a prepared state is half the cost of making one per block.
    fresh = blake2b(digest_size=space.key_bytes, person=_PERSON).copy
    key = space.fingerprint if parent is None else parent
    keys = []
    for start in range(0, len(packed) - stride + 1, stride):
        state = fresh()
        state.update(key)
        state.update(packed[start : start + stride])
        key = state.digest()
        keys.append(key)
    return _checked(b"".join(keys), space.key_bytes)


def _checked(packed: bytes, width: int) -> Keys:
    """Keys of what is known to be right: a slice costs no second check."""
    keys = object.__new__(Keys)
    object.__setattr__(keys, "packed", packed)
    object.__setattr__(keys, "width", width)
    return keys


def _token_bytes(tokens: Any) -> bytes | memoryview:
    """The tokens as contiguous little-endian uint32."""
    if type(tokens) is list:  # five times faster than np.asarray, and it checks the range as it goes
        return _little_endian(np.frombuffer(_token_array(tokens), np.uintc))
    try:
        values = np.asarray(tokens)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError("tokens", f"must be one-dimensional integers on the host: {error}") from error
    if values.ndim != 1:
        raise InvalidArgumentError("tokens", f"must be one-dimensional, got {values.ndim} dimensions")
    if not values.size:
        return b""
    if values.dtype.kind not in "iu":
        raise InvalidArgumentError("tokens", f"must be integers within [0, {MAX_TOKEN}], got dtype {values.dtype}")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > MAX_TOKEN:
        raise InvalidArgumentError("tokens", f"must be within [0, {MAX_TOKEN}], got {low if low < 0 else high}")
    return _little_endian(values)


def _token_array(tokens: list[int]) -> "array[int]":
    try:
        return array("I", tokens)
    except (TypeError, OverflowError) as error:
        raise InvalidArgumentError("tokens", f"must be integers within [0, {MAX_TOKEN}]: {error}") from error


def _little_endian(values: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(values, "<u4").data.cast("B") if values.size else memoryview(b"")


def _checked_width(width: int) -> int:
    try:
        return checked_int("width", width, MIN_KEY_BYTES, MAX_KEY_BYTES)
    except InvalidArgumentError as error:
        raise InvalidArgumentError("keys", f"the width of a key {str(error).removeprefix('width: ')}") from None


def _checked_parts(keys: Iterable[bytes]) -> list[bytes]:
    if isinstance(keys, bytes | bytearray | memoryview | str) or not isinstance(keys, Iterable):
        raise InvalidArgumentError("keys", f"must be an iterable of bytes, got {type(keys).__name__}")
    parts = list(keys)
    if wrong := set(map(type, parts)) - {bytes}:
        raise InvalidArgumentError("keys", f"must all be bytes, got {sorted(t.__name__ for t in wrong)[0]}")
    return parts


def _described(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
