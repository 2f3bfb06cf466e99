"""The one table between the exception tree of `tiers/errors.py` and gRPC codes, in both directions.

A status carries the error's class and the field or resource it names as trailing metadata, so that the client raises
the class that the daemon raised. A class that is not in the table is sent as its nearest ancestor that is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc

from hybridkv.tiers.errors import (
    DeadlineExceededError,
    DiskFullError,
    ExpiredError,
    FailedPreconditionError,
    ForeignHoldError,
    HybridKVError,
    InternalError,
    InvalidArgumentError,
    LawViolationError,
    NamespaceMismatchError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)

CODES: Mapping[type[HybridKVError], grpc.StatusCode] = {
    HybridKVError: grpc.StatusCode.UNKNOWN,
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    ForeignHoldError: grpc.StatusCode.PERMISSION_DENIED,
    PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    FailedPreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    NamespaceMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    ExpiredError: grpc.StatusCode.FAILED_PRECONDITION,
    ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DiskFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    InternalError: grpc.StatusCode.INTERNAL,
    LawViolationError: grpc.StatusCode.INTERNAL,
}
"""Every class of the tree; a test holds it to `tiers/errors.py`."""

CLASS_METADATA = "hybridkv-error"
FIELD_METADATA = "hybridkv-field"

_NAMED = {cls.__name__: cls for cls in CODES}

_WITHOUT_CLASS: Mapping[grpc.StatusCode, type[HybridKVError]] = {
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.PERMISSION_DENIED: ForeignHoldError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.UNIMPLEMENTED: FailedPreconditionError,  # a daemon older than the client
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,  # the channel was closed, or the daemon stopped
}
"""What a status means that gRPC itself made, and no daemon of ours."""

_DETAILS_LIMIT_CHARS = 2_000  # a peer refuses metadata above 8 KiB, and with it the whole status


class RpcStatus(Protocol):
    """What `grpc.RpcError` (of a call) and `grpc.aio.AioRpcError` have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Status:
    """A gRPC status: what to abort a call with."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str], ...]


def class_of(error: HybridKVError) -> type[HybridKVError]:
    """The class that the table knows: the error's own or its nearest ancestor."""
    return next(cls for cls in type(error).__mro__ if cls in CODES)


def status_of(error: HybridKVError) -> Status:
    """The status to send for an error of ours."""
    cls = class_of(error)
    metadata = [(CLASS_METADATA, cls.__name__)]
    named = getattr(error, "field", None) or getattr(error, "resource", None)
    if named:
        metadata.append((FIELD_METADATA, _ascii(named)))
    return Status(CODES[cls], str(error)[:_DETAILS_LIMIT_CHARS], tuple(metadata))


def unexpected_status(error: BaseException) -> Status:
    """The status for an exception that is none of ours: INTERNAL, and no inner detail but its class."""
    return status_of(InternalError(f"{type(error).__name__} in the daemon; its log has the traceback"))


def error_from(rpc_error: RpcStatus) -> HybridKVError:
    """The error that a failed call stands for: the class that the daemon raised where the status names it."""
    metadata = _metadata(rpc_error)
    details = rpc_error.details() or rpc_error.code().name
    cls = _NAMED.get(metadata.get(CLASS_METADATA, ""))
    if cls is None:
        return _foreign_error(rpc_error.code(), details)
    field = metadata.get(FIELD_METADATA, "")
    if cls is InvalidArgumentError:
        return InvalidArgumentError(field, _without(field, details))
    if cls is DiskFullError:
        return DiskFullError(_without(field, details), None)
    if cls is ResourceExhaustedError:
        return ResourceExhaustedError(field, _without(field, details))
    if cls is LawViolationError:
        return LawViolationError(details.split("; "))
    return cls(details)


def _foreign_error(code: grpc.StatusCode, details: str) -> HybridKVError:
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # gRPC's own: a message above the limit, too many calls
        return ResourceExhaustedError("call", details)
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return InvalidArgumentError("call", details)
    return _WITHOUT_CLASS.get(code, InternalError)(details)


def _metadata(rpc_error: RpcStatus) -> dict[str, str]:
    pairs = rpc_error.trailing_metadata() or ()
    return {key: value for key, value in pairs if isinstance(value, str)}  # type: ignore[attr-defined]


def _without(field: str, details: str) -> str:
    return details.removeprefix(f"{field}: ")


def _ascii(text: str) -> str:
    """Metadata values are printable ASCII; whatever else a name holds becomes a question mark."""
    return "".join(c if " " <= c <= "~" else "?" for c in text[:200])
