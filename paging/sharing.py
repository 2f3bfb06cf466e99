"""Sharing: the longest sealed prefix is attached, forks share until they write, full blocks become findable.

Called under the directory's lock.
"""

from collections.abc import Sequence as ListOf

import numpy as np
from numpy.typing import NDArray

from hybridkv.paging.backing import Blocks
from hybridkv.paging.mappings import Mappings
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed, PublishOutcome
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.holds import Reservation
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import BlockState


class Sharing:
    """Attaches, publishes and forks."""

    def __init__(self, directory: Directory, mappings: Mappings) -> None:
        self._directory = directory
        self._mappings = mappings

    def attach(self, sequence: Sequence, first: int, keys: ListOf[bytes]) -> int:
        """Map the sealed blocks of the chain `keys` from block `first` on, as far as they are here and nothing is mapped
        there: how many."""
        if not keys:
            return 0
        rows = self._directory.sealed(sequence.session.namespace, keys)
        blocks = first + np.arange(len(keys))
        taken = (rows == NO_ROW) | np.isin(sequence.backing.kinds(blocks), (Backed.SEALED, Backed.WRITABLE))
        if sequence.busy:
            taken |= np.isin(blocks, list(sequence.busy))  # a fault is about to map these
        count = int(np.argmax(taken)) if taken.any() else len(keys)
        self._mappings.map_sealed(sequence, blocks[:count], rows[:count])
        return count

    # ------------------------------------------------------------------------------------------------ publish

    def publish(
        self,
        sequence: Sequence,
        first: int,
        keys: ListOf[bytes],
        parent: bytes,
        checksums: NDArray[np.uint64] | None,
    ) -> NDArray[np.uint8]:
        """Blocks from `first` on are full, and are those of `keys`: PublishOutcome of each, uint8 [n]."""
        blocks = first + np.arange(len(keys))
        kinds = sequence.backing.kinds(blocks)
        outcomes = np.full(len(keys), PublishOutcome.KEPT_PRIVATE, np.uint8)
        outcomes[(kinds == Backed.NOTHING) | (kinds == Backed.LOST)] = PublishOutcome.NOT_WRITABLE
        known = self._directory.blocks.find(sequence.session.namespace, keys)
        sealed = (known != NO_ROW) & (self._directory.blocks.state[known] == BlockState.SEALED)
        writable = kinds == Backed.WRITABLE
        outcomes[sequence_has(sequence, blocks, known)] = PublishOutcome.ALREADY_SEALED
        ours = np.flatnonzero(writable & (known == NO_ROW))
        self._seal(sequence, blocks, ours, [parent or self._key_before(sequence, first), *keys[:-1]], keys, checksums)
        outcomes[ours] = PublishOutcome.SEALED
        theirs = np.flatnonzero(writable & sealed)
        self._adopt(sequence, blocks[theirs], known[theirs])
        outcomes[theirs] = PublishOutcome.ALREADY_SEALED
        return outcomes

    def _key_before(self, sequence: Sequence, first: int) -> bytes:
        """The key of the block before, when it is one that others can find."""
        if first == 0:
            return b""
        row = int(sequence.backing.rows(np.array([first - 1]))[0])
        findable = row != NO_ROW and not self._directory.blocks.private[row]
        return self._directory.blocks.keys[row] if findable else b""

    def _seal(
        self,
        sequence: Sequence,
        blocks: Blocks,
        ours: NDArray[np.int64],
        parents: ListOf[bytes],
        keys: ListOf[bytes],
        checksums: NDArray[np.uint64] | None,
    ) -> None:
        for i in ours.tolist():
            reservation, position = sequence.writable[int(blocks[i])]
            self._directory.writes.rekey(reservation, np.array([position]), [keys[i]], parents[i])
        self._mappings.seal(sequence, blocks[ours], None if checksums is None else checksums[ours])

    def _adopt(self, sequence: Sequence, blocks: Blocks, rows: NDArray[np.int64]) -> None:
        """Another sealed these keys first: map its copies, give up our slots."""
        self.give_up(self._mappings.forget_writable(sequence, blocks))
        self._mappings.map_sealed(sequence, blocks, rows)
        self._mappings.enter(sequence, blocks)
        self._directory.state.counters["second_seals"] += len(blocks)

    def give_up(self, places: ListOf[tuple[Reservation, NDArray[np.int64]]]) -> None:
        """Slots that were written are needed no more."""
        for reservation, positions in places:
            self._directory.writes.abort(reservation, positions)

    # ------------------------------------------------------------------------------------------------ fork

    def seal_for_itself(self, sequence: Sequence) -> None:
        """What it writes is sealed, findable for nobody else, so that it can be shared, and can move."""
        self._mappings.seal(sequence, sequence.backing.blocks(Backed.WRITABLE))

    def release(self, sequence: Sequence) -> None:
        """The sequence gives everything back: leases first, then slots and shares."""
        self.end_leases(sequence)
        self.give_up(self._mappings.forget_writable(sequence, sequence.backing.blocks(Backed.WRITABLE)))
        self._mappings.unmap_sealed(sequence, sequence.sealed())

    def end_leases(self, sequence: Sequence) -> None:
        """What faults leased for its holder is not held any more."""
        ledger = self._directory.state.ledger
        for number in sequence.leases:
            lease = ledger.leases.get(number)
            if lease is not None and not lease.lapsed:
                self._directory.leases.end(lease)
        sequence.leases.clear()


def sequence_has(sequence: Sequence, blocks: Blocks, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where the sequence maps that very block already. bool [n]."""
    return np.asarray((rows != NO_ROW) & (sequence.backing.rows(blocks) == rows))
