"""What travels on the side socket: one request, one reply, each a length (4 bytes, big-endian) and that much JSON.

    request  {"version": 1, "session": 7, "token": "<hex>"}
         or  {"version": 1, "identify": true}
    reply    {"version": 1, "regions": [{"name", "pool", "kind", "nbytes", "extra"}, ...]}     with one descriptor each
         or  {"version": 1, "token": "..."}
         or  {"version": 1, "error": "NotFoundError", "message": "..."}

To `identify`, the daemon answers with a token of the tenant that the asking process's user is: gRPC does not tell who is
at the other end of a Unix socket, this one does. The descriptors come with the reply's first bytes, in the order of
`regions`; those of kind "cuda" have none (see `handles.py`). A worker may ask again: memory of a CUDA pool comes as it is
needed. Nothing else is ever sent; whoever gets anything else closes. Both sides check every field: neither trusts the other
to be in its right mind.
"""

import json
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeVar

from hybridkv.tiers.errors import (
    FailedPreconditionError,
    ForeignHoldError,
    HybridKVError,
    NotFoundError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)

VERSION = 1
MAX_REQUEST_BYTES = 4096
MAX_REPLY_BYTES = 4 << 20
MAX_REGIONS = 128  # the kernel passes at most 253 descriptors at once
MAX_TOKEN_BYTES = 64
MAX_SESSION = (1 << 64) - 1
PREFIX = struct.Struct("!I")

T = TypeVar("T")


class RegionKind(StrEnum):
    """What a region holds, and what its receiver may do with it."""

    DATA_RW = "data_rw"
    DATA_RO = "data_ro"
    HEADERS = "headers"
    CUDA = "cuda"

    @property
    def has_descriptor(self) -> bool:
        return self is not RegionKind.CUDA


class MalformedError(UnavailableError):
    """The peer sent what this protocol does not know. Its connection is of no use any more."""


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for the regions of a session; the token is the one that Attach gave to its owner."""

    session: int
    token: bytes

    def packed(self) -> bytes:
        return _framed({"version": VERSION, "session": self.session, "token": self.token.hex()}, MAX_REQUEST_BYTES)

    @classmethod
    def parse(cls, body: bytes) -> Self | None:
        """None: it asks to `identify`. Raises MalformedError."""
        fields = _decoded(body)
        if fields.get("identify") is True:
            return None
        token = _field(fields, "token", str)
        if len(token) > 2 * MAX_TOKEN_BYTES:
            raise MalformedError(f"token: {len(token)} digits; the limit is {2 * MAX_TOKEN_BYTES}")
        try:
            return cls(_number(fields, "session", MAX_SESSION), bytes.fromhex(token))
        except ValueError as error:
            raise MalformedError("token: is not hexadecimal") from error


@dataclass(frozen=True, slots=True)
class RegionInfo:
    """One region of a reply. `pool` is an index into the pools of the attach reply; `extra` holds JSON values."""

    name: str
    pool: int
    kind: RegionKind
    nbytes: int
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "pool": self.pool, "kind": self.kind, "nbytes": self.nbytes, "extra": self.extra}

    @classmethod
    def of(cls, fields: object) -> Self:
        """Raises MalformedError."""
        if not isinstance(fields, dict):
            raise MalformedError("regions: an entry is no object")
        try:
            kind = RegionKind(_field(fields, "kind", str))
        except ValueError as error:
            raise MalformedError(f"kind: {error}") from error
        return cls(
            name=_field(fields, "name", str),
            pool=_number(fields, "pool", MAX_REGIONS),
            kind=kind,
            nbytes=_number(fields, "nbytes", (1 << 63) - 1),
            extra=_field(fields, "extra", dict),
        )


def packed_identify() -> bytes:
    """The request of a process that is known by its user."""
    return _framed({"version": VERSION, "identify": True}, MAX_REQUEST_BYTES)


def packed_token(token: str) -> bytes:
    """The reply to it."""
    return _framed({"version": VERSION, "token": token}, MAX_REPLY_BYTES)


def parse_token(body: bytes) -> str:
    """The token of a reply; raises the error it carries instead, or MalformedError."""
    fields = _decoded(body)
    _raise_error(fields)
    return _field(fields, "token", str)


def packed_regions(regions: list[RegionInfo]) -> bytes:
    """A reply. Raises ResourceExhaustedError when it is beyond the protocol's limits."""
    if len(regions) > MAX_REGIONS:
        raise ResourceExhaustedError("side socket regions", f"{len(regions)}; the limit is {MAX_REGIONS}")
    return _framed({"version": VERSION, "regions": [region.as_json() for region in regions]}, MAX_REPLY_BYTES)


def packed_error(error: HybridKVError) -> bytes:
    """A refusal."""
    body = {"version": VERSION, "error": type(error).__name__, "message": str(error)[:512]}
    return _framed(body, MAX_REPLY_BYTES)


def parse_reply(body: bytes) -> list[RegionInfo]:
    """The regions of a reply; raises the error it carries instead, or MalformedError."""
    fields = _decoded(body)
    _raise_error(fields)
    regions = _field(fields, "regions", list)
    if len(regions) > MAX_REGIONS:
        raise MalformedError(f"regions: {len(regions)}; the limit is {MAX_REGIONS}")
    return [RegionInfo.of(region) for region in regions]


def body_length(prefix: bytes, limit: int) -> int:
    """How long the JSON behind this prefix is. Raises MalformedError beyond `limit`, before anything is kept of it."""
    (length,) = PREFIX.unpack(prefix)
    if not 0 < length <= limit:
        raise MalformedError(f"message: {length} bytes; the limit is {limit}")
    return int(length)


_ERRORS: dict[str, type[HybridKVError]] = {
    kind.__name__: kind for kind in (NotFoundError, ForeignHoldError, FailedPreconditionError, UnauthenticatedError)
}


def _raise_error(fields: dict[str, Any]) -> None:
    if "error" in fields:
        kind, message = _field(fields, "error", str), _field(fields, "message", str)
        raise _ERRORS.get(kind, UnavailableError)(f"side socket: {message}")


def _framed(fields: dict[str, Any], limit: int) -> bytes:
    body = json.dumps(fields, separators=(",", ":")).encode()
    if len(body) > limit:
        raise ResourceExhaustedError("side socket message", f"{len(body)} bytes; the limit is {limit}")
    return PREFIX.pack(len(body)) + body


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:  # deep nesting within the limit is possible
        raise MalformedError("message: is not JSON") from error
    if not isinstance(fields, dict):
        raise MalformedError("message: is no object")
    if fields.get("version") != VERSION:
        raise MalformedError(f"version: {str(fields.get('version'))[:32]}; known is {VERSION}")
    return fields


def _field(fields: dict[str, Any], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if not isinstance(value, kind):
        raise MalformedError(f"{name}: is no {kind.__name__}")
    return value


def _number(fields: dict[str, Any], name: str, limit: int) -> int:
    value = _field(fields, name, int)
    if isinstance(value, bool) or not 0 <= value <= limit:
        raise MalformedError(f"{name}: is not between 0 and {limit}")
    return value
