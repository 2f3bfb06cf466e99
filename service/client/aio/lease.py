"""Leases of the asyncio client."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from hybridkv.service.client.aio.link import AsyncAttachment
from hybridkv.service.client.aio.tasks import off_loop
from hybridkv.service.client.core import Budget, States, Wish
from hybridkv.service.client.leased import Bytes, CopiedBlocks, LeasedBlocks, MappedBlocks
from hybridkv.service.client.transport import LostError
from hybridkv.service.replies import AcquireReply
from hybridkv.tiers.errors import ExpiredError, HybridKVError, NotFoundError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome


class AsyncLease(LeasedBlocks):
    """A lease of the asyncio client: see `LeasedBlocks`. An async context manager that releases at its end."""

    _attachment: AsyncAttachment

    async def read_into(self, out: Any, rows: Sequence[int] | None = None) -> States:
        """See `Lease.read_into`. Much is copied on another thread, while the event loop goes on."""
        chosen = self._chosen(rows)
        target = self._target(out, len(chosen))
        nbytes = len(chosen) * self._attachment.attached.block_bytes
        return await off_loop(nbytes, lambda: self._read_into(target, chosen))

    async def wait(self, timeout_s: float) -> States:
        """Ask again until nothing is PENDING or `timeout_s` is over; returns the new `states`. Raises ExpiredError."""
        self._check_held()
        try:
            await self._ask(Budget(timeout_s, self._timeout_s))
        except (LostError, NotFoundError, ExpiredError) as error:
            self.lapse()
            raise ExpiredError(f"the lease lapsed: {error}") from error
        return self.states

    async def release(self) -> None:
        """Give the lease back, also when the caller is cancelled meanwhile; views of it must be used no more.

        May be called again, and after it lapsed.
        """
        if self._end():
            await asyncio.shield(self._attachment.background.spawn(self._release()))

    async def _release(self) -> None:
        try:
            await self._attachment.transport.release(self.hold_id, events=self._events(), timeout_s=self._timeout_s)
        except (LostError, NotFoundError, ExpiredError):
            return  # gone already, which is what was asked for

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except HybridKVError:
            if error is None:
                raise

    @abstractmethod
    async def _ask(self, budget: Budget) -> None:
        """Ask the daemon again and take over what it says."""


class AsyncMappedLease(MappedBlocks, AsyncLease):
    """A lease whose blocks lie in memory that this process maps."""

    def __init__(self, attachment: AsyncAttachment, wish: Wish, reply: AcquireReply, timeout_s: float) -> None:
        assert attachment.memory is not None, "a session without memory reads over streams"
        super().__init__(attachment, attachment.memory, wish, reply, timeout_s)

    async def _ask(self, budget: Budget) -> None:
        if self._at_daemon:
            self._take(await ask(self._attachment, self._wish, budget, budget.wait_s(), self.hold_id))


class AsyncCopiedLease(CopiedBlocks, AsyncLease):
    """Private copies that came over a stream; the daemon holds nothing for it."""

    async def _ask(self, budget: Budget) -> None:
        missing, fresh = self._missing(), dict[int, Bytes]()
        if not len(missing) and len(self):
            return
        states = await stream(self._attachment, self._wish, self._wish.keys.at(missing), budget, fresh)
        self._take_blocks(missing, states, fresh)


async def ask(
    attachment: AsyncAttachment, wish: Wish, budget: Budget, wait_s: float, lease: int | None = None
) -> AcquireReply:
    """One Acquire; with `lease` the same keys again. The states of the reply may be written to."""
    memory = attachment.memory
    tier, device = (wish.tier, wish.device) if memory is None else memory.place_for(wish.tier, wish.device)
    reply = await attachment.transport.acquire(
        wish, tier, device, wait_s=wait_s, lease=lease, timeout_s=budget.left_s()
    )
    if attachment.translations is not None:
        attachment.translations.learn(wish.keys, reply.slots)
    return AcquireReply(reply.lease, reply.states.copy(), reply.slots, reply.expires_in_s)


async def take_mapped(attachment: AsyncAttachment, wish: Wish, budget: Budget, timeout_s: float) -> AsyncMappedLease:
    """A lease, waited for in two steps, so that whoever is cancelled while it waits knows which lease to give back."""

    async def take() -> AsyncMappedLease:
        return AsyncMappedLease(attachment, wish, await ask(attachment, wish, budget, 0.0), timeout_s)

    lease = await attachment.background.whole(take(), lambda taken: taken.release())
    if budget.wait_s() > 0 and np.any(lease.states == Outcome.PENDING):
        try:
            await lease._ask(budget)
        except BaseException:
            attachment.background.spawn(_let_go(lease))
            raise
    return lease


async def _let_go(lease: AsyncLease) -> None:
    try:
        await lease.release()
    except HybridKVError:
        return  # whoever was to have it has heard of another error


async def take_lease(attachment: AsyncAttachment, wish: Wish, budget: Budget, timeout_s: float) -> AsyncLease:
    """A lease on the session, whatever it can do."""
    if attachment.memory is not None:
        return await take_mapped(attachment, wish, budget, timeout_s)
    lease = AsyncCopiedLease(attachment, wish, timeout_s)
    await lease._ask(budget)
    return lease


async def stream(
    attachment: AsyncAttachment, wish: Wish, keys: Keys, budget: Budget, blocks: dict[int, Bytes]
) -> States:
    """One Read stream: Outcomes per key; the block of each HIT into `blocks`, by position."""

    def row_of(i: int) -> Bytes:
        return blocks.setdefault(i, np.empty(attachment.attached.block_bytes, np.uint8))

    return await attachment.transport.payload.read(
        wish, keys, row_of, wait_s=budget.wait_s(), timeout_s=budget.left_s()
    )
