"""Calls that a cancellation must not tear apart, and work that must not hold up the event loop."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from hybridkv.tiers.errors import HybridKVError

T = TypeVar("T")

INLINE_BYTES = 1 << 20
"""Up to here a copy is made on the event loop's own thread: a hop to another costs as much."""


class Closing(Protocol):
    """A hold that is an async context manager."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=Closing)


class Awaited(Generic[C]):
    """A hold that is being taken: `await` it, or enter it with `async with`."""

    def __init__(self, take: Callable[[], Coroutine[Any, Any, C]]) -> None:
        self._take = take
        self._taken: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._take().__await__()

    async def __aenter__(self) -> C:
        self._taken = await self._take()
        return self._taken

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._taken is not None:
            await self._taken.__aexit__(kind, error, at)


class Background:
    """Tasks that go on when whoever began them is cancelled. One event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def whole(self, call: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[object]] | None = None) -> T:
        """The call's result. When the caller is cancelled the call goes on, and what it obtained is given back."""
        task = self.spawn(call)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if undo is not None and not task.cancelled():
                self.spawn(_undone(task, undo))
            raise

    async def settle(self) -> None:
        """Wait until all have ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


async def _undone(task: "asyncio.Task[T]", undo: Callable[[T], Awaitable[object]]) -> None:
    with contextlib.suppress(HybridKVError):  # nothing was obtained, or its giving back is the daemon's business
        await undo(await task)


async def off_loop(nbytes: int, work: Callable[[], T]) -> T:
    """The result of `work`, which goes through `nbytes`; on another thread when they are many.

    When the caller is cancelled, its cancellation waits for the thread: afterwards nothing writes to its memory.
    """
    if nbytes <= INLINE_BYTES:
        return work()
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        while not thread.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({thread})
        raise
