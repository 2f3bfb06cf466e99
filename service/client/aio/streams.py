"""Blocks over the wire for asyncio sessions that map no memory: the Read and Write streams."""

import time
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.client.core import Wish
from hybridkv.service.client.parts import READ_ATTEMPTS, Landing, stream_left_s, write_parts
from hybridkv.service.client.proofs import Metadata
from hybridkv.service.client.raising import raised_by
from hybridkv.service.client.transport import LostError, RowOf, States
from hybridkv.service.codec import keys_to_wire, states_from_wire, tier_to_wire
from hybridkv.service.replies import Attached
from hybridkv.tiers.errors import NotFoundError, UnavailableError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome


class AsyncPayload:
    """Reads and writes whole blocks. See `Payload`."""

    def __init__(self, stub: Any, attached: Attached, metadata: Metadata) -> None:
        self._metadata = metadata
        self._stub = stub
        self._attached = attached

    async def read(self, wish: Wish, keys: Keys, row_of: RowOf, *, wait_s: float, timeout_s: float) -> States:
        """See `Payload.read`; `keys` are some of the wish's."""
        packed, width = keys_to_wire(keys)
        message = pb.ReadRequest(
            session=self._attached.session,
            keys=packed,
            key_bytes=width,
            wait_s=wait_s,
            independent=wish.independent,
            request_id=wish.request,
        )
        deadline = time.monotonic() + timeout_s
        for attempt in range(1, READ_ATTEMPTS + 1):
            try:
                return await self._read(message, len(keys), row_of, deadline)
            except LostError:
                raise
            except UnavailableError:  # a block was reclaimed while the daemon copied it out
                if attempt == READ_ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _read(self, message: pb.ReadRequest, count: int, row_of: RowOf, deadline: float) -> States:
        block_bytes = self._attached.block_bytes
        landing: Landing | None = None
        states = np.full(count, Outcome.MISS, np.uint8)
        left_s = stream_left_s(deadline, count * block_bytes)
        try:
            async for part in self._stub.Read(message, timeout=left_s, metadata=self._metadata):
                if landing is None:
                    self._check_epoch(part.epoch)
                    states = states_from_wire(part.states, count)
                    landing = Landing(np.flatnonzero(states == Outcome.HIT), block_bytes, row_of)
                else:
                    landing.put(part.data)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            raise _translated(error) from error
        if landing is not None:
            landing.finish()
        return states

    async def write(
        self,
        wish: Wish,
        keys: Keys,
        blocks: Sequence[npt.NDArray[np.uint8]],
        *,
        parent: bytes | None,
        wait_s: float,
        timeout_s: float,
    ) -> States:
        """See `Payload.write`; `keys` are some of the wish's."""
        packed, width = keys_to_wire(keys)
        first = pb.WritePart(
            session=self._attached.session,
            keys=packed,
            key_bytes=width,
            parent=parent or b"",
            tier=tier_to_wire(wish.tier),
            wait_s=wait_s,
            request_id=wish.request,
        )
        limit_s = stream_left_s(time.monotonic() + timeout_s, len(keys) * self._attached.block_bytes)
        parts = write_parts(first, blocks, self._attached.limits.part_bytes)
        try:
            reply = await self._stub.Write(parts, timeout=limit_s, metadata=self._metadata)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            raise _translated(error) from error
        self._check_epoch(reply.epoch)
        return states_from_wire(reply.outcomes, len(keys), "outcomes")

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._attached.epoch:
            raise LostError(f"the daemon's epoch is {epoch}, the session's was {self._attached.epoch}")


def _translated(error: Exception) -> Exception:
    if isinstance(error, grpc.aio.UsageError):  # the channel was closed meanwhile
        return LostError(str(error))
    raised = raised_by(error)
    return LostError(str(raised)) if isinstance(raised, NotFoundError) else raised
