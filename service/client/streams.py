"""Blocks over the wire: the Read and Write streams, for sessions that map no memory."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.client.calls import Calls
from hybridkv.service.client.forking import gate
from hybridkv.service.client.raising import raised_by
from hybridkv.service.client.transport import LostError, RowOf, States
from hybridkv.service.codec import keys_to_wire, states_from_wire, tier_to_wire
from hybridkv.service.replies import Attached
from hybridkv.tiers.errors import DeadlineExceededError, InternalError, NotFoundError, UnavailableError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, Tier

MIN_BYTES_PER_S = 20e6
"""A stream's deadline grows with its payload: this much is moved even by a slow and busy link."""

_READ_ATTEMPTS = 4  # a copying read may find a block reclaimed under it


class PayloadStreams:
    """Reads and writes whole blocks. Thread-safe. See `Payload`."""

    def __init__(self, stub: Any, calls: Calls, attached: Attached) -> None:
        self._stub = stub
        self._calls = calls
        self._session = attached.session
        self._block_bytes = attached.block_bytes
        self._part_bytes = attached.limits.part_bytes

    def read(
        self, keys: Keys, row_of: RowOf, *, wait_s: float, independent: bool, request: int | None, timeout_s: float
    ) -> States:
        packed, width = keys_to_wire(keys)
        deadline = time.monotonic() + timeout_s
        for attempt in range(1, _READ_ATTEMPTS + 1):
            message = pb.ReadRequest(
                session=self._session,
                keys=packed,
                key_bytes=width,
                wait_s=wait_s,
                independent=independent,
                request_id=request,
            )
            try:
                return self._read(message, len(keys), row_of, self._left_s(deadline, len(keys)))
            except LostError:
                raise
            except UnavailableError:  # a block was reclaimed while the daemon copied it out
                if attempt == _READ_ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

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
        packed, width = keys_to_wire(keys)
        first = pb.WritePart(
            session=self._session,
            keys=packed,
            key_bytes=width,
            parent=parent or b"",
            tier=tier_to_wire(tier),
            wait_s=wait_s,
            request_id=request,
        )
        deadline_s = timeout_s + len(blocks) * self._block_bytes / MIN_BYTES_PER_S
        try:
            with gate.passing():
                call = self._stub.Write.future(self._parts(first, blocks), timeout=deadline_s)
            reply: pb.WriteReply = call.result()
        except (grpc.RpcError, ValueError) as error:
            raise _translated(error) from error
        self._calls.check_epoch(reply.epoch)
        return states_from_wire(reply.outcomes, len(keys), "outcomes")

    def _read(self, message: pb.ReadRequest, count: int, row_of: RowOf, timeout_s: float) -> States:
        try:
            with gate.passing():
                call = self._stub.Read(message, timeout=timeout_s)
            parts = iter(call)
            first = next(parts)
            self._calls.check_epoch(first.epoch)
            states = states_from_wire(first.states, count)
            self._place(parts, np.flatnonzero(states == Outcome.HIT), row_of)
        except (grpc.RpcError, ValueError) as error:
            raise _translated(error) from error
        except StopIteration as error:
            raise InternalError("Read: the stream ended before its first part") from error
        return states

    def _place(self, parts: Iterator[pb.ReadPart], hits: npt.NDArray[np.int64], row_of: RowOf) -> None:
        """The payloads of `hits`, end to end, into their rows. Raises InternalError unless exactly those bytes come."""
        total, received = len(hits) * self._block_bytes, 0
        row: npt.NDArray[np.uint8] | None = None
        for part in parts:
            data = np.frombuffer(part.data, np.uint8)
            if received + len(data) > total:
                raise InternalError(f"Read: more than the {total} bytes of {len(hits)} blocks came")
            while len(data):
                index, within = divmod(received, self._block_bytes)
                if row is None or within == 0:
                    row = row_of(int(hits[index]))
                piece = data[: self._block_bytes - within]
                row[within : within + len(piece)] = piece
                received += len(piece)
                data = data[len(piece) :]
        if received != total:
            raise InternalError(f"Read: {received} bytes came where {total} belong")

    def _parts(self, first: pb.WritePart, blocks: Sequence[npt.NDArray[np.uint8]]) -> Iterator[pb.WritePart]:
        yield first
        for block in blocks:
            for at in range(0, len(block), self._part_bytes):
                yield pb.WritePart(data=block[at : at + self._part_bytes].tobytes())

    def _left_s(self, deadline: float, count: int) -> float:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceededError("no time was left for the call")
        return left_s + count * self._block_bytes / MIN_BYTES_PER_S


def _translated(error: Exception) -> Exception:
    if isinstance(error, ValueError):  # gRPC's word for a channel that another thread closed
        return LostError(str(error))
    raised = raised_by(error)
    return LostError(str(raised)) if isinstance(raised, NotFoundError) else raised
