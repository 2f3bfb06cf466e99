"""Mapping blocks into sequences and out of them; and what sequences hear when a block moves or goes.

Everything here runs under the directory's lock. It keeps, for every sequence: the backing and the table in agreement with
the directory, the reverse map, the `mapped` counts, and what sequences hold in the `holds` column.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from hybridkv.paging.backing import Blocks
from hybridkv.paging.entries import PageFlag
from hybridkv.paging.laws import check
from hybridkv.paging.reverse import ReverseMap
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.columns import add_at
from hybridkv.tiers.directory.holds import Reservation
from hybridkv.tiers.replacement import Rows

WRITABLE_FLAGS = PageFlag.RESIDENT | PageFlag.PRIVATE


class Mappings:
    """All sequences by number, and the directory's `Mapper`."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.sequences: dict[int, Sequence] = {}
        self.reverse = ReverseMap()
        self.held: Counter[int] = Counter()
        self.evictions = 0
        """Entries that lost their copy because it was evicted or demoted."""
        self.losses = 0
        """Blocks of sequences that no tier has any more."""
        self.filling: set[int] = set()
        """Reservations whose slots faults are about to map."""
        directory.state.mapper = self

    # ------------------------------------------------------------------------------------------------ in

    def map_sealed(self, sequence: Sequence, blocks: Blocks, rows: Rows) -> None:
        """Sealed `rows` (NO_ROW nowhere) are the sequence's blocks at `blocks`, where nothing was."""
        if not len(blocks):
            return
        sequence.backing.set(blocks, Backed.SEALED, rows)
        self.reverse.add(rows, sequence.id, blocks)
        add_at(self.directory.blocks.mapped, rows, 1)
        self._hold_again(sequence, blocks, rows)

    def map_writable(
        self, sequence: Sequence, blocks: Blocks, reservation: Reservation, positions: NDArray[np.int64]
    ) -> None:
        """Slots of a reservation are the sequence's to write at `blocks`, where nothing was."""
        if not len(blocks):
            return
        sequence.backing.set(blocks, Backed.WRITABLE, reservation.rows[positions])
        sequence.table.map(blocks, sequence.pool, reservation.slots[positions], WRITABLE_FLAGS)
        for block, position in zip(blocks.tolist(), positions.tolist(), strict=True):
            sequence.writable[block] = (reservation, position)

    def enter(self, sequence: Sequence, blocks: Blocks) -> int:
        """Note where the sealed ones of `blocks` lie that are in the sequence's pool: how many had no entry."""
        absent = sequence.table.words(blocks) == 0
        if not absent.any():
            return 0
        blocks = blocks[absent]
        rows = sequence.backing.rows(blocks)
        slots = self.directory.blocks.slot[sequence.pool][rows]
        here = (sequence.backing.kinds(blocks) == Backed.SEALED) & (slots != NO_SLOT)
        unverified = self.directory.state.unverified
        if unverified.any_in(sequence.pool):
            here &= ~unverified.among(rows, sequence.pool)
        if here.any():
            sequence.table.map(blocks[here], sequence.pool, slots[here], PageFlag.RESIDENT)
        return int(np.count_nonzero(here))

    # ------------------------------------------------------------------------------------------------ out

    def unmap_sealed(self, sequence: Sequence, blocks: Blocks) -> None:
        """The sequence has these SEALED blocks no more; private ones that nobody has are removed from every tier."""
        if not len(blocks):
            return
        table = self.directory.blocks
        rows = sequence.backing.rows(blocks)
        self._let_go(sequence, blocks, rows)
        sequence.backing.set(blocks, Backed.NOTHING)
        sequence.table.unmap(blocks)
        self.reverse.remove(rows, sequence.id, blocks)
        add_at(table.mapped, rows, -1)
        rows = np.unique(rows)
        self.directory.copies.remove(rows[(table.private[rows] > 0) & (table.mapped[rows] == 0)])

    def forget_writable(self, sequence: Sequence, blocks: Blocks) -> list[tuple[Reservation, NDArray[np.int64]]]:
        """The sequence writes these WRITABLE blocks no more: their places, by reservation, for the caller to end or seal."""
        places = self.places(sequence, blocks)
        for block in blocks.tolist():
            del sequence.writable[block]
        sequence.backing.set(blocks, Backed.NOTHING)
        sequence.table.unmap(blocks)
        return places

    def places(self, sequence: Sequence, blocks: Blocks) -> list[tuple[Reservation, NDArray[np.int64]]]:
        """Reservations and positions of WRITABLE blocks."""
        found: dict[int, tuple[Reservation, list[int]]] = {}
        for block in blocks.tolist():
            reservation, position = sequence.writable[block]
            found.setdefault(reservation.id, (reservation, []))[1].append(position)
        return [(reservation, np.array(positions, np.int64)) for reservation, positions in found.values()]

    def seal(self, sequence: Sequence, blocks: Blocks, checksums: NDArray[np.uint64] | None = None) -> None:
        """WRITABLE blocks are sealed, under whatever keys they have; the sequence maps them."""
        for reservation, some in self._by_reservation(sequence, blocks):
            positions = np.array([sequence.writable[block][1] for block in some.tolist()], np.int64)
            rows = reservation.rows[positions]
            sums = None if checksums is None else checksums[np.searchsorted(blocks, some)]
            self.directory.writes.seal(reservation, positions, sums)
            self.forget_writable(sequence, some)
            self.map_sealed(sequence, some, rows)
            self.enter(sequence, some)

    def _by_reservation(self, sequence: Sequence, blocks: Blocks) -> list[tuple[Reservation, Blocks]]:
        groups: dict[int, tuple[Reservation, list[int]]] = {}
        for block in blocks.tolist():
            reservation = sequence.writable[block][0]
            groups.setdefault(reservation.id, (reservation, []))[1].append(block)
        return [(reservation, np.array(some, np.int64)) for reservation, some in groups.values()]

    def clone(self, parent: Sequence, child: Sequence) -> None:
        """`child` maps all that `parent` has, which is sealed: copies come with the first write."""
        child.backing = parent.backing.copy()
        child.table = parent.table.clone()
        blocks = parent.sealed()
        rows = parent.backing.rows(blocks)
        self.reverse.add(rows, child.id, blocks)
        add_at(self.directory.blocks.mapped, rows, 1)
        child.sticky = set(parent.sticky)
        self._hold_again(child, blocks, rows)

    # ------------------------------------------------------------------------------------------------ holds

    def hold(self, sequence: Sequence, blocks: Iterable[int], count: int) -> None:
        """The sealed ones of `blocks` are held so many times more (or fewer)."""
        array = np.fromiter(blocks, np.int64)
        array = array[sequence.backing.kinds(array) == Backed.SEALED]
        self._change_holds(sequence.backing.rows(array), np.full(len(array), count, np.int64))

    def _hold_again(self, sequence: Sequence, blocks: Blocks, rows: Rows) -> None:
        if sequence.sticky or sequence.kept:
            counts = np.fromiter((sequence.holds(block) for block in blocks.tolist()), np.int64, len(blocks))
            self._change_holds(rows[counts > 0], counts[counts > 0])

    def _let_go(self, sequence: Sequence, blocks: Blocks, rows: Rows) -> None:
        if sequence.sticky or sequence.kept:
            counts = np.fromiter((sequence.holds(block) for block in blocks.tolist()), np.int64, len(blocks))
            self._change_holds(rows[counts > 0], -counts[counts > 0])

    def _change_holds(self, rows: Rows, counts: NDArray[np.int64]) -> None:
        """A block that any sequence holds has one hold in the directory, for its column is narrow."""
        first, last = [], []
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            before = self.held[row]
            self.held[row] = before + count
            if not before:
                first.append(row)
            elif not self.held[row]:
                del self.held[row]
                last.append(row)
        self.directory.blocks.holds[np.array(first, np.int64)] += 1
        self.directory.blocks.holds[np.array(last, np.int64)] -= 1

    # ------------------------------------------------------------------------------------------------ what it hears

    def left(self, rows: Rows, pool: int) -> None:
        """See `Mapper`."""
        slots = self.directory.blocks.slot[pool][rows]
        uses: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
            for number, block in self.reverse.of(row):
                if self.sequences[number].pool == pool:
                    uses[number].append((block, slot))
        for number, places in uses.items():
            self._left(self.sequences[number], np.array(places, np.int64))

    def _left(self, sequence: Sequence, places: NDArray[np.int64]) -> None:
        """Columns of `places`: block, and the slot it has now."""
        places = places[sequence.table.words(places[:, 0]) != 0]
        gone, moved = places[places[:, 1] == NO_SLOT], places[places[:, 1] != NO_SLOT]
        sequence.table.unmap(gone[:, 0])
        if not sequence.suspended:
            self.evictions += len(gone)
        if len(moved):
            sequence.table.map(moved[:, 0], sequence.pool, moved[:, 1], PageFlag.RESIDENT)

    def gone(self, rows: Rows) -> None:
        """See `Mapper`."""
        for row in rows.tolist():
            if self.held.pop(row, 0):
                self.directory.blocks.holds[row] -= 1
            for number, block in self.reverse.of(row):
                sequence = self.sequences[number]
                blocks = np.array([block], np.int64)
                sequence.backing.set(blocks, Backed.LOST)
                sequence.table.unmap(blocks)
                self.losses += 1
            self.reverse.forget(row)
        self.directory.blocks.mapped[rows] = 0

    def holds(self) -> Mapping[int, int]:
        """See `Mapper`."""
        return dict.fromkeys(self.held, 1)

    def check(self) -> list[str]:
        """See `Mapper`."""
        return check(self)
