"""Named points: the steps of a write and of a move at which a process may be stopped or held.

`point(name)` costs one global load and one comparison when nobody listens. A test installs a handler to hold a move
half-way, or to fail it; the environment variable `HYBRIDKV_CRASH_AT=<name>` kills the process at that point with
SIGKILL, which is how crash tests choose where a daemon or a worker dies. `HYBRIDKV_CRASH_AT=<name>:<n>` dies at the n-th
passing. A step of a move has two names: "move.copied" for all of them, "move.copied.gpu_to_cpu" for those from GPU to CPU.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hybridkv.tiers.states import Tier

ENV_CRASH_AT = "HYBRIDKV_CRASH_AT"

_DOWN, _UP = ("gpu_to_cpu", "cpu_to_disk"), ("disk_to_cpu", "cpu_to_gpu")
_WITHIN = ("cpu_to_cpu", "gpu_to_gpu")
MOVES: Mapping[str, tuple[str, ...]] = {
    "move.decided": (*_DOWN, *_UP, "disk_to_gpu", *_WITHIN),
    "move.before_copy": (*_DOWN, *_UP, *_WITHIN),
    "move.copied": (*_DOWN, *_UP, *_WITHIN),
    "move.committed": (*_DOWN, *_UP, "disk_to_gpu"),
    "move.relocated": _WITHIN,
    "move.source_kept": (*_DOWN, *_UP, "disk_to_gpu"),
    "move.source_freed": _DOWN,
}
"""Steps of a move, and the ways there are of each. From disk to GPU is one move of two copies. A demotion whose source is
kept is a copy down."""

DAEMON_POINTS: tuple[str, ...] = (
    "reserve.granted",
    "reserve.aborted",
    "reserve.lapsed",
    "seal.before_publish",
    "headers.fields_written",
    "headers.published",
    "seal.published",
    "lease.granted",
    "lease.released",
    "lease.lapsed",
    "request.ended",
    *(f"{step}.{way}" for step, ways in MOVES.items() for way in ways),
    "headers.retired",
    "evict.freed",
    "remove.unfindable",
    "extent.before_carve",
    "extent.carved",
    "extent.emptied",
    "extent.returned",
    "page.before_copy",
    "page.copied",
    "page.copied_on_device",
    "page.mapped",
    "sequence.forked",
    "sequence.published",
    "sequence.suspending",
    "sequence.suspended",
    "sequence.resumed",
    "disk.start.marker_taken",
    "disk.start.verified",
    "disk.start.listed",
    "start.restored",
    "disk.segment.named",
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
    "disk.close.marker_written",
)
"""Those that a daemon passes."""

WORKER_POINTS: tuple[str, ...] = (
    "worker.reserved",
    "worker.before_write",
    "worker.written",
    "worker.before_seal",
    "worker.sealed",
    "worker.before_abort",
    "worker.acquired",
    "worker.before_release",
    "worker.put_staged",
    "worker.put_written",
)
"""Those that a worker passes in the client. What it does to a slot through a view is its own."""

POINTS: tuple[str, ...] = (*DAEMON_POINTS, *MOVES, *WORKER_POINTS)
"""Every point there is. A name that is not here is refused, so that a test cannot wait for a point nobody passes."""

Handler = Callable[[str], None]

_handler: Handler | None = None


def point(name: str, source: Tier | None = None, target: Tier | None = None) -> None:
    """Pass the point `name`; a step of a move says from where to where."""
    handler = _handler  # once: another thread may end the listening
    if handler is not None:
        handler(name)
        if source is not None and target is not None:
            handler(f"{name}.{source.name.lower()}_to_{target.name.lower()}")


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
        raise ValueError(f"{ENV_CRASH_AT}: {name!r} is no point; known: {', '.join(POINTS)}")
    left = int(nth or 1)

    def die(passed: str) -> None:
        nonlocal left
        if passed == name:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return die


def crash_as_told(environment: Mapping[str, str]) -> None:
    """Die where the environment says, if it does."""
    if spec := environment.get(ENV_CRASH_AT):
        install(crash_handler(spec))


crash_as_told(os.environ)
