"""How a command fails: one line on stderr, and an exit code that scripts can tell apart."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from hybridkv.tiers.errors import HybridKVError, UnavailableError

EXIT_FOUND = 1
"""The command did its work, and what it found is bad: a law is broken, a demo failed."""

EXIT_FAILED = 2
"""The command could not do its work: bad config, bad argument, no daemon."""


def fail(message: str) -> NoReturn:
    """End the command with `message` on stderr and EXIT_FAILED."""
    print(f"hybridkv: {message}", file=sys.stderr)
    raise typer.Exit(EXIT_FAILED)


@contextmanager
def failing_plainly() -> Iterator[None]:
    """Errors of ours end the command with their one line, which names the key or field."""
    try:
        yield
    except HybridKVError as error:
        fail(str(error))


@contextmanager
def talking_to(address: str) -> Iterator[None]:
    """As `failing_plainly`; a daemon that does not answer is told with its address and what to do."""
    with failing_plainly():
        try:
            yield
        except UnavailableError as error:
            fail(f"no daemon answers on {address}: start one with `hybridkv serve`, or name its socket ({error})")
