"""Reservations: slots to write blocks into, published by `seal`."""

from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np

from hybridkv.service.client.core import Budget, States, Wish
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.reserved import SEALED_AS, CopiedSlots, Indices, MappedSlots, ReservedSlots
from hybridkv.service.client.transport import LostError
from hybridkv.service.replies import ReserveReply
from hybridkv.tiers.errors import ExpiredError, HybridKVError, InternalError, NotFoundError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.points import point
from hybridkv.tiers.states import SealOutcome


class Reservation(ReservedSlots):
    """Slots for the keys that nobody has, of the blocking client: see `ReservedSlots`. A context manager that aborts what
    was not sealed."""

    _attachment: Attachment

    def seal(self, indices: Sequence[int] | None = None) -> States:
        """Publish the blocks at `indices` (default: all of `new` that are not sealed yet); a SealOutcome for each.

        ALREADY_SEALED: another's block for that key came first and stays. EXPIRED: the reservation lapsed, nothing
        was published. Raises ExpiredError when it ended with its session. Blocks in device memory are found once the
        current stream has done what it was given so far; this call does not wait for it.
        """
        chosen = self._choose(indices)
        if not len(chosen):
            return np.zeros(0, np.uint8)
        if not self._attachment.alive:
            self._check_held()
        try:
            outcomes = self._publish(chosen)
        except (LostError, NotFoundError, ExpiredError) as error:
            self.lapse()
            raise ExpiredError(f"the reservation lapsed: {error}") from error
        self._note_sealed(chosen)
        return outcomes

    def abort(self) -> None:
        """Give up what is not sealed; it may be written no more. May be called again, and after it lapsed."""
        rest = self._give_up()
        if rest is None:
            return
        point("worker.before_abort")
        try:
            self._attachment.transport.abort(self.hold_id, rest, events=self._events(), timeout_s=self._timeout_s)
        except (LostError, NotFoundError, ExpiredError):
            return  # gone already, which is what was asked for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.abort()
        except HybridKVError:
            if error is None:
                raise

    @abstractmethod
    def _publish(self, chosen: Indices) -> States:
        """Seal these new keys."""


class MappedReservation(MappedSlots, Reservation):
    """Slots in memory that this process maps."""

    def __init__(self, attachment: Attachment, keys: Keys, reply: ReserveReply, timeout_s: float) -> None:
        assert attachment.memory is not None, "a session without memory writes over streams"
        super().__init__(attachment, attachment.memory, attachment.translations, keys, reply, timeout_s)

    def _publish(self, chosen: Indices) -> States:
        checksums = self._checksums(chosen)
        point("worker.before_seal")
        outcomes = self._attachment.transport.seal(
            self.hold_id, chosen, checksums, events=self._events(), timeout_s=self._timeout_s
        )
        point("worker.sealed")
        self._remember(chosen[outcomes == SealOutcome.SEALED])
        return outcomes


class CopiedReservation(CopiedSlots, Reservation):
    """Private buffers; `seal` sends them over a Write stream. Until then the daemon knows nothing of it."""

    def __init__(
        self, attachment: Attachment, wish: Wish, parent: bytes | None, budget: Budget, timeout_s: float
    ) -> None:
        found = attachment.transport.lookup(wish.keys, timeout_s=budget.left_s())
        self._wait_s = budget.wait_s()
        super().__init__(attachment, wish, found.states, parent, timeout_s)

    def _publish(self, chosen: Indices) -> States:
        payload = self._attachment.transport.payload
        if payload is None:
            raise InternalError("the session neither maps memory nor has payload streams")
        outcomes = [
            payload.write(
                keys,
                blocks,
                parent=parent,
                tier=self._wish.tier,
                wait_s=self._wait_s,
                request=self._wish.request,
                timeout_s=self._timeout_s + self._wait_s,
            )
            for keys, blocks, parent in self._runs(chosen)
        ]
        return SEALED_AS[np.concatenate(outcomes)]


def take_reservation(
    attachment: Attachment, wish: Wish, parent: bytes | None, budget: Budget, timeout_s: float
) -> Reservation:
    """A reservation on the session, whatever it can do."""
    if attachment.memory is None:
        return CopiedReservation(attachment, wish, parent, budget, timeout_s)
    tier, device = attachment.memory.place_for(wish.tier, wish.device)
    reply = attachment.transport.reserve(
        wish.keys,
        parent=parent,
        tier=tier,
        device=device,
        wait_s=budget.wait_s(),
        request=wish.request,
        hints=wish.hints,
        timeout_s=budget.left_s(),
    )
    point("worker.reserved")
    return MappedReservation(attachment, wish.keys, reply, timeout_s)
