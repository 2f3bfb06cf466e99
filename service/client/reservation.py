"""Reservations: slots to write blocks into, published by `seal`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import xxhash

from hybridkv.service.client.core import Budget, States
from hybridkv.service.client.hold import Hold
from hybridkv.service.client.lease import Wish
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.memory import Events
from hybridkv.service.client.transport import LostError
from hybridkv.service.replies import ReserveReply
from hybridkv.tiers.device.views import tensor_of
from hybridkv.tiers.errors import (
    ExpiredError,
    FailedPreconditionError,
    HybridKVError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


class Reservation(Hold, ABC):
    """Slots for the keys that nobody has. A context manager that aborts what was not sealed. Thread-safe.

    `outcomes` holds a ReserveOutcome per key, `new` the indices that are ours to write. A slot may be written until
    it is sealed or given up, and not after.
    """

    def __init__(
        self, attachment: Attachment, outcomes: States, hold_id: int | None, life_s: float, timeout_s: float
    ) -> None:
        self.outcomes = outcomes
        self.new: list[int] = np.flatnonzero(outcomes == ReserveOutcome.NEW).tolist()
        self._open = set(self.new)
        self._timeout_s = timeout_s
        super().__init__(attachment, hold_id, life_s, "reservation")

    def __len__(self) -> int:
        return len(self.outcomes)

    def view(self, i: int) -> "torch.Tensor":
        """The slot of key `i` as torch.uint8 [block_bytes], no copy, to be written, on the device it lies on.

        Device memory: it must be written on the current stream of the thread that calls `seal` (or `abort`), and the
        view dropped before the client is closed. Raises as `array` does.
        """
        self._check_open(i)
        return self._tensor(i)

    def array(self, i: int) -> Bytes:
        """The slot of key `i` as a writable array uint8 [block_bytes], no copy.

        Raises InvalidArgumentError unless `i` is in `new`, FailedPreconditionError once it is sealed or given up,
        ExpiredError when the reservation lapsed. FailedPreconditionError for device memory: that has views only.
        """
        self._check_open(i)
        return self._block(i)

    def _check_open(self, i: int) -> None:
        self._check_held()
        self._check_ours(i)

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
        self._open.difference_update(chosen.tolist())
        if not self._open:
            self._end()
        return outcomes

    def abort(self) -> None:
        """Give up what is not sealed; it may be written no more. May be called again, and after it lapsed."""
        rest, self._open = np.array(sorted(self._open), np.int64), set()
        if not self._end() or not len(rest):
            return
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

    def __repr__(self) -> str:
        return f"Reservation({len(self)} keys, {len(self.new)} new, {self._why_not() or 'held'})"

    def _choose(self, indices: Sequence[int] | None) -> Indices:
        if indices is None:
            return np.array(sorted(self._open), np.int64)
        for i in indices:
            self._check_ours(i)
        if len(set(indices)) < len(indices):
            raise InvalidArgumentError("indices", "names a key twice")
        return np.array(list(indices), np.int64)

    def _check_ours(self, i: int) -> None:
        if not 0 <= i < len(self):
            raise InvalidArgumentError("i", f"{i} is outside of the reservation's {len(self)} keys")
        if self.outcomes[i] != ReserveOutcome.NEW:
            raise InvalidArgumentError("i", f"key {i} is {ReserveOutcome(self.outcomes[i]).name}, not ours to write")
        if i not in self._open:
            raise FailedPreconditionError(f"key {i} was sealed or given up")

    @abstractmethod
    def _block(self, i: int) -> Bytes:
        """The writable bytes of a new key."""

    def _tensor(self, i: int) -> "torch.Tensor":
        """The same as a tensor."""
        return tensor_of(self._block(i))

    def _events(self) -> Events:
        """Until when devices may still write to what was viewed."""
        return []

    @abstractmethod
    def _publish(self, chosen: Indices) -> States:
        """Seal these new keys."""


class MappedReservation(Reservation):
    """Slots in memory that this process maps."""

    def __init__(self, attachment: Attachment, reply: ReserveReply, timeout_s: float) -> None:
        assert attachment.memory is not None, "a session without memory writes over streams"
        self._memory = attachment.memory
        self._viewed: set[int] = set()
        self._slots = reply.slots
        super().__init__(attachment, reply.outcomes, reply.reservation or None, reply.expires_in_s, timeout_s)

    def _block(self, i: int) -> Bytes:
        return self._memory.writable_block(self._slots[i])

    def _tensor(self, i: int) -> "torch.Tensor":
        tensor = self._memory.tensor(self._slots[i], writable=True)
        if self._memory.on_device(self._slots[i]):
            self._viewed.add(int(self._slots[i]["pool"]))
        return tensor

    def _events(self) -> Events:
        return self._memory.events(self._viewed)

    def _publish(self, chosen: Indices) -> States:
        return self._attachment.transport.seal(
            self.hold_id, chosen, self._checksums(chosen), events=self._events(), timeout_s=self._timeout_s
        )

    def _checksums(self, chosen: Indices) -> npt.NDArray[np.uint64] | None:
        """None for device memory: the daemon computes them when it first has the bytes in the CPU tier."""
        if any(self._memory.on_device(self._slots[i]) for i in chosen.tolist()):
            return None
        blocks = (self._memory.writable_block(self._slots[i]) for i in chosen.tolist())
        return np.fromiter((xxhash.xxh3_64_intdigest(block.data) for block in blocks), np.uint64, len(chosen))


class CopiedReservation(Reservation):
    """Private buffers; `seal` sends them over a Write stream. Until then the daemon knows nothing of it."""

    def __init__(
        self, attachment: Attachment, wish: Wish, parent: bytes | None, budget: Budget, timeout_s: float
    ) -> None:
        found = attachment.transport.lookup(wish.keys, timeout_s=budget.left_s())
        missing = found.states == Outcome.MISS
        outcomes = np.where(missing, ReserveOutcome.NEW, ReserveOutcome.PRESENT).astype(np.uint8)
        self._wish = wish
        self._parent = parent
        self._wait_s = budget.wait_s()
        block_bytes = attachment.attached.block_bytes
        self._blocks = {i: np.zeros(block_bytes, np.uint8) for i in np.flatnonzero(missing).tolist()}
        super().__init__(attachment, outcomes, None, 0.0, timeout_s)

    def _block(self, i: int) -> Bytes:
        return self._blocks[i]

    def _publish(self, chosen: Indices) -> States:
        """One stream per run of neighbouring keys, since a stream names the parent of its first key only."""
        breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
        return np.concatenate([self._write(run) for run in np.split(chosen, breaks)])

    def _write(self, run: Indices) -> States:
        payload = self._attachment.transport.payload
        if payload is None:
            raise InternalError("the session neither maps memory nor has payload streams")
        first, keys = int(run[0]), self._wish.keys
        outcomes = payload.write(
            keys[first : first + len(run)],
            [self._blocks[i] for i in run.tolist()],
            parent=keys[first - 1] if first else self._parent,
            tier=self._wish.tier,
            wait_s=self._wait_s,
            request=self._wish.request,
            timeout_s=self._timeout_s + self._wait_s,
        )
        return _SEALED_AS[outcomes]


_SEALED_AS = np.zeros(len(ReserveOutcome) + 1, np.uint8)
"""What a Write's outcome means for a seal. EXPIRED where nothing was published for the key, by us or another."""
_SEALED_AS[ReserveOutcome.NEW] = SealOutcome.SEALED
_SEALED_AS[ReserveOutcome.PRESENT] = SealOutcome.ALREADY_SEALED
_SEALED_AS[ReserveOutcome.BEING_WRITTEN] = SealOutcome.EXPIRED
_SEALED_AS[ReserveOutcome.NO_ROOM] = SealOutcome.EXPIRED


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
    return MappedReservation(attachment, reply, timeout_s)
