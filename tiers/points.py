"""Named points: the steps of a write and of a move at which a process may be stopped or held.

`point(name)` costs one global load and one comparison when nobody listens. A test installs a handler to hold a move
half-way, or to fail it; the environment variable `HYBRIDKV_CRASH_AT=<name>` kills the process at that point with
SIGKILL, which is how crash tests choose where a daemon dies. `HYBRIDKV_CRASH_AT=<name>:<n>` dies at the n-th passing.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POINTS: tuple[str, ...] = (
    "reserve.granted",
    "seal.before_publish",
    "seal.published",
    "move.decided",
    "move.before_copy",
    "move.copied",
    "move.committed",
    "move.source_freed",
    "evict.freed",
    "page.before_copy",
    "page.copied",
    "extent.before_carve",
    "extent.carved",
    "headers.fields_written",
    "headers.retired",
    "disk.put.before_commit",
    "disk.put.committed",
    "disk.delete.before_commit",
    "disk.delete.committed",
    "disk.read.before_pread",
    "disk.segment.created",
    "disk.segment.before_unlink",
    "disk.segment.unlinking",
    "disk.segment.unlinked",
    "disk.aside.before_move",
    "disk.close.before_marker",
    "takeover.claimed",
    "takeover.adopted",
    "takeover.frozen",
)
"""Every point there is. A name that is not here is refused, so that a test cannot wait for a point nobody passes."""

Handler = Callable[[str], None]

_handler: Handler | None = None


def point(name: str) -> None:
    """Pass the point `name`."""
    if _handler is not None:
        _handler(name)


def install(handler: Handler | None) -> None:
    """Make `handler` hear of every point passed in this process; None ends it."""
    global _handler
    _handler = handler


@contextmanager
def listening(handler: Handler) -> Iterator[None]:
    """`handler` hears of every point passed while the block runs."""
    before = _handler
    install(handler)
    try:
        yield
    finally:
        install(before)


def crash_handler(spec: str) -> Handler:
    """A handler that kills this process at the point `spec` names ("name" or "name:n")."""
    name, _, nth = spec.partition(":")
    if name not in POINTS:
        raise ValueError(f"HYBRIDKV_CRASH_AT: {name!r} is no point; known: {', '.join(POINTS)}")
    left = int(nth or 1)

    def die(passed: str) -> None:
        nonlocal left
        if passed == name:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return die


if _spec := os.environ.get("HYBRIDKV_CRASH_AT"):
    install(crash_handler(_spec))
