"""The blocks of a lease: what can be done with them without the daemon, whichever client took it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.core import States, Wish, prefix_of
from hybridkv.service.client.hold import Hold, Owner
from hybridkv.service.client.memory import Events, Memory, Stack
from hybridkv.service.client.outputs import Rows, rows_of
from hybridkv.service.replies import AcquireReply
from hybridkv.tiers.device.views import tensor_of
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.states import Outcome

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


class LeasedBlocks(Hold, ABC):
    """A lease on the blocks that were HIT. Thread-safe.

    `states` holds an Outcome per key, `prefix` how many keys from the start are HIT. What `view` and `array` give may
    be used while the lease is held and not after: it keeps its memory mapped, but the slot goes to other blocks. A
    lease that lapsed (the process slept through its life, the daemon restarted) raises ExpiredError; `valid` says so.
    """

    states: States

    def __init__(self, attachment: Owner, wish: Wish, hold_id: int | None, life_s: float, timeout_s: float) -> None:
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

    def stacks(self, indices: Indices) -> list[Stack]:
        """The HITs at `indices` (int64) as few read-only arrays, no copy, to be copied many at a time.

        Raises as `array` does.
        """
        for i in indices.tolist():
            self._check_hit(i)
        return self._stacks(indices)

    def _stacks(self, indices: Indices) -> list[Stack]:
        first = np.zeros(1, np.int64)
        return [Stack(np.array([i]), self._block(i)[np.newaxis], first) for i in indices.tolist()]

    def __repr__(self) -> str:
        return f"Lease({len(self)} keys, prefix {self.prefix}, {self._why_not() or 'held'})"

    def _check_hit(self, i: int) -> None:
        self._check_held()
        if not -len(self) <= i < len(self):
            raise InvalidArgumentError("i", f"{i} is outside of the lease's {len(self)} keys")
        if self.states[i] != Outcome.HIT:
            raise FailedPreconditionError(f"key {i} is {Outcome(self.states[i]).name}, not HIT")

    def _chosen(self, rows: Sequence[int] | None) -> Indices:
        """The keys that rows stand for. Raises as `read_into` does."""
        self._check_held()
        chosen = np.arange(len(self)) if rows is None else np.asarray(rows, np.int64)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise InvalidArgumentError("rows", f"must be within the lease's {len(self)} keys")
        return chosen

    def _target(self, out: Any, count: int) -> Rows:
        return rows_of(out, count, self._attachment.attached.block_bytes)

    def _read_into(self, target: Rows, chosen: Indices) -> States:
        """See `read_into`."""
        states = self.states[chosen]
        hits = np.flatnonzero(states == Outcome.HIT)
        states[hits[~self._copy(chosen[hits], hits, target)]] = Outcome.MISS
        return states

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
    def _copy(self, blocks: Indices, rows: Indices, target: Rows) -> npt.NDArray[np.bool_]:
        """Copy HITs to rows; False where a block was revoked meanwhile."""


class MappedBlocks(LeasedBlocks):
    """Blocks that lie in memory that this process maps."""

    def __init__(self, attachment: Owner, memory: Memory, wish: Wish, reply: AcquireReply, timeout_s: float) -> None:
        self._memory = memory
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

    def _stacks(self, indices: Indices) -> list[Stack]:
        self._check_views()
        return self._memory.stacks(self._slots, indices)

    def _events(self) -> Events:
        return self._memory.events(self._viewed)

    def _check_views(self) -> None:
        if not self._wish.views:
            raise FailedPreconditionError("this lease was taken with views=False: use read_into")

    def _copy(self, blocks: Indices, rows: Indices, target: Any) -> npt.NDArray[np.bool_]:
        return self._memory.copy(self._slots[blocks], rows, target)


class CopiedBlocks(LeasedBlocks):
    """Private copies that came over a stream; the daemon holds nothing for them."""

    def __init__(self, attachment: Owner, wish: Wish, timeout_s: float) -> None:
        self._blocks: dict[int, Bytes] = {}
        self.states = np.full(len(wish.keys), Outcome.MISS, np.uint8)
        super().__init__(attachment, wish, None, 0.0, timeout_s)

    def _block(self, i: int) -> Bytes:
        return self._blocks[i % len(self)]

    def _copy(self, blocks: Indices, rows: Indices, target: Rows) -> npt.NDArray[np.bool_]:
        for block, row in zip(blocks.tolist(), rows.tolist(), strict=True):
            target.put(row, self._blocks[block])
        return np.ones(len(blocks), np.bool_)

    def _missing(self) -> Indices:
        """The keys to ask for."""
        return np.flatnonzero(self.states != Outcome.HIT) if self._blocks else np.arange(len(self))

    def _take_blocks(self, missing: Indices, states: States, fresh: dict[int, Bytes]) -> None:
        """What came for `missing`; `fresh` by position among those."""
        for position, block in fresh.items():
            block.flags.writeable = False
            self._blocks[int(missing[position])] = block
        found = self.states.copy()
        found[missing] = states
        self.states = found
