"""The laws of docs/laws.md as far as sequences are concerned, as code: `Directory.check()` asks for it."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from hybridkv.paging.entries import PageFlag, flags_of, offsets_of, pools_of
from hybridkv.paging.states import Backed
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.holds import Part
from hybridkv.tiers.states import BlockState

if TYPE_CHECKING:
    from hybridkv.paging.mappings import Mappings
    from hybridkv.paging.sequence import Sequence


def check(mappings: "Mappings") -> list[str]:
    """One line for each law found broken. Linear in what is mapped; called under the lock."""
    found: list[str] = []
    used: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for sequence in mappings.sequences.values():
        found += _entries_match(mappings, sequence)
        found += _sealed_are_known(mappings, sequence, used, held)
        found += _writable_are_owned(mappings, sequence)
    found += _uses_are_counted(mappings, used)
    found += _private_have_users(mappings)
    if held != mappings.held:
        found.append(f"law 6: sequences hold {dict(held)}, {dict(mappings.held)} is counted")
    return found


def _entries_match(mappings: "Mappings", sequence: "Sequence") -> list[str]:
    """Law 3: what the table says lies where it says, and may be read, or written by this sequence alone."""
    table, found = mappings.directory.blocks, []
    blocks, words = sequence.table.mapped()
    kinds, rows = sequence.backing.kinds(blocks), sequence.backing.rows(blocks)
    wrong_pool = blocks[pools_of(words) != sequence.pool]
    found += [f"law 3: {sequence}: block {block} lies in another pool" for block in wrong_pool.tolist()]
    sealed = kinds == Backed.SEALED
    slots = np.where(sealed, table.slot[sequence.pool][rows], NO_SLOT)
    for block in np.flatnonzero(kinds == Backed.WRITABLE).tolist():
        reservation, position = sequence.writable[int(blocks[block])]
        slots[block] = reservation.slots[position]
    stale = blocks[offsets_of(words) != slots]
    found += [f"law 3: {sequence}: the entry of block {block} is stale" for block in stale.tolist()]
    private = (flags_of(words) & PageFlag.PRIVATE) != 0
    mistaken = blocks[private == sealed]
    found += [f"law 5: {sequence}: block {block} says wrongly who may write it" for block in mistaken.tolist()]
    return found


def _sealed_are_known(mappings: "Mappings", sequence: "Sequence", used: Counter[int], held: Counter[int]) -> list[str]:
    """Law 1 and 6: what backs a block is sealed, and its reverse entry leads here."""
    blocks = sequence.sealed()
    rows = sequence.backing.rows(blocks)
    states = mappings.directory.blocks.state[rows]
    found = [
        f"law 1: {sequence}: block {block} is backed by row {row}, which is {BlockState(state).name}"
        for block, row, state in zip(blocks.tolist(), rows.tolist(), states.tolist(), strict=True)
        if state != BlockState.SEALED
    ]
    for block, row in zip(blocks.tolist(), rows.tolist(), strict=True):
        used[row] += 1
        if count := sequence.holds(block):
            held[row] += count
        if (sequence.id, block) not in mappings.reverse.of(row):
            found.append(f"law 6: {sequence}: block {block} is missing in the reverse map")
    return found


def _writable_are_owned(mappings: "Mappings", sequence: "Sequence") -> list[str]:
    """Law 6: a block that is written has an open slot of the session's own."""
    blocks = sequence.backing.blocks(Backed.WRITABLE)
    found = []
    if blocks.tolist() != sorted(sequence.writable):
        found.append(f"law 6: {sequence}: {len(blocks)} blocks are writable, {len(sequence.writable)} have slots")
    for block, (reservation, position) in sequence.writable.items():
        if reservation.parts[position] != Part.OPEN or reservation.session != sequence.session.id:
            found.append(f"law 6: {sequence}: block {block} is written in a slot that is not its own")
        if reservation.id not in mappings.directory.state.ledger.reservations:
            found.append(f"law 6: {sequence}: block {block} is written in a reservation that has ended")
    return found


def _uses_are_counted(mappings: "Mappings", used: Counter[int]) -> list[str]:
    """Law 6: the `mapped` column and the reverse map count the same."""
    expected = np.zeros(len(mappings.directory.blocks.mapped), np.int64)
    expected[list(used)] = list(used.values())
    wrong = np.flatnonzero(expected != mappings.directory.blocks.mapped)
    found = [f"law 6: row {row} counts wrong uses by sequences" for row in wrong.tolist()]
    found += [
        f"law 6: the reverse map has {mappings.reverse.count(row)} uses of row {row}, there are {used[row]}"
        for row in mappings.reverse
        if mappings.reverse.count(row) != used[row]
    ]
    return found


def _private_have_users(mappings: "Mappings") -> list[str]:
    """Law 6: a block that no key leads to has a sequence, or a fault that makes it."""
    table = mappings.directory.blocks
    sealed = np.flatnonzero((table.private > 0) & (table.state == BlockState.SEALED) & (table.mapped == 0))
    found = [f"law 6: row {row} is private and no sequence has it" for row in sealed.tolist()]
    writing = {
        (reservation.id, position)
        for sequence in mappings.sequences.values()
        for reservation, position in sequence.writable.values()
    }
    for reservation in mappings.directory.state.ledger.reservations.values():
        opened = np.flatnonzero(reservation.parts == Part.OPEN)
        opened = opened[table.private[reservation.rows[opened]] > 0]
        if reservation.id not in mappings.filling:
            found += [
                f"law 6: position {position} of reservation {reservation.id} is no sequence's"
                for position in opened.tolist()
                if (reservation.id, position) not in writing
            ]
    return found
