"""The calls about sequences of one attached session, over gRPC or to a host in this process.

Each ends within `timeout_s`; those with `wait_s` may wait so long for copies and room, and raise DeadlineExceededError when
it was not enough: then nothing of the address spaces has changed. LostError: the session is gone, and its sequences with it;
NotFoundError: the sequence is closed.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hybridkv.paging.replies import (
    AdvanceReply,
    FaultReply,
    OpenReply,
    ResizeReply,
    ResumeReply,
    StickyReply,
    SuspendReply,
    TranslateReply,
    Want,
)
from hybridkv.paging.windows import Window
from hybridkv.service.client.memory import Events
from hybridkv.service.client.transport import Indices, States
from hybridkv.service.sequence_codec import Opening
from hybridkv.tiers.keys import Keys

Checksums = npt.NDArray[np.uint64]


class SequenceCalls(Protocol):
    """See the module. Thread-safe."""

    def open(self, openings: Sequence[Opening], *, timeout_s: float) -> list[OpenReply]:
        """All of them, or none."""

    def attach(self, sequence: int, first_block: int, keys: Keys, *, timeout_s: float) -> int:
        """Map sealed blocks of `keys` from `first_block` on over unmapped ones: how many, the longest prefix."""

    def extend(self, more: Sequence[tuple[int, int]], *, timeout_s: float) -> list[int]:
        """(sequence, more tokens) each; the new lengths."""

    def fault(self, wants: Sequence[Want], *, hold: bool, wait_s: float, timeout_s: float) -> FaultReply: ...

    def translate(self, sequence: int, blocks: Indices, *, timeout_s: float) -> TranslateReply: ...

    def publish(
        self,
        sequence: int,
        first_block: int,
        keys: Keys,
        *,
        parent: bytes,
        checksums: Checksums | None,
        events: Events,
        wait_s: float,
        timeout_s: float,
    ) -> States:
        """PublishOutcome per key."""

    def fork(
        self, sequence: int, count: int, *, events: Events, wait_s: float, timeout_s: float
    ) -> tuple[int, ...]: ...

    def suspend(self, sequences: Sequence[int], *, events: Events, wait_s: float, timeout_s: float) -> SuspendReply: ...

    def resume(self, sequences: Sequence[int], *, wait_s: float, timeout_s: float) -> ResumeReply: ...

    def close(self, sequences: Sequence[int], *, events: Events, timeout_s: float) -> None: ...

    def advance(self, sequence: int, position: int, window: Window | None, *, timeout_s: float) -> AdvanceReply: ...

    def adjust_page_size(
        self, page_blocks: int, sequence: int | None, *, wait_s: float, timeout_s: float
    ) -> ResizeReply: ...

    def set_sticky(
        self, sequence: int, first_block: int, count: int, sticky: bool, *, timeout_s: float
    ) -> StickyReply: ...

    def note_translations(self, hits: int, misses: int, invalidations: int, *, timeout_s: float) -> None: ...

    def describe(self, sequence: int, *, timeout_s: float) -> dict[str, Any]: ...
