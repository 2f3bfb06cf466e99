"""Messages of a client's stream, one at a time and with patience that ends."""

import asyncio
from typing import Any, Final

import grpc

from hybridkv.tiers.errors import DeadlineExceededError, InvalidArgumentError

MALFORMED: Final = object()
"""Stands for bytes that are no message of the method's type."""

_END: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]


def malformed_error() -> InvalidArgumentError:
    return InvalidArgumentError("message", "is not what this method takes")


async def next_message(context: Any, patience_s: float | None, awaited: str) -> Any | None:
    """The next message, None at the stream's end.

    Raises DeadlineExceededError, naming what was `awaited`, when none comes within `patience_s` (None: any time), and
    InvalidArgumentError on bytes that are no message.
    """
    try:
        async with asyncio.timeout(patience_s):
            message = await context.read()
    except TimeoutError:
        raise DeadlineExceededError(f"{awaited}: none came within {patience_s:g} s") from None
    if message is MALFORMED:
        raise malformed_error()
    return None if message is _END else message
