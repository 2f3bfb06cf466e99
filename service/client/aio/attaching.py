"""The Attach stream of an asyncio session: open for its life, followed by a task."""

import asyncio
import contextlib
from typing import Any

import grpc
from grpc import aio

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.client.attaching import DETACH_S, check_server, unmapped_request
from hybridkv.service.client.proofs import Metadata
from hybridkv.service.client.raising import raised_by
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import DeadlineExceededError, HybridKVError

_WRITTEN_TOO_LATE = "Internal error from Core"
"""What grpc.aio makes of a stream that was refused before our first write: the refusal itself is lost. Whoever asks again
hears it."""

_EOF: Any = aio.EOF  # type: ignore[attr-defined]  # its stubs leave it out


class AsyncAttachStream:
    """One open stream. `lost` once it has ended, whoever ended it; `draining` once the daemon announced its stop."""

    def __init__(self, call: Any, reply: pb.AttachReply) -> None:
        self._call = call
        self.reply = reply
        self.draining = False
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._unmapped: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self._follower = self._loop.create_task(self._follow())
        self._teller = self._loop.create_task(self._tell())

    @classmethod
    async def open(
        cls, channel: aio.Channel, request: pb.AttachRequest, timeout_s: float, metadata: Metadata = ()
    ) -> "AsyncAttachStream":
        """Attach. Raises what the daemon refused with, LostError or DeadlineExceededError; then nothing stays open."""
        call = pb_grpc.SessionStub(channel).Attach(metadata=metadata)  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(timeout_s):
                reply = await _first_reply(call, request)
        except BaseException as error:
            call.cancel()
            if isinstance(error, TimeoutError):
                raise DeadlineExceededError(f"attach: no answer within {timeout_s:.3g} s") from None
            raise
        try:
            check_server(reply)
        except HybridKVError:
            call.cancel()
            raise
        return cls(call, reply)

    @property
    def lost(self) -> bool:
        return self._ended.is_set()

    def tell_unmapped(self, epoch: int, session: int) -> None:
        """That session of before is mapped here no more. Never blocks; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the stream
            self._loop.call_soon_threadsafe(self._unmapped.put_nowait, (epoch, session))

    async def _tell(self) -> None:
        """The task that tells: gRPC takes one message of a stream at a time."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                await self._call.write(unmapped_request([await self._unmapped.get()]))

    async def close(self, *, detach: bool) -> None:
        """End the stream; with `detach` wait shortly until the daemon has ended what the session held."""
        self._teller.cancel()
        await asyncio.wait({self._teller})
        if detach and not self.lost:
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
                async with asyncio.timeout(DETACH_S):
                    await self._call.write(pb.AttachRequest(detach=True))
                    await self._ended.wait()
        self._call.cancel()
        self._follower.cancel()
        await asyncio.wait({self._follower})

    async def _follow(self) -> None:
        try:
            while (reply := await self._call.read()) is not _EOF:
                self.draining = self.draining or reply.draining
        except grpc.RpcError:
            return  # the stream's end, and what `lost` says
        finally:
            self._ended.set()


async def _first_reply(call: Any, request: pb.AttachRequest) -> pb.AttachReply:
    """Raises why there is none."""
    try:
        await call.write(request)
        reply: pb.AttachReply = await call.read()
    except (grpc.RpcError, asyncio.InvalidStateError) as error:
        raise await _why(call) from error
    if reply is _EOF:
        raise await _why(call)
    return reply


async def _why(call: Any) -> Exception:
    """Why a stream ended before its first reply."""
    code = await call.code()
    details = await call.details()
    if code is grpc.StatusCode.OK:
        return LostError("the daemon ended the Attach stream")
    if code is grpc.StatusCode.INTERNAL and details == _WRITTEN_TOO_LATE:
        return LostError("the daemon refused the Attach stream before it was written to")
    metadata = await call.trailing_metadata()
    return raised_by(aio.AioRpcError(code, aio.Metadata(), metadata, details, None))
