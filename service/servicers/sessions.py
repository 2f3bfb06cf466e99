"""The sessions that have a stream open: what each was granted, and the payload calls that run for it.

Used by the event loop's thread only. Bounded: `limit` streams, whether they have attached yet or not.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.replies import Attached
from hybridkv.tiers.errors import NotFoundError, ResourceExhaustedError, UnavailableError

T = TypeVar("T")

ANNOUNCE_S = 1.0
"""How long the news of draining may take to leave; a stream whose peer does not read must not hold up the stop."""


@dataclass(eq=False, slots=True)
class OpenStream:
    """One Attach stream. `attached` is None until its first message was answered."""

    context: Any
    attached: Attached | None = None
    payload_calls: set[asyncio.Future[Any]] = field(default_factory=set)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def write(self, message: pb.AttachReply) -> None:
        """Send; gRPC takes one message of a stream at a time, and the news of a drain may meet the first reply."""
        async with self._writing:
            await self.context.write(message)


class Sessions:
    """Registry of open streams."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: set[OpenStream] = set()
        self._by_session: dict[int, OpenStream] = {}
        self.draining = False

    def __len__(self) -> int:
        """Streams that have attached."""
        return len(self._by_session)

    @contextmanager
    def stream(self, context: Any) -> Iterator[OpenStream]:
        """Counts a stream from its first moment on. Raises ResourceExhaustedError, and UnavailableError in a drain."""
        if self.draining:
            raise UnavailableError("the daemon is draining and attaches no more sessions")
        if len(self._streams) >= self._limit:
            raise ResourceExhaustedError("sessions", f"{len(self._streams)} are open, {self._limit} are allowed")
        opened = OpenStream(context)
        self._streams.add(opened)
        try:
            yield opened
        finally:
            self._streams.discard(opened)

    def add(self, opened: OpenStream, attached: Attached) -> None:
        opened.attached = attached
        self._by_session[attached.session] = opened

    def attached(self, session: int) -> Attached:
        """What the session was granted. Raises NotFoundError when it has no open stream."""
        found = self._by_session.get(session)
        if found is None or found.attached is None:
            raise NotFoundError(f"session {session} is not attached")
        return found.attached

    async def run_payload(self, session: int, call: Coroutine[Any, Any, T]) -> T:
        """Run a call that copies bytes in this process for `session`; it is stopped when the session ends.

        Raises UnavailableError in that case, NotFoundError when the session has no open stream.
        """
        opened = self._by_session.get(session)
        if opened is None:
            call.close()
            raise NotFoundError(f"session {session} is not attached")
        task = asyncio.ensure_future(call)
        opened.payload_calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if session in self._by_session:
                raise  # the caller's cancellation, passed on to the task by the await
            raise UnavailableError(f"session {session} ended during the call") from None
        finally:
            opened.payload_calls.discard(task)

    async def end(self, opened: OpenStream) -> None:
        """Take the session out and stop its payload calls; returns when none of them touches memory any more.

        Only then may the facade end the session: a process without mappings quarantines nothing, so its slots are
        free at once, and a copy of ours that still ran would write into another's block.
        """
        if opened.attached is not None:
            self._by_session.pop(opened.attached.session, None)
        calls = list(opened.payload_calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    async def announce_draining(self, epoch: int) -> None:
        """From now on attach nobody, and tell those who are."""
        self.draining = True
        news = pb.AttachReply(epoch=epoch, draining=True)
        sends = [asyncio.ensure_future(opened.write(news)) for opened in self._by_session.values()]
        if sends:
            await asyncio.wait(sends, timeout=ANNOUNCE_S)
        for send in sends:
            if not send.cancel() and not send.cancelled():
                send.exception()  # a stream that broke meanwhile: its own handler ends the session
