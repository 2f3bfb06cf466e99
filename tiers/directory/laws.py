"""The laws of docs/laws.md, as code: what must hold between any two operations."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.blocks import NO_SLOT, NOWHERE
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.directory.holds import Part
from hybridkv.tiers.directory.moves import Stage
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.extents import ExtentState, SlotUse
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import BlockState


def check(state: State) -> list[str]:
    """One line for each law found broken. Linear in the rows; called under the lock."""
    found = list(state.broken)
    found += _blocks_have_copies(state)
    for book in state.books:
        found += book.check()
        found += _slots_match(state, book) if isinstance(book, MappedBook) else _disk_counts_match(state, book)
        found += _policy_matches(state, book)
    found += _reserved_have_owners(state)
    found += _transfers_are_sound(state)
    found += _leases_are_counted(state)
    found += _holds_are_counted(state)
    found += _chains_are_counted(state)
    found += state.standings.check() + state.speculation.check() + state.unverified.check()
    found += _quotas_are_exact(state)
    found += state.mapper.check() if state.mapper is not None else []
    return found


def _blocks_have_copies(state: State) -> list[str]:
    """Law 1, and that the keys of sealed and reserved rows lead to them, and nothing else is findable."""
    blocks, found = state.blocks, []
    sealed = np.flatnonzero(blocks.state == BlockState.SEALED)
    bare = sealed[blocks.copies(sealed) == 0]
    found += [f"law 1: sealed row {row} has no copy" for row in bare.tolist()]
    found += blocks.check()
    return found


def _slots_match(state: State, book: MappedBook) -> list[str]:
    """Law 1 and 2: resident slots and slot columns name each other; headers agree on what is readable."""
    blocks, found, column = state.blocks, [], state.blocks.slot[book.index]
    rows = np.flatnonzero(column != NO_SLOT)
    for row, slot in zip(rows.tolist(), column[rows].tolist(), strict=True):
        if book.table.use_of(slot) is not SlotUse.RESIDENT or book.table.owner_of(slot) != row:
            found.append(f"law 1: {book.id}: row {row} lies in slot {slot}, which belongs to another")
    resident = book.table.bytes_by_use[SlotUse.RESIDENT]
    bytes_of_rows = int(state.sizes[blocks.namespace[rows]].sum()) if len(rows) else 0
    if resident != bytes_of_rows:
        found.append(f"law 2: {book.id}: {resident} bytes are resident, the blocks there have {bytes_of_rows}")
    incoming = sum(t.size for t in state.transfers.values() if t.target == book.index)
    if incoming != book.table.bytes_by_use[SlotUse.INCOMING]:
        found.append(f"law 2: {book.id}: transfers bring {incoming} bytes, slots for other many are taken")
    if book.headers is not None and len(rows):
        odd = book.headers.generations(book.table.header_indices(column[rows])) % 2 == 1
        found += [
            f"law 3: {book.id}: row {row} is resident but its header says unreadable" for row in rows[odd].tolist()
        ]
    quarantined = sum(1 for slot in book.haunted_slots if book.table.use_of(slot) is SlotUse.FREE)
    if quarantined:
        found.append(f"law 6: {book.id}: {quarantined} slots a lapsed holder may touch are free")
    return found


def _disk_counts_match(state: State, book: DiskBook) -> list[str]:
    blocks = state.blocks
    rows = np.flatnonzero(blocks.slot[book.index] != NO_SLOT)
    there = Counter(state.sizes[blocks.namespace[rows]].tolist())
    coming = Counter(t.size for t in state.transfers.values() if t.target == book.index)
    found = []
    if there != Counter({size: n for size, n in book.blocks.items() if n}):
        found.append(f"law 2: disk: {dict(there)} blocks are there, {book.blocks} are counted")
    if coming != Counter({size: n for size, n in book.incoming.items() if n}):
        found.append(f"law 2: disk: {dict(coming)} blocks are coming, {book.incoming} are counted")
    return found


def _quotas_are_exact(state: State) -> list[str]:
    """Law 2 by tenant: what is on each account is what its blocks, and what lapsed holders may touch, take."""
    quotas = state.quotas
    if quotas is None:
        return []
    there, found = np.zeros_like(quotas.used), []
    for book in state.books:
        if isinstance(book, MappedBook):
            found += _slots_are_charged(state, book, there)
            continue
        rows = np.flatnonzero(state.blocks.slot[book.index] != NO_SLOT)
        coming = [t.row for t in state.transfers.values() if t.target == book.index]
        rows = np.concatenate([rows, np.array(coming, np.int64)])
        sizes = state.sizes[state.blocks.namespace[rows]]
        nbytes = np.array([book.bytes_on_disk(size) for size in sizes.tolist()], np.int64)
        np.add.at(there[:, book.id.tier], quotas.of_spaces(state.blocks.namespace[rows]), nbytes)
    for account, name in enumerate(quotas.names):
        if (there[account] != quotas.used[account]).any():
            found.append(f"law 2: tenant {name!r}: {quotas.used[account]} bytes are charged, {there[account]} are used")
    return found


def _slots_are_charged(state: State, book: MappedBook, there: NDArray[np.int64]) -> list[str]:
    """Adds the bytes of the pool's used slots to `there`, by account; and each block's slot is on its owner's."""
    quotas, found = state.quotas, []
    assert quotas is not None
    assert book.charges is not None
    for extent in book.table.extents_in(ExtentState.CARVED, ExtentState.EMPTYING):
        for use in SlotUse:
            slots, _ = book.table.slots_in(extent, use)
            accounts = book.charges.accounts[book.table.header_indices(slots)]
            if use not in (SlotUse.FREE, SlotUse.LANE):
                np.add.at(there[:, book.id.tier], accounts, book.table.sizes_of(slots))
            elif accounts.any():
                found.append(f"law 2: {book.id}: a {use.name.lower()} slot is on a tenant's account")
    column = state.blocks.slot[book.index]
    rows = np.flatnonzero(column != NO_SLOT)
    owners = quotas.of_spaces(state.blocks.namespace[rows])
    if (book.charges.accounts[book.table.header_indices(column[rows])] != owners).any():
        found.append(f"law 2: {book.id}: a block lies in a slot that is on another tenant's account")
    return found


def _policy_matches(state: State, book: MappedBook | DiskBook) -> list[str]:
    here = int(np.count_nonzero(state.blocks.slot[book.index] != NO_SLOT))
    if len(book.policy) != here:
        return [f"law 1: {book.id}: the policy orders {len(book.policy)} blocks, {here} are there"]
    return []


def _reserved_have_owners(state: State) -> list[str]:
    """Law 6 and 5: every reserved row belongs to one open reservation, every reserved byte to one of its slots."""
    blocks, found = state.blocks, []
    owned: Counter[int] = Counter()
    reserved_bytes = [0] * len(state.books)
    for reservation in state.ledger.reservations.values():
        live = np.isin(reservation.parts, (Part.WAITING, Part.OPEN))
        owned.update(reservation.rows[live].tolist())
        size = state.spaces[reservation.namespace].block_bytes
        reserved_bytes[reservation.pool] += size * int(np.count_nonzero(reservation.parts == Part.OPEN))
    reserved = set(np.flatnonzero(blocks.state == BlockState.RESERVED).tolist())
    if reserved != set(owned) or any(count > 1 for count in owned.values()):
        found.append(f"law 6: {len(reserved)} rows are reserved, open reservations own {len(owned)}")
    for book in state.books:
        marked = book.table.bytes_by_use[SlotUse.RESERVED] if isinstance(book, MappedBook) else 0
        if marked != reserved_bytes[book.index]:
            found.append(
                f"law 6: {book.id}: {marked} bytes are reserved, reservations own {reserved_bytes[book.index]}"
            )
    return found


def _transfers_are_sound(state: State) -> list[str]:
    """Law 3 and 6: a transfer in flight has its source, marks its row, and its destination is not readable."""
    blocks, found = state.blocks, []
    for row, transfer in state.transfers.items():
        if transfer.stage not in (Stage.QUEUED, Stage.RUNNING) or not blocks.busy[row]:
            found.append(f"law 6: the transfer of row {row} has ended but is still listed")
        if blocks.slot[transfer.source][row] != transfer.source_slot:
            found.append(f"law 3: the source of row {row} moved while its transfer is in flight")
        if transfer.source != transfer.target and blocks.slot[transfer.target][row] != NO_SLOT:
            found.append(f"law 3: the destination of row {row} is readable before its commit")
    busy = int(np.count_nonzero(blocks.busy))
    if busy != len(state.transfers):
        found.append(f"law 6: {busy} rows are busy, {len(state.transfers)} transfers are in flight")
    return found


def _leases_are_counted(state: State) -> list[str]:
    """Law 4 and 6: every leased copy is there, and counts equal leases."""
    blocks, found = state.blocks, []
    expected = [np.zeros(len(blocks.state), np.int64) for _ in state.books]
    for lease in state.ledger.leases.values():
        for pool, row in zip(lease.pools[lease.held].tolist(), lease.rows[lease.held].tolist(), strict=True):
            expected[pool][row] += 1
            if blocks.slot[pool][row] == NO_SLOT:
                found.append(f"law 4: row {row} is leased in {state.books[pool].id} but is not there")
    for pool, counts in enumerate(expected):
        wrong = np.flatnonzero(counts != blocks.leases[pool])
        found += [f"law 6: row {row} counts wrong leases in {state.books[pool].id}" for row in wrong.tolist()]
    return found


def _holds_are_counted(state: State) -> list[str]:
    expected = np.zeros(len(state.blocks.state), np.int64)
    for session in state.ledger.sessions.values():
        for request in session.requests.values():
            expected[np.fromiter(request.rows, np.int64, len(request.rows))] += 1
    expected += state.blocks.waiting
    for row, count in (state.mapper.holds() if state.mapper else {}).items():
        expected[row] += count
    wrong = np.flatnonzero(expected != state.blocks.holds)
    return [f"law 6: row {row} counts {state.blocks.holds[row]} holders, has {expected[row]}" for row in wrong.tolist()]


def _chains_are_counted(state: State) -> list[str]:
    """The counts law 7 rests on equal what the parents say."""
    blocks, found = state.blocks, []
    live = np.flatnonzero(np.isin(blocks.state, (BlockState.SEALED, BlockState.RESERVED)))
    sealed = live[blocks.state[live] == BlockState.SEALED]
    wrong = sealed[blocks.highest[sealed] != blocks.highest_of(sealed)]
    found += [f"law 7: row {row} has a wrong highest tier" for row in wrong.tolist()]
    children = live[blocks.parent[live] != NO_ROW]
    for tier, counts in enumerate(blocks.children_at):
        expected = np.zeros(len(blocks.state), np.int64)
        at = children[(blocks.highest[children] == tier) & (blocks.highest[children] != NOWHERE)]
        np.add.at(expected, blocks.parent[at], 1)
        off = np.flatnonzero(expected != counts)
        found += [f"law 7: row {row} counts wrong children in tier {tier}" for row in off.tolist()]
    return found
