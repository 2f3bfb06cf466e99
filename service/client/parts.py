"""Payload in parts: blocks that come off a Read stream and go onto a Write stream, whichever client it is."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.client.transport import Indices, RowOf
from hybridkv.tiers.errors import DeadlineExceededError, InternalError

MIN_BYTES_PER_S = 20e6
"""A stream's deadline grows with its payload: this much is moved even by a slow and busy link."""

READ_ATTEMPTS = 4  # a copying read may find a block reclaimed under it


class Landing:
    """Puts the payloads of `hits`, which come end to end in parts of any size, into their rows."""

    def __init__(self, hits: Indices, block_bytes: int, row_of: RowOf) -> None:
        self._hits = hits
        self._block_bytes = block_bytes
        self._row_of = row_of
        self._total, self._received = len(hits) * block_bytes, 0
        self._row: npt.NDArray[np.uint8] | None = None

    def put(self, part: bytes) -> None:
        """The next part. Raises InternalError when more comes than belongs."""
        data = np.frombuffer(part, np.uint8)
        if self._received + len(data) > self._total:
            raise InternalError(f"Read: more than the {self._total} bytes of {len(self._hits)} blocks came")
        while len(data):
            index, within = divmod(self._received, self._block_bytes)
            if self._row is None or within == 0:
                self._row = self._row_of(int(self._hits[index]))
            piece = data[: self._block_bytes - within]
            self._row[within : within + len(piece)] = piece
            self._received += len(piece)
            data = data[len(piece) :]

    def finish(self) -> None:
        """Nothing more comes. Raises InternalError unless all has."""
        if self._received != self._total:
            raise InternalError(f"Read: {self._received} bytes came where {self._total} belong")


def write_parts(
    first: pb.WritePart, blocks: Sequence[npt.NDArray[np.uint8]], part_bytes: int
) -> Iterator[pb.WritePart]:
    """The messages of a Write stream."""
    yield first
    for block in blocks:
        for at in range(0, len(block), part_bytes):
            yield pb.WritePart(data=block[at : at + part_bytes].tobytes())


def stream_left_s(deadline: float, nbytes: int) -> float:
    """What a stream of so many bytes may take when the call has to end at `deadline` (monotonic), its payload aside.

    Raises DeadlineExceededError when nothing is left.
    """
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise DeadlineExceededError("no time was left for the call")
    return left_s + nbytes / MIN_BYTES_PER_S
