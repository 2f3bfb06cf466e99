"""Blocks over the wire: the Read and Write streams, for sessions that map no memory."""

import time
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.client.calls import Calls
from hybridkv.service.client.forking import gate
from hybridkv.service.client.parts import READ_ATTEMPTS, Landing, stream_left_s, write_parts
from hybridkv.service.client.raising import raised_by
from hybridkv.service.client.transport import LostError, RowOf, States
from hybridkv.service.codec import keys_to_wire, states_from_wire, tier_to_wire
from hybridkv.service.replies import Attached
from hybridkv.tiers.errors import InternalError, NotFoundError, UnavailableError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, Tier


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
        for attempt in range(1, READ_ATTEMPTS + 1):
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
                if attempt == READ_ATTEMPTS:
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
        deadline_s = self._left_s(time.monotonic() + timeout_s, len(blocks))
        try:
            with gate.passing():
                call = self._stub.Write.future(
                    write_parts(first, blocks, self._part_bytes), timeout=deadline_s, metadata=self._calls.metadata
                )
            reply: pb.WriteReply = call.result()
        except (grpc.RpcError, ValueError) as error:
            raise _translated(error) from error
        self._calls.check_epoch(reply.epoch)
        return states_from_wire(reply.outcomes, len(keys), "outcomes")

    def _read(self, message: pb.ReadRequest, count: int, row_of: RowOf, timeout_s: float) -> States:
        try:
            with gate.passing():
                call = self._stub.Read(message, timeout=timeout_s, metadata=self._calls.metadata)
            parts = iter(call)
            first = next(parts)
            self._calls.check_epoch(first.epoch)
            states = states_from_wire(first.states, count)
            landing = Landing(np.flatnonzero(states == Outcome.HIT), self._block_bytes, row_of)
            for part in parts:
                landing.put(part.data)
            landing.finish()
        except (grpc.RpcError, ValueError) as error:
            raise _translated(error) from error
        except StopIteration as error:
            raise InternalError("Read: the stream ended before its first part") from error
        return states

    def _left_s(self, deadline: float, count: int) -> float:
        return stream_left_s(deadline, count * self._block_bytes)


def _translated(error: Exception) -> Exception:
    if isinstance(error, ValueError):  # gRPC's word for a channel that another thread closed
        return LostError(str(error))
    raised = raised_by(error)
    return LostError(str(raised)) if isinstance(raised, NotFoundError) else raised
