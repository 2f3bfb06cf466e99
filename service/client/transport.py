"""What carries the client's calls: one attached session, over gRPC or to a host in this process.

A transport lives as long as its session. When the session is lost the `Link` dials a new one; nothing is carried over.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.memory import Events, Memory
from hybridkv.service.replies import AcquireReply, Attached, LookupReply, ReserveReply
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Tier

if TYPE_CHECKING:
    from hybridkv.service.client.sequence_calls import SequenceCalls

States = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
RowOf = Callable[[int], npt.NDArray[np.uint8]]


class LostError(UnavailableError):
    """The session is gone: the daemon ended, another one answers, or the connection broke. Attach again."""


class Payload(Protocol):
    """Blocks over the wire, for a session that maps no memory."""

    def read(
        self, keys: Keys, row_of: RowOf, *, wait_s: float, independent: bool, request: int | None, timeout_s: float
    ) -> States:
        """Outcomes per key; the block of each HIT is written to `row_of(i)` (uint8 [block_bytes]) before the next
        one is asked for. When it raises, rows asked for hold anything."""

    def write(
        self,
        keys: Keys,
        blocks: Sequence[npt.NDArray[np.uint8]],
        *,
        parent: bytes | None,
        tier: Tier | None,
        wait_s: float,
        request: int | None,
        timeout_s: float,
    ) -> States:
        """Store `blocks`, one per key; a ReserveOutcome each, NEW = stored by this call."""


class Transport(Protocol):
    """The verbs of one session. Thread-safe; every call ends within `timeout_s` (DeadlineExceededError).

    `memory` is None where the session maps nothing: blocks then go through `payload`. Errors are those of
    `tiers/errors.py`; LostError whenever the session is gone, also for a hold's call.
    """

    @property
    def attached(self) -> Attached: ...

    @property
    def memory(self) -> Memory | None: ...

    @property
    def payload(self) -> Payload | None: ...

    @property
    def sequences(self) -> "SequenceCalls":
        """The calls about sequences."""

    @property
    def unmapped_reason(self) -> str:
        """Why `memory` is None; empty when it is not."""

    @property
    def lost(self) -> bool:
        """Whether the session is known to be gone."""

    @property
    def draining(self) -> bool:
        """Whether the daemon said that it is about to stop."""

    def tell_unmapped(self, epoch: int, session: int) -> None:
        """That session, of before this one, is mapped in this process no more. Never blocks; from any thread."""

    def lookup(self, keys: Keys, *, timeout_s: float) -> LookupReply: ...

    def acquire(
        self,
        keys: Keys,
        *,
        tier: Tier | None,
        device: int | None,
        wait_s: float,
        views: bool,
        independent: bool,
        request: int | None,
        lease: int | None,
        recompute_s: float | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float,
    ) -> AcquireReply: ...

    def renew(self, holds: list[int], requests: list[int], *, timeout_s: float) -> list[bool]:
        """Whether each hold, then each request, is alive; those live on for their full time."""

    def release(self, lease: int, *, events: Events = ..., timeout_s: float) -> None:
        """`events` as in `seal`: until they are done the slots may still be read."""

    def reserve(
        self,
        keys: Keys,
        *,
        parent: bytes | None,
        tier: Tier | None,
        device: int | None,
        wait_s: float,
        request: int | None,
        hints: Hints = NO_HINTS,
        timeout_s: float,
    ) -> ReserveReply: ...

    def seal(
        self,
        reservation: int,
        indices: Indices,
        checksums: npt.NDArray[np.uint64] | None,
        *,
        events: Events = ...,
        timeout_s: float,
    ) -> States:
        """`events`: of device pools, behind the writes to the blocks."""

    def abort(self, reservation: int, indices: Indices | None, *, events: Events = ..., timeout_s: float) -> None: ...

    def prefetch(
        self, keys: Keys, *, tier: Tier | None, device: int | None, deadline_s: float | None = None, timeout_s: float
    ) -> int: ...

    def touch(self, keys: Keys, counts: Indices | None = None, *, timeout_s: float) -> int:
        """`counts`: reads of each key that made no call; the most recent key first."""

    def remove(self, keys: Keys, *, timeout_s: float) -> int: ...

    def end_request(self, request: int, *, hints: Hints = NO_HINTS, timeout_s: float) -> None: ...

    def stats(self, *, timeout_s: float) -> dict[str, Any]: ...

    def close(self, *, detach: bool) -> None:
        """Give the session up; with `detach` the daemon ends its holds at once. Never raises; may be repeated."""


Dial = Callable[[float], Transport]
"""Attaches a new session within so many seconds. Raises UnavailableError and whatever attach is refused with."""
