"""Reservations of the asyncio client."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np

from hybridkv.service.client.aio.link import AsyncAttachment
from hybridkv.service.client.aio.tasks import off_loop
from hybridkv.service.client.core import Budget, States, Wish
from hybridkv.service.client.reserved import SEALED_AS, CopiedSlots, Indices, MappedSlots, ReservedSlots
from hybridkv.service.client.transport import LostError
from hybridkv.service.replies import ReserveReply
from hybridkv.tiers.errors import ExpiredError, HybridKVError, NotFoundError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import SealOutcome


class AsyncReservation(ReservedSlots):
    """Slots for the keys that nobody has, of the asyncio client: see `ReservedSlots`. An async context manager that aborts
    what was not sealed."""

    _attachment: AsyncAttachment

    async def seal(self, indices: Sequence[int] | None = None) -> States:
        """See `Reservation.seal`. Once begun it is carried out, also when the caller is cancelled meanwhile."""
        chosen = self._choose(indices)
        if not len(chosen):
            return np.zeros(0, np.uint8)
        if not self._attachment.alive:
            self._check_held()
        return await self._attachment.background.whole(self._seal(chosen))

    async def _seal(self, chosen: Indices) -> States:
        try:
            outcomes = await self._publish(chosen)
        except (LostError, NotFoundError, ExpiredError) as error:
            self.lapse()
            raise ExpiredError(f"the reservation lapsed: {error}") from error
        self._note_sealed(chosen)
        return outcomes

    async def abort(self) -> None:
        """Give up what is not sealed, also when the caller is cancelled meanwhile; it may be written no more.

        May be called again, and after it lapsed.
        """
        rest = self._give_up()
        if rest is not None:
            await asyncio.shield(self._attachment.background.spawn(self._abort(rest)))

    async def _abort(self, rest: Indices) -> None:
        transport = self._attachment.transport
        try:
            await transport.abort(self.hold_id, rest, events=self._events(), timeout_s=self._timeout_s)
        except (LostError, NotFoundError, ExpiredError):
            return  # gone already, which is what was asked for

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self.abort()
        except HybridKVError:
            if error is None:
                raise

    @abstractmethod
    async def _publish(self, chosen: Indices) -> States:
        """Seal these new keys."""


class AsyncMappedReservation(MappedSlots, AsyncReservation):
    """Slots in memory that this process maps."""

    def __init__(self, attachment: AsyncAttachment, keys: Keys, reply: ReserveReply, timeout_s: float) -> None:
        assert attachment.memory is not None, "a session without memory writes over streams"
        super().__init__(attachment, attachment.memory, attachment.translations, keys, reply, timeout_s)

    async def _publish(self, chosen: Indices) -> States:
        events = self._events()
        checksums = await off_loop(self._bytes_of(chosen), lambda: self._checksums(chosen))
        outcomes = await self._attachment.transport.seal(
            self.hold_id, chosen, checksums, events=events, timeout_s=self._timeout_s
        )
        self._remember(chosen[outcomes == SealOutcome.SEALED])
        return outcomes


class AsyncCopiedReservation(CopiedSlots, AsyncReservation):
    """Private buffers; `seal` sends them over a Write stream. Until then the daemon knows nothing of it."""

    _wait_s = 0.0

    async def _publish(self, chosen: Indices) -> States:
        payload = self._attachment.transport.payload
        outcomes = [
            await payload.write(
                self._wish,
                keys,
                blocks,
                parent=parent,
                wait_s=self._wait_s,
                timeout_s=self._timeout_s + self._wait_s,
            )
            for keys, blocks, parent in self._runs(chosen)
        ]
        return SEALED_AS[np.concatenate(outcomes)]


async def take_reservation(
    attachment: AsyncAttachment, wish: Wish, parent: bytes | None, budget: Budget, timeout_s: float
) -> AsyncReservation:
    """A reservation on the session, whatever it can do. Who is cancelled while it waits for room leaves none behind."""
    memory, transport = attachment.memory, attachment.transport
    if memory is None:
        wait_s = budget.wait_s()
        found = await transport.lookup(wish.keys, timeout_s=budget.left_s())
        copied = AsyncCopiedReservation(attachment, wish, found.states, parent, timeout_s)
        copied._wait_s = wait_s
        return copied
    tier, device = memory.place_for(wish.tier, wish.device)

    async def take() -> AsyncMappedReservation:
        reply = await transport.reserve(
            wish, tier, device, parent=parent, wait_s=budget.wait_s(), timeout_s=budget.left_s()
        )
        return AsyncMappedReservation(attachment, wish.keys, reply, timeout_s)

    return await attachment.background.whole(take(), lambda taken: taken.abort())
