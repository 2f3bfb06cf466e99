"""The table between errors and gRPC statuses is total, and what it sends comes back as it was."""

import grpc
import pytest

from hybridkv.service.status import CODES, Status, error_from, status_of, unexpected_status
from hybridkv.tiers import errors
from hybridkv.tiers.errors import (
    DiskFullError,
    ExpiredError,
    HybridKVError,
    InternalError,
    InvalidArgumentError,
    LawViolationError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)

TREE = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, HybridKVError)]
EXAMPLES: list[HybridKVError] = [
    InvalidArgumentError("keys", "17 bytes are no multiple of 16"),
    ResourceExhaustedError("cpu", "0 of 64 slots are free"),
    DiskFullError("no segment can be emptied", None),
    LawViolationError(["law 1: a", "law 2: b"]),
    *(
        cls("what happened")
        for cls in TREE
        if cls not in (InvalidArgumentError, ResourceExhaustedError, DiskFullError, LawViolationError)
    ),
]


class Failed:
    """A failed call as a client sees it."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status.code

    def details(self) -> str:
        return self._status.details

    def trailing_metadata(self) -> object:
        return self._status.trailing_metadata


def test_every_class_of_the_tree_has_a_code() -> None:
    assert set(CODES) == set(TREE)
    assert grpc.StatusCode.OK not in CODES.values()
    assert len(TREE) == len(EXAMPLES)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_it_was(error: HybridKVError) -> None:
    back = error_from(Failed(status_of(error)))
    assert type(back) is type(error)
    assert str(back) == str(error)
    for name in ("field", "resource", "violations"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_a_class_that_is_not_in_the_table_is_sent_as_its_ancestor() -> None:
    class NarrowError(ExpiredError):
        pass

    status = status_of(NarrowError("lease 7"))
    assert status.code is grpc.StatusCode.FAILED_PRECONDITION
    assert type(error_from(Failed(status))) is ExpiredError


def test_an_unexpected_exception_tells_its_class_and_no_more() -> None:
    status = unexpected_status(KeyError("secret"))
    assert status.code is grpc.StatusCode.INTERNAL
    assert "KeyError" in status.details
    assert "secret" not in status.details


def test_metadata_stays_sendable() -> None:
    status = status_of(InvalidArgumentError("schlüssel\n" * 100, "x" * 10_000))
    assert len(status.details) <= 2_000
    for _, value in status.trailing_metadata:
        assert value.isascii()
        assert value.isprintable()
        assert len(value) <= 200


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.CANCELLED, UnavailableError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhaustedError),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError),
        (grpc.StatusCode.NOT_FOUND, NotFoundError),
        (grpc.StatusCode.DATA_LOSS, InternalError),
    ],
)
def test_a_status_that_grpc_made_becomes_an_error_of_ours(code: grpc.StatusCode, expected: type[HybridKVError]) -> None:
    error = error_from(Failed(Status(code, "said grpc", ())))
    assert type(error) is expected
    assert "said grpc" in str(error)


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_code_becomes_an_error(code: grpc.StatusCode) -> None:
    assert isinstance(error_from(Failed(Status(code, "", ()))), HybridKVError)
