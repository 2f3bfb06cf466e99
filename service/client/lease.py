"""Leases: blocks that stay where they are while they are read."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.core import Budget, States, prefix_of
from hybridkv.service.client.hold import Hold
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.memory import Events
from hybridkv.service.client.outputs import rows_of
from hybridkv.service.client.transport import LostError
from hybridkv.service.replies import AcquireReply
from hybridkv.tiers.device.views import tensor_of
from hybridkv.tiers.errors import (
    ExpiredError,
    FailedPreconditionError,
    HybridKVError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, Tier

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for, so that it can be asked again."""

    keys: Keys
    tier: Tier | None = None
    device: int | None = None
    views: bool = True
    independent: bool = False
    request: int | None = None
    recompute_s: float | None = None
    hints: Hints = NO_HINTS


class Lease(Hold, ABC):
    """A lease on the blocks that were HIT. A context manager that releases at its end. Thread-safe.

    `states` holds an Outcome per key, `prefix` how many keys from the start are HIT. What `view` and `array` give may
    be used while the lease is held and not after: it keeps its memory mapped, but the slot goes to other blocks. A
    lease that lapsed (the process slept through its life, the daemon restarted) raises ExpiredError; `valid` says so.
    """

    states: States

    def __init__(
        self, attachment: Attachment, wish: Wish, hold_id: int | None, life_s: float, timeout_s: float
    ) -> None:
        super().__init__(attachment, hold_id, life_s, "lease")
        self._wish = wish
        self._timeout_s = timeout_s

    @property
    def prefix(self) -> int:
        return prefix_of(self.states)

    def __len__(self) -> int:
        return len(self._wish.keys)

    def view(self, i: int) -> "torch.Tensor":
        """Block `i` as torch.uint8 [block_bytes], no copy, on the device it lies on. Raises as `array` does.

        Host memory: writing to it is a segmentation fault. Device memory: nobody hinders a write, which corrupts the
        block for all; the view must be dropped before the client is closed, and what it is used for must be on the
        current stream of the thread that releases the lease.
        """
        self._check_hit(i)
        return self._tensor(i)

    def array(self, i: int) -> Bytes:
        """Block `i` as a read-only array uint8 [block_bytes], no copy.

        Raises ExpiredError, FailedPreconditionError when the key is no HIT, the lease was taken with views=False, or
        the block lies in device memory: that has views only.
        """
        self._check_hit(i)
        return self._block(i)

    def _check_hit(self, i: int) -> None:
        self._check_held()
        if not -len(self) <= i < len(self):
            raise InvalidArgumentError("i", f"{i} is outside of the lease's {len(self)} keys")
        if self.states[i] != Outcome.HIT:
            raise FailedPreconditionError(f"key {i} is {Outcome(self.states[i]).name}, not HIT")

    def read_into(self, out: Any, rows: Sequence[int] | None = None) -> States:
        """Copy blocks to `out`: block `rows[j]` to row j (default: every key to its own row).

        `out`: see `KV.read`. Returns an Outcome per row. Rows that are no HIT are left untouched; after a HIT that
        was revoked during the copy (possible with views=False only) the row is MISS and holds anything.
        """
        self._check_held()
        chosen = np.arange(len(self)) if rows is None else np.asarray(rows, np.int64)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise InvalidArgumentError("rows", f"must be within the lease's {len(self)} keys")
        target = rows_of(out, len(chosen), self._attachment.attached.block_bytes)
        states = self.states[chosen]
        hits = np.flatnonzero(states == Outcome.HIT)
        states[hits[~self._copy(chosen[hits], hits, target)]] = Outcome.MISS
        return states

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

    def __repr__(self) -> str:
        return f"Lease({len(self)} keys, prefix {self.prefix}, {self._why_not() or 'held'})"

    @abstractmethod
    def _block(self, i: int) -> Bytes:
        """The bytes of a HIT."""

    def _tensor(self, i: int) -> "torch.Tensor":
        """The same as a tensor."""
        return tensor_of(self._block(i))

    def _events(self) -> Events:
        """Until when devices may still read what was viewed."""
        return []

    @abstractmethod
    def _copy(self, blocks: Indices, rows: Indices, target: Any) -> npt.NDArray[np.bool_]:
        """Copy HITs to rows; False where a block was revoked meanwhile."""

    @abstractmethod
    def _ask(self, budget: Budget) -> None:
        """Ask the daemon again and take over what it says."""


class MappedLease(Lease):
    """A lease whose blocks lie in memory that this process maps."""

    def __init__(self, attachment: Attachment, wish: Wish, reply: AcquireReply, timeout_s: float) -> None:
        assert attachment.memory is not None, "a session without memory reads over streams"
        self._memory = attachment.memory
        self._viewed: set[int] = set()
        self._take(reply)
        super().__init__(attachment, wish, reply.lease or None, reply.expires_in_s, timeout_s)

    def _take(self, reply: AcquireReply) -> None:
        self._slots, self.states = reply.slots, reply.states

    def _block(self, i: int) -> Bytes:
        self._check_views()
        return self._memory.block(self._slots[i])

    def _tensor(self, i: int) -> "torch.Tensor":
        self._check_views()
        tensor = self._memory.tensor(self._slots[i])
        if self._memory.on_device(self._slots[i]):
            self._viewed.add(int(self._slots[i]["pool"]))
        return tensor

    def _events(self) -> Events:
        return self._memory.events(self._viewed)

    def _check_views(self) -> None:
        if not self._wish.views:
            raise FailedPreconditionError("this lease was taken with views=False: use read_into")

    def _copy(self, blocks: Indices, rows: Indices, target: Any) -> npt.NDArray[np.bool_]:
        return self._memory.copy(self._slots[blocks], rows, target)

    def _ask(self, budget: Budget) -> None:
        if not self._at_daemon:
            return
        self._take(ask(self._attachment, self._wish, budget, self.hold_id))


class CopiedLease(Lease):
    """Private copies that came over a stream; the daemon holds nothing for it."""

    def __init__(self, attachment: Attachment, wish: Wish, budget: Budget, timeout_s: float) -> None:
        self._blocks: dict[int, Bytes] = {}
        self.states = np.full(len(wish.keys), Outcome.MISS, np.uint8)
        super().__init__(attachment, wish, None, 0.0, timeout_s)
        self._ask(budget)

    def _block(self, i: int) -> Bytes:
        return self._blocks[i % len(self)]

    def _copy(self, blocks: Indices, rows: Indices, target: Any) -> npt.NDArray[np.bool_]:
        for block, row in zip(blocks.tolist(), rows.tolist(), strict=True):
            target.put(row, self._blocks[block])
        return np.ones(len(blocks), np.bool_)

    def _ask(self, budget: Budget) -> None:
        missing = np.flatnonzero(self.states != Outcome.HIT) if self._blocks else np.arange(len(self))
        if not len(missing) and len(self):
            return
        keys = self._wish.keys if len(missing) == len(self) else chosen_keys(self._wish.keys, missing)
        fresh: dict[int, Bytes] = {}

        def row_of(i: int) -> Bytes:
            return fresh.setdefault(int(missing[i]), np.empty(self._attachment.attached.block_bytes, np.uint8))

        states = self.states.copy()
        states[missing] = read_stream(self._attachment, keys, row_of, budget, self._wish)
        for block in fresh.values():
            block.flags.writeable = False
        self._blocks |= fresh
        self.states = states


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


def chosen_keys(keys: Keys, indices: Indices) -> Keys:
    listed = keys.as_list()
    return Keys.of((listed[i] for i in indices.tolist()), keys.width)
