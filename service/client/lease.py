"""Leases: blocks that stay where they are while they are read."""

from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from hybridkv.service.client.core import Budget, States, Wish
from hybridkv.service.client.leased import Bytes, CopiedBlocks, LeasedBlocks, MappedBlocks
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.transport import LostError
from hybridkv.service.replies import AcquireReply
from hybridkv.tiers.errors import ExpiredError, HybridKVError, InternalError, NotFoundError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.points import point


class Lease(LeasedBlocks):
    """A lease of the blocking client: see `LeasedBlocks`. A context manager that releases at its end."""

    _attachment: Attachment

    def read_into(self, out: Any, rows: Sequence[int] | None = None) -> States:
        """Copy blocks to `out`: block `rows[j]` to row j (default: every key to its own row).

        `out`: see `KV.read`. Returns an Outcome per row. Rows that are no HIT are left untouched; after a HIT that
        was revoked during the copy (possible with views=False only) the row is MISS and holds anything.
        """
        chosen = self._chosen(rows)
        return self._read_into(self._target(out, len(chosen)), chosen)

    def wait(self, timeout_s: float) -> States:
        """Ask again until nothing is PENDING or `timeout_s` is over; returns the new `states`. Raises ExpiredError."""
        self._check_held()
        try:
            self._ask(Budget(timeout_s, self._timeout_s))
        except (LostError, NotFoundError, ExpiredError) as error:
            self.lapse()
            raise ExpiredError(f"the lease lapsed: {error}") from error
        return self.states

    def release(self) -> None:
        """Give the lease back; views of it must be used no more. May be called again, and after it lapsed."""
        if not self._end():
            return
        point("worker.before_release")
        try:
            self._attachment.transport.release(self.hold_id, events=self._events(), timeout_s=self._timeout_s)
        except (LostError, NotFoundError, ExpiredError):
            return  # gone already, which is what was asked for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.release()
        except HybridKVError:
            if error is None:
                raise

    @abstractmethod
    def _ask(self, budget: Budget) -> None:
        """Ask the daemon again and take over what it says."""


class MappedLease(MappedBlocks, Lease):
    """A lease whose blocks lie in memory that this process maps."""

    def __init__(self, attachment: Attachment, wish: Wish, reply: AcquireReply, timeout_s: float) -> None:
        assert attachment.memory is not None, "a session without memory reads over streams"
        super().__init__(attachment, attachment.memory, wish, reply, timeout_s)

    def _ask(self, budget: Budget) -> None:
        if not self._at_daemon:
            return
        self._take(ask(self._attachment, self._wish, budget, self.hold_id))


class CopiedLease(CopiedBlocks, Lease):
    """Private copies that came over a stream; the daemon holds nothing for it."""

    def __init__(self, attachment: Attachment, wish: Wish, budget: Budget, timeout_s: float) -> None:
        super().__init__(attachment, wish, timeout_s)
        self._ask(budget)

    def _ask(self, budget: Budget) -> None:
        missing, fresh = self._missing(), dict[int, Bytes]()
        if not len(missing) and len(self):
            return

        def row_of(i: int) -> Bytes:
            return fresh.setdefault(i, np.empty(self._attachment.attached.block_bytes, np.uint8))

        states = read_stream(self._attachment, self._wish.keys.at(missing), row_of, budget, self._wish)
        self._take_blocks(missing, states, fresh)


def ask(attachment: Attachment, wish: Wish, budget: Budget, lease: int | None = None) -> AcquireReply:
    """One Acquire; with `lease` the same keys again. The states of the reply may be written to."""
    memory = attachment.memory
    tier, device = (wish.tier, wish.device) if memory is None else memory.place_for(wish.tier, wish.device)
    reply = attachment.transport.acquire(
        wish.keys,
        tier=tier,
        device=device,
        wait_s=budget.wait_s(),
        views=wish.views,
        independent=wish.independent,
        request=wish.request,
        lease=lease,
        recompute_s=wish.recompute_s,
        hints=wish.hints,
        timeout_s=budget.left_s(),
    )
    point("worker.acquired")
    if attachment.translations is not None:
        attachment.translations.learn(wish.keys, reply.slots)
    return AcquireReply(reply.lease, reply.states.copy(), reply.slots, reply.expires_in_s)


def read_stream(attachment: Attachment, keys: Keys, row_of: Any, budget: Budget, wish: Wish) -> States:
    """One Read stream."""
    payload = attachment.transport.payload
    if payload is None:
        raise InternalError("the session neither maps memory nor has payload streams")
    return payload.read(
        keys,
        row_of,
        wait_s=budget.wait_s(),
        independent=wish.independent,
        request=wish.request,
        timeout_s=budget.left_s(),
    )


def take_lease(attachment: Attachment, wish: Wish, budget: Budget, timeout_s: float) -> Lease:
    """A lease on the session, whatever it can do."""
    if attachment.memory is None:
        return CopiedLease(attachment, wish, budget, timeout_s)
    return MappedLease(attachment, wish, ask(attachment, wish, budget), timeout_s)
