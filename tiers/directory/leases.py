"""Leases: a session's timed hold on copies, from the first hit to the release, the lapse or the owner's end."""

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.accesses import Accesses
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.directory.columns import add_at
from hybridkv.tiers.directory.copies import Copies
from hybridkv.tiers.directory.holds import Lease, Session
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.errors import ExpiredError
from hybridkv.tiers.points import point
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.replacement import NO_ROW, Rows


class Leases:
    """Opens, extends and ends leases. Called under the lock."""

    def __init__(self, state: State, copies: Copies, accesses: Accesses) -> None:
        self._state = state
        self._copies = copies
        self._accesses = accesses

    def open(self, session: Session, rows: Rows, *, views: bool, request: int | None, life_s: float) -> Lease:
        """A lease over `rows` (NO_ROW where there is no block) that holds nothing yet."""
        number = self._state.ledger.next_number()
        lease = Lease(
            number,
            session.id,
            request,
            rows.copy(),
            np.full(len(rows), -1, np.int16),
            np.zeros(len(rows), np.bool_),
            views,
            self._state.clock.now() + life_s,
        )
        lease.begun_at = self._state.clock.now()
        self._state.ledger.add(lease)
        return lease

    def hold(self, lease: Lease, positions: NDArray[np.int64], pool: int) -> None:
        """The copies of the keys at `positions` in `pool` are leased from now on."""
        if not len(positions):
            return
        rows = lease.rows[positions]
        lease.pools[positions] = pool
        lease.held[positions] = True
        add_at(self._state.blocks.leases[pool], rows, 1)
        self._tell_headers(rows, pool)
        session = self._state.ledger.sessions[lease.session]
        self._accesses.join(session, lease.request, rows, max(0.0, lease.expires_at - self._state.clock.now()))
        point("lease.granted")

    def slots(self, lease: Lease) -> NDArray[np.void]:
        """Translations of what is held, all zero elsewhere. SLOT_DTYPE [n]."""
        pools = _distinct(lease.pools[lease.held])
        if len(pools) == 1 and lease.held.all():
            return self._state.mapped(pools[0]).translations(self._state.blocks.slot[pools[0]][lease.rows])
        told = np.zeros(len(lease.rows), SLOT_DTYPE)
        for pool in pools:
            where = np.flatnonzero(lease.held & (lease.pools == pool))
            slots = self._state.blocks.slot[pool][lease.rows[where]]
            told[where] = self._state.mapped(pool).translations(slots)
        return told

    def renew(self, lease: Lease, life_s: float) -> bool:
        """False when it has lapsed. Its slots stay in quarantine: a renewal does not say that its owner stopped looking."""
        if lease.lapsed:
            return False
        lease.expires_at = self._state.clock.now() + life_s
        return True

    def release(self, lease: Lease) -> None:
        """The owner is done. A lease without a request touches what it held. ExpiredError when it had lapsed."""
        if lease.lapsed:
            self._confirm(lease)
            raise ExpiredError(f"lease: {lease.id} lapsed before this call; what was read since then may be wrong")
        rows = lease.rows[lease.held]
        if lease.request is None:
            self._accesses.touch(rows[::-1])
        self._let_go(lease)
        if lease.request is None:
            self._accesses.hinting.ended(rows, lease.hints)
        self._state.ledger.drop(lease)
        point("lease.released")
        self._copies.sweep(rows)

    def lapse(self, lease: Lease) -> None:
        """Its time is over, or its owner's grace. Copies are free to move; slots its owner may look at are not reused."""
        rows, held = lease.rows[lease.held], lease.held.copy()
        maps = self._state.ledger.sessions[lease.session].maps
        if lease.views and maps:
            for pool in _distinct(lease.pools[held]):
                slots = self._state.blocks.slot[pool][lease.rows[held & (lease.pools == pool)]].tolist()
                self._state.mapped(pool).haunt(slots)
                lease.haunts.extend((pool, slot) for slot in slots)
        lease.lapsed, lease.lapsed_at = True, self._state.clock.now()
        self._state.counters["leases_lapsed"] += 1
        point("lease.lapsed")
        self._let_go(lease)
        self._copies.sweep(rows)

    def end(self, lease: Lease) -> None:
        """The owner is proved gone, or says goodbye: nothing of it stays."""
        if lease.lapsed:
            self._confirm(lease)
            return
        rows = lease.rows[lease.held]
        self._let_go(lease)
        self._state.ledger.drop(lease)
        self._copies.sweep(rows)

    def _let_go(self, lease: Lease) -> None:
        for pool in _distinct(lease.pools[lease.held]):
            rows = lease.rows[lease.held & (lease.pools == pool)]
            add_at(self._state.blocks.leases[pool], rows, -1)
            self._tell_headers(rows, pool)
        lease.held[:] = False
        lease.rows[:] = NO_ROW

    def _confirm(self, lease: Lease) -> None:
        for pool, slot in lease.haunts:
            self._state.mapped(pool).release([slot])
        lease.haunts.clear()
        self._state.ledger.drop(lease)

    def _tell_headers(self, rows: Rows, pool: int) -> None:
        book, blocks = self._state.books[pool], self._state.blocks
        if isinstance(book, MappedBook) and book.headers is not None:
            slots = blocks.slot[pool][rows]
            there = slots != NO_SLOT
            if not there.all():
                rows, slots = rows[there], slots[there]
            indices = book.table.header_indices(slots)
            book.headers.set_holders(indices, blocks.leases[pool][rows].astype(np.uint32))


def _distinct(pools: NDArray[np.int16]) -> list[int]:
    """The pools that occur; nearly always it is one."""
    if not len(pools):
        return []
    first = int(pools[0])
    return [first] if (pools == first).all() else np.unique(pools).tolist()
