"""Checks of caller-made values: each raises InvalidArgumentError with the field and the limit."""

import operator
from collections.abc import Mapping
from typing import SupportsIndex

from hybridkv.tiers.errors import InvalidArgumentError


def checked_int(field: str, value: SupportsIndex, low: int, high: int) -> int:
    """`value` as a plain int within [low, high]; a bool, a float or a string is refused."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidArgumentError(field, f"must be an integer, got {type(value).__name__}")
    number = operator.index(value)
    if not low <= number <= high:
        raise InvalidArgumentError(field, f"must be within [{low}, {high}], got {number}")
    return number


def checked_text(field: str, value: str, max_bytes: int, *, allow_empty: bool = True) -> str:
    """`value` if it is a string of at most `max_bytes` bytes of UTF-8."""
    if not isinstance(value, str):
        raise InvalidArgumentError(field, f"must be a string, got {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(field, f"must be encodable as UTF-8: {error.reason}") from None
    if size > max_bytes:
        raise InvalidArgumentError(field, f"must be at most {max_bytes} bytes of UTF-8, got {size}")
    if not allow_empty and not value:
        raise InvalidArgumentError(field, f"must not be empty (at most {max_bytes} bytes of UTF-8)")
    return value


def checked_names(field: str, given: object, expected: frozenset[str]) -> dict[str, object]:
    """`given` as a dict that has exactly the `expected` names."""
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(field, f"must be a mapping, got {type(given).__name__}")
    missing, unknown = expected - given.keys(), given.keys() - expected
    if missing or unknown:
        raise InvalidArgumentError(field, f"missing {sorted(missing)}, unknown {sorted(map(str, unknown))}")
    return dict(given)
