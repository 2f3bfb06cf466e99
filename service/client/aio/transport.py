"""The transport of the asyncio client: one attached session over grpc.aio. Its messages are those of the sync one."""

import asyncio
import contextlib
import time
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.client import messages
from hybridkv.service.client.aio.attaching import AsyncAttachStream
from hybridkv.service.client.aio.streams import AsyncPayload
from hybridkv.service.client.attaching import attach_request, attached_by
from hybridkv.service.client.calls import MIN_TIMEOUT_S
from hybridkv.service.client.core import Wish
from hybridkv.service.client.mapping import map_memory
from hybridkv.service.client.memory import Events, Memory
from hybridkv.service.client.proofs import Metadata, Proofs
from hybridkv.service.client.raising import raised_by
from hybridkv.service.client.rpc import CHANNEL_OPTIONS, LET_GO_S
from hybridkv.service.client.transport import Indices, LostError, States
from hybridkv.service.replies import AcquireReply, LookupReply, ReserveReply
from hybridkv.tiers.errors import DeadlineExceededError, NotFoundError, UnauthenticatedError
from hybridkv.tiers.hints import Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Tier


class AsyncTransport:
    """The verbs of one session, as `Transport`. Belongs to one event loop; made by `dial`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        stream: AsyncAttachStream,
        metadata: Metadata,
        memory: Memory | None,
        why_not: str,
    ) -> None:
        self._metadata = metadata
        self._channel = channel
        self._stream = stream
        self._other_epoch = False
        self._closed = False
        self.attached = attached_by(stream.reply)
        self.memory = memory
        self.unmapped_reason = why_not
        self._stub = pb_grpc.KVCacheStub(channel)  # type: ignore[no-untyped-call]
        self._admin = pb_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        self.payload = AsyncPayload(self._stub, self.attached, metadata)
        self._session = self.attached.session

    @property
    def lost(self) -> bool:
        return self._other_epoch or self._stream.lost

    @property
    def draining(self) -> bool:
        return self._stream.draining

    async def lookup(self, keys: Keys, *, timeout_s: float) -> LookupReply:
        reply = await self._of_session(self._stub.Lookup, messages.lookup(self._session, keys), timeout_s)
        return messages.looked_up(reply, len(keys))

    async def acquire(
        self,
        wish: Wish,
        tier: Tier | None,
        device: int | None,
        *,
        wait_s: float,
        lease: int | None = None,
        timeout_s: float,
    ) -> AcquireReply:
        """`tier` and `device` as `Memory.place_for` has them."""
        message = messages.acquire(
            self._session,
            wish.keys,
            tier=tier,
            device=device,
            wait_s=wait_s,
            views=wish.views,
            independent=wish.independent,
            request=wish.request,
            lease=lease,
            recompute_s=wish.recompute_s,
            hints=wish.hints,
        )
        call = self._call if lease else self._of_session
        return messages.acquired(await call(self._stub.Acquire, message, timeout_s), len(wish.keys))

    async def renew(self, holds: list[int], requests: list[int], *, timeout_s: float) -> list[bool]:
        request = messages.renew(self._session, holds, requests)
        reply = await self._of_session(self._stub.Renew, request, timeout_s)
        return list(reply.alive)

    async def release(self, lease: int, *, events: Events = (), timeout_s: float) -> None:
        await self._call(self._stub.Release, messages.release(self._session, lease, events), timeout_s)

    async def reserve(
        self,
        wish: Wish,
        tier: Tier | None,
        device: int | None,
        *,
        parent: bytes | None,
        wait_s: float,
        timeout_s: float,
    ) -> ReserveReply:
        """`tier` and `device` as `Memory.place_for` has them."""
        message = messages.reserve(
            self._session,
            wish.keys,
            parent=parent,
            tier=tier,
            device=device,
            wait_s=wait_s,
            request=wish.request,
            hints=wish.hints,
        )
        return messages.reserved(await self._of_session(self._stub.Reserve, message, timeout_s), len(wish.keys))

    async def seal(
        self,
        reservation: int,
        indices: Indices,
        checksums: npt.NDArray[np.uint64] | None,
        *,
        events: Events = (),
        timeout_s: float,
    ) -> States:
        request = messages.seal(self._session, reservation, indices, checksums, events)
        return messages.sealed(await self._call(self._stub.Seal, request, timeout_s), len(indices))

    async def abort(self, reservation: int, indices: Indices | None, *, events: Events = (), timeout_s: float) -> None:
        await self._call(self._stub.Abort, messages.abort(self._session, reservation, indices, events), timeout_s)

    async def prefetch(
        self, keys: Keys, *, tier: Tier | None, device: int | None, deadline_s: float | None, timeout_s: float
    ) -> int:
        request = messages.prefetch(self._session, keys, tier=tier, device=device, deadline_s=deadline_s)
        reply: pb.PrefetchReply = await self._of_session(self._stub.Prefetch, request, timeout_s)
        return reply.started

    async def touch(self, keys: Keys, counts: Indices | None = None, *, timeout_s: float) -> int:
        request = messages.touch(self._session, keys, counts)
        reply: pb.TouchReply = await self._of_session(self._stub.Touch, request, timeout_s)
        return reply.touched

    async def remove(self, keys: Keys, *, timeout_s: float) -> int:
        request = messages.remove(self._session, keys)
        reply: pb.RemoveReply = await self._of_session(self._stub.Remove, request, timeout_s)
        return reply.removed

    async def end_request(self, request: int, *, hints: Hints, timeout_s: float) -> None:
        await self._call(self._stub.EndRequest, messages.end_request(self._session, request, hints), timeout_s)

    async def stats(self, *, timeout_s: float) -> dict[str, Any]:
        return messages.figures(await self._call(self._admin.Stats, pb.StatsRequest(), timeout_s))

    def tell_unmapped(self, epoch: int, session: int) -> None:
        """See `Transport`."""
        self._stream.tell_unmapped(epoch, session)

    async def close(self, *, detach: bool) -> None:
        """See `RpcTransport.close`."""
        self._closed = True
        memory = self.memory
        detach = detach and (memory is None or await asyncio.to_thread(memory.let_go, LET_GO_S))
        await self._stream.close(detach=detach)
        await self._channel.close(None)
        if memory is not None:
            memory.close()

    async def _of_session(self, method: Any, request: Any, timeout_s: float) -> Any:
        """A call in which the only thing that may be unknown to the daemon is the session."""
        try:
            return await self._call(method, request, timeout_s)
        except NotFoundError as error:
            raise LostError(str(error)) from error

    async def _call(self, method: Any, request: Any, timeout_s: float) -> Any:
        """Raises LostError, DeadlineExceededError and what the daemon raises."""
        if self.lost:
            raise LostError("the session has ended")
        if timeout_s < MIN_TIMEOUT_S:
            raise DeadlineExceededError("no time was left for the call")
        try:
            reply = await method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise raised_by(error) from error
        except grpc.aio.UsageError as error:  # the channel was closed meanwhile
            raise LostError(str(error)) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():  # the call was, not who made it
                raise LostError("the session was closed") from None
            raise
        if reply.epoch != self.attached.epoch:
            self._other_epoch = True
            raise LostError(f"the daemon's epoch is {reply.epoch}, the session's was {self.attached.epoch}")
        return reply


async def dial(address: str, space: Namespace, proofs: Proofs, timeout_s: float) -> AsyncTransport:
    """Attach a new session. Raises LostError when nobody answers, and what attach is refused with."""
    deadline = time.monotonic() + timeout_s
    try:
        return await _attached(address, space, proofs, proofs.metadata(), deadline)
    except UnauthenticatedError as refusal:
        metadata = await asyncio.to_thread(proofs.of_user, address, refusal, _left_s(deadline))
    return await _attached(address, space, proofs, metadata, deadline)


async def _attached(
    address: str, space: Namespace, proofs: Proofs, metadata: Metadata, deadline: float
) -> AsyncTransport:
    if proofs.credentials is None:
        channel = grpc.aio.insecure_channel(address, CHANNEL_OPTIONS)
    else:
        channel = grpc.aio.secure_channel(address, proofs.credentials, CHANNEL_OPTIONS)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(channel.close, None)
        stream = await AsyncAttachStream.open(channel, attach_request(space), _left_s(deadline), metadata)
        stack.push_async_callback(stream.close, detach=False)
        attached = attached_by(stream.reply)
        mapped = await asyncio.to_thread(map_memory, address, stream.reply.side_socket, attached, deadline)
        stack.pop_all()
    return AsyncTransport(channel, stream, metadata, *mapped)


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
