"""The slots of a reservation: what can be done with them without the daemon, whichever client reserved them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from hybridkv.service.client.core import States, Wish
from hybridkv.service.client.hold import Hold, Owner
from hybridkv.service.client.memory import Events, Memory, Stack
from hybridkv.service.client.outputs import flat_source
from hybridkv.service.client.translations import Translations
from hybridkv.service.replies import ReserveReply
from hybridkv.tiers.device.views import tensor_of
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.points import point
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


class ReservedSlots(Hold, ABC):
    """Slots for the keys that nobody has. Thread-safe.

    `outcomes` holds a ReserveOutcome per key, `new` the indices that are ours to write. A slot may be written until
    it is sealed or given up, and not after.
    """

    def __init__(
        self, attachment: Owner, outcomes: States, hold_id: int | None, life_s: float, timeout_s: float
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

    def stacks(self, indices: Indices) -> list[Stack]:
        """The slots at `indices` (int64) as few writable arrays, no copy. Raises as `array` does."""
        self._check_held()
        for i in indices.tolist():
            self._check_ours(i)
        return self._stacks(indices)

    def _stacks(self, indices: Indices) -> list[Stack]:
        first = np.zeros(1, np.int64)
        return [Stack(np.array([i]), self._block(i)[np.newaxis], first) for i in indices.tolist()]

    def write_from(self, source: Any, indices: Sequence[int] | None = None) -> None:
        """Copy row j of `source` to the slot of `indices[j]` (default: `new`, in order), in one go.

        `source`: a contiguous NumPy array or host tensor, any dtype, with a row of block_bytes bytes per slot. Raises as
        `array` does; for a slot in device memory, too.
        """
        chosen = self.new if indices is None else list(indices)
        self._check_held()
        for i in chosen:
            self._check_ours(i)
        self._write(np.array(chosen, np.int64), flat_source(source, len(chosen), self._attachment.attached.block_bytes))

    def _write(self, chosen: Indices, flat: Bytes) -> None:
        """Copy the rows of `flat` to these slots."""
        for i, row in zip(chosen.tolist(), flat.reshape(len(chosen), -1), strict=True):
            np.copyto(self._block(i), row)

    def _check_open(self, i: int) -> None:
        self._check_held()
        self._check_ours(i)

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

    def _note_sealed(self, chosen: Indices) -> None:
        """These were answered for."""
        self._open.difference_update(chosen.tolist())
        if not self._open:
            self._end()

    def _give_up(self) -> Indices | None:
        """Nothing of it may be written any more. What the daemon must be told to abort, if it must be."""
        rest, self._open = np.array(sorted(self._open), np.int64), set()
        return rest if self._end() and len(rest) else None

    @abstractmethod
    def _block(self, i: int) -> Bytes:
        """The writable bytes of a new key."""

    def _tensor(self, i: int) -> "torch.Tensor":
        """The same as a tensor."""
        return tensor_of(self._block(i))

    def _events(self) -> Events:
        """Until when devices may still write to what was viewed."""
        return []


class MappedSlots(ReservedSlots):
    """Slots in memory that this process maps."""

    def __init__(
        self,
        attachment: Owner,
        memory: Memory,
        translations: Translations | None,
        keys: Keys,
        reply: ReserveReply,
        timeout_s: float,
    ) -> None:
        self._memory = memory
        self._translations = translations
        self._viewed: set[int] = set()
        self._keys = keys
        self._slots = reply.slots
        super().__init__(attachment, reply.outcomes, reply.reservation or None, reply.expires_in_s, timeout_s)

    def _block(self, i: int) -> Bytes:
        return self._memory.writable_block(self._slots[i])

    def _stacks(self, indices: Indices) -> list[Stack]:
        return self._memory.stacks(self._slots, indices, writable=True)

    def _tensor(self, i: int) -> "torch.Tensor":
        tensor = self._memory.tensor(self._slots[i], writable=True)
        if self._memory.on_device(self._slots[i]):
            self._viewed.add(int(self._slots[i]["pool"]))
        return tensor

    def _events(self) -> Events:
        return self._memory.events(self._viewed)

    def _remember(self, sealed: Indices) -> None:
        """A slot that was reserved for us had an odd generation, and its publication made it the next one."""
        if self._translations is not None and len(sealed):
            slots = self._slots[sealed]
            slots["generation"] += np.uint64(1)
            self._translations.learn(self._keys.at(sealed), slots)

    def _write(self, chosen: Indices, flat: Bytes) -> None:
        if len(chosen):
            point("worker.before_write")
            self._memory.write(self._slots[chosen], flat)
            point("worker.written")

    def _checksums(self, chosen: Indices) -> npt.NDArray[np.uint64] | None:
        """None for device memory: the daemon computes them when it first has the bytes in the CPU tier."""
        if any(self._memory.on_device(self._slots[i]) for i in chosen.tolist()):
            return None
        blocks = (self._memory.writable_block(self._slots[i]) for i in chosen.tolist())
        return np.fromiter((xxhash.xxh3_64_intdigest(block.data) for block in blocks), np.uint64, len(chosen))

    def _bytes_of(self, chosen: Indices) -> int:
        """How many bytes `_checksums` goes through."""
        return len(chosen) * self._attachment.attached.block_bytes


class CopiedSlots(ReservedSlots):
    """Private buffers for the keys that a lookup did not find; the daemon knows nothing of them until they are sent."""

    def __init__(self, attachment: Owner, wish: Wish, found: States, parent: bytes | None, timeout_s: float) -> None:
        missing = found == Outcome.MISS
        outcomes = np.where(missing, ReserveOutcome.NEW, ReserveOutcome.PRESENT).astype(np.uint8)
        self._wish = wish
        self._parent = parent
        block_bytes = attachment.attached.block_bytes
        self._blocks = {i: np.zeros(block_bytes, np.uint8) for i in np.flatnonzero(missing).tolist()}
        super().__init__(attachment, outcomes, None, 0.0, timeout_s)

    def _block(self, i: int) -> Bytes:
        return self._blocks[i]

    def _runs(self, chosen: Indices) -> list[tuple[Keys, list[Bytes], bytes | None]]:
        """Keys, blocks and parent of each run of neighbours: a stream names the parent of its first key only."""
        keys = self._wish.keys
        found = []
        for run in np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1):
            first = int(run[0])
            parent = keys[first - 1] if first else self._parent
            found.append((keys[first : first + len(run)], [self._blocks[i] for i in run.tolist()], parent))
        return found


SEALED_AS = np.zeros(len(ReserveOutcome) + 1, np.uint8)
"""What a Write's outcome means for a seal. EXPIRED where nothing was published for the key, by us or another."""
SEALED_AS[ReserveOutcome.NEW] = SealOutcome.SEALED
SEALED_AS[ReserveOutcome.PRESENT] = SealOutcome.ALREADY_SEALED
SEALED_AS[ReserveOutcome.BEING_WRITTEN] = SealOutcome.EXPIRED
SEALED_AS[ReserveOutcome.NO_ROOM] = SealOutcome.EXPIRED
