"""The end of a fault: all its blocks are mapped in one step, read ones leased or noted as used. Under the directory's lock."""

import numpy as np
from numpy.typing import NDArray

from hybridkv.paging.backing import Blocks
from hybridkv.paging.fault import Fault, Fresh, Part
from hybridkv.paging.looking import look
from hybridkv.paging.mappings import Mappings
from hybridkv.paging.planning import sealed_rows
from hybridkv.paging.replies import FaultReply
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed, PageState
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.points import point

_LEASES = 64
"""Leases a sequence remembers before it forgets those that have ended."""


class Landing:
    """Maps what a fault got, and says what its caller is told."""

    def __init__(self, directory: Directory, mappings: Mappings) -> None:
        self._directory = directory
        self._mappings = mappings

    def land(self, fault: Fault) -> FaultReply:
        """Everything is there: it is the sequences' from now on."""
        new = self._map(fault)
        point("page.mapped")
        for part in fault.parts:
            self._wake_up(part.sequence)
            if not part.write:
                self._enter(fault, part)
        asked = [(part.sequence, part.blocks) for part in fault.parts]
        states, slots = look(self._directory, asked)
        if new:
            marks = [(part.sequence.id, block) in new for part in fault.parts for block in part.blocks.tolist()]
            states[np.array(marks, np.bool_)] = PageState.FRESH
        leases = tuple(self._lease_for_caller(fault, part) for part in fault.parts)
        if not fault.hold:
            self._note_access(fault)
        fault.minor += max(0, fault.entered - fault.major)
        sizes = tuple(part.sequence.page_blocks for part in fault.parts)
        return FaultReply(states, slots, leases, fault.life_s, fault.minor, fault.major, sizes)

    def _map(self, fault: Fault) -> set[tuple[int, int]]:
        """Slots that were reserved become pages. (sequence, block) of those that have nothing in them."""
        new: set[tuple[int, int]] = set()
        for fresh in fault.reserves:
            self._mappings.filling.discard(fresh.reservation.id)
            for sequence, blocks, positions in fresh.places():
                sequence.busy.difference_update(blocks.tolist())
                blocks, positions = self._without_lost(fault, fresh, sequence, blocks, positions)
                sealed = sequence.backing.kinds(blocks) == Backed.SEALED
                self._mappings.unmap_sealed(sequence, blocks[sealed])
                self._mappings.map_writable(sequence, blocks, fresh.reservation, positions)
                new.update((sequence.id, block) for block in blocks[~sealed].tolist())
        return new

    def _without_lost(
        self, fault: Fault, fresh: Fresh, sequence: Sequence, blocks: Blocks, positions: NDArray[np.int64]
    ) -> tuple[Blocks, NDArray[np.int64]]:
        """Blocks of the same pages that were lost meanwhile stay lost, but for those that were asked for."""
        lost = sequence.backing.kinds(blocks) == Backed.LOST
        if not lost.any():
            return blocks, positions
        asked = [part.blocks for part in fault.parts if part.sequence is sequence and part.write]
        lost &= ~np.isin(blocks, np.concatenate(asked))
        self._directory.writes.abort(fresh.reservation, positions[lost])
        return blocks[~lost], positions[~lost]

    def _wake_up(self, sequence: Sequence) -> None:
        if sequence.suspended:
            sequence.suspended = False
            self._mappings.hold(sequence, sequence.sticky, 1)

    def _enter(self, fault: Fault, part: Part) -> None:
        sequence = part.sequence
        pages = sequence.pages(part.blocks, whole=False)
        fault.entered += self._mappings.enter(sequence, pages) // sequence.page_blocks

    def _note_access(self, fault: Fault) -> None:
        """What was read was used: once, the last block first. (A lease notes it at its end.)"""
        read = [sealed_rows(part.sequence, part.blocks) for part in fault.parts if not part.write]
        if read:
            self._directory.accesses.touch(np.concatenate(read)[::-1])

    def _lease_for_caller(self, fault: Fault, part: Part) -> int:
        """Lease the readable blocks for whoever asked to hold them. The lease's number, 0 for none."""
        if part.write or not fault.hold:
            return 0
        rows = sealed_rows(part.sequence, part.blocks)
        rows = rows[self._directory.blocks.slot[part.sequence.pool][rows] != NO_SLOT]
        if not len(rows):
            return 0
        lease = self._directory.leases.open(fault.session, rows, views=True, request=None, life_s=fault.life_s)
        self._directory.leases.hold(lease, np.arange(len(rows)), part.sequence.pool)
        leases = part.sequence.leases
        if len(leases) >= _LEASES:
            leases.intersection_update(self._directory.state.ledger.leases)
        leases.add(lease.id)
        return lease.id
