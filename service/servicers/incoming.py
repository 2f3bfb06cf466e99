"""Bytes of a Write stream on their way into slots."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from hybridkv.service.replies import ReserveReply
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.states import ReserveOutcome

PIECE_BYTES = 1 << 20
"""The most that is copied or hashed in one go on the event loop (about 0.2 ms)."""


class IncomingBlocks:
    """Places a stream of payloads, all keys' end to end, into the slots that were granted; drops the others'.

    `new` are the positions of the granted keys, `checksums` their xxh3_64 once `check_complete` has passed. Not
    thread-safe.
    """

    def __init__(
        self, granted: ReserveReply, block_bytes: int, memory_of: Callable[[int], npt.NDArray[np.uint8]]
    ) -> None:
        self.outcomes = granted.outcomes
        self.new: npt.NDArray[np.int64] = np.flatnonzero(granted.outcomes == ReserveOutcome.NEW).astype(np.int64)
        self._slots = granted.slots
        self._block_bytes = block_bytes
        self._memory_of = memory_of
        self._total = len(granted.outcomes) * block_bytes
        self._received = 0
        self._hash = xxhash.xxh3_64()
        self._sums = np.zeros(len(granted.outcomes), dtype=np.uint64)

    def put(self, data: memoryview) -> None:
        """Take the next bytes. Raises InvalidArgumentError when there are more than the keys have."""
        if self._received + len(data) > self._total:
            raise InvalidArgumentError("data", f"more than the {self._total} bytes of {len(self.outcomes)} blocks came")
        while data:
            index, within = divmod(self._received, self._block_bytes)
            piece = data[: self._block_bytes - within]
            if self.outcomes[index] == ReserveOutcome.NEW:
                self._place(index, within, piece)
            self._received += len(piece)
            data = data[len(piece) :]

    def check_complete(self) -> None:
        """Raises InvalidArgumentError unless every byte of every key has come."""
        if self._received != self._total:
            raise InvalidArgumentError("data", f"{self._received} bytes came where {self._total} belong")

    @property
    def checksums(self) -> npt.NDArray[np.uint64]:
        """Of the blocks in `new`, in that order."""
        return self._sums[self.new]

    def _place(self, index: int, within: int, piece: memoryview) -> None:
        slot: Any = self._slots[index]
        at = int(slot["offset"]) + within
        self._memory_of(int(slot["pool"]))[at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        self._hash.update(piece)
        if within + len(piece) == self._block_bytes:
            self._sums[index] = self._hash.intdigest()
            self._hash.reset()
