"""The directory, assembled: one lock, and a part for each subject."""

from collections.abc import Sequence

import numpy as np

from hybridkv.tiers.clock import Clock
from hybridkv.tiers.directory.accesses import Accesses
from hybridkv.tiers.directory.blocks import NO_SLOT, Checksum
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.directory.choice import Choice
from hybridkv.tiers.directory.copies import Copies
from hybridkv.tiers.directory.holds import Lease, Session
from hybridkv.tiers.directory.laws import check
from hybridkv.tiers.directory.leases import Leases
from hybridkv.tiers.directory.moves import Moves
from hybridkv.tiers.directory.quotas import Charges, Quotas
from hybridkv.tiers.directory.state import Space, State
from hybridkv.tiers.directory.writes import Writes
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import BlockState


class Directory:
    """Key → copies, state, holders and access history of every block of the host.

    `lock` guards everything; parts are called with it held, so that a decision of several steps is one step to others.
    Nothing here does I/O or waits.
    """

    def __init__(
        self,
        books: Sequence[MappedBook | DiskBook],
        clock: Clock,
        *,
        half_life_s: float = 600.0,
        window_s: float = 60.0,
    ) -> None:
        """`half_life_s`: an access counts half after it; `window_s`: in which accesses count towards a promotion."""
        self.state = State(books, clock, half_life_s, window_s)
        self.copies = Copies(self.state)
        self.accesses = Accesses(self.state, self.copies)
        self.leases = Leases(self.state, self.copies, self.accesses)
        self.writes = Writes(self.state, self.copies, self.accesses)
        self.moves = Moves(self.state, self.copies)
        self.choice = Choice(self.state)
        self.lock = self.state.lock
        self.blocks = self.state.blocks
        self.books = self.state.books

    def __repr__(self) -> str:
        return f"Directory({len(self.blocks)} blocks, {self.books!r})"

    def retune(self, *, half_life_s: float, window_s: float) -> None:
        """Access counts decay, and windows close, by these from now on; what was counted stays. Under the lock."""
        self.state.half_life_s = half_life_s
        self.state.window_s = window_s

    # ------------------------------------------------------------------------------------------------ tenants

    def open_accounts(self, tenants: Sequence[str]) -> None:
        """The host has these tenants; before any block is known. Without tenants nothing is accounted by owner."""
        quotas = self.state.quotas = Quotas(tenants)
        for book in self.books:
            slots = book.table.count * book.table.slots_per_extent if isinstance(book, MappedBook) else 0
            book.charges = Charges(quotas, book.id.tier, self.blocks, slots)

    def fitting(self, rows: Rows, pool: int) -> Rows:
        """Those of `rows` (one size) whose tenants' quotas in that pool's tier have room for them, in this order."""
        quotas, book = self.state.quotas, self.books[pool]
        if quotas is None or not len(rows):
            return rows
        size = self.state.size_of(int(rows[0]))
        nbytes = book.bytes_on_disk(size) if isinstance(book, DiskBook) else size
        return rows[quotas.fits(book.id.tier, quotas.of_spaces(self.blocks.namespace[rows]), nbytes)]

    # ------------------------------------------------------------------------------------------------ namespaces

    def space(self, fingerprint: bytes) -> Space | None:
        return next((space for space in self.state.spaces if space.fingerprint == fingerprint), None)

    def add_space_by(self, fingerprint: bytes, block_bytes: int, key_bytes: int, *, limit: int = 32767) -> Space:
        """The namespace, known from now on. ResourceExhaustedError when `limit` others have a session or a block."""
        with self.lock:
            known = self.space(fingerprint)
            if known is not None:
                return known
            number = self._unused_space() if len(self.state.spaces) >= limit else self.blocks.add_namespace()
            if number is None:
                raise ResourceExhaustedError("limits.namespaces_count", f"{limit} are in use, the limit")
            space = Space(number, fingerprint, block_bytes, key_bytes)
            self.state.spaces[number : number + 1] = [space]
            self.state.sizes = np.array([space.block_bytes for space in self.state.spaces], np.int64)
            if self.state.quotas is not None:
                self.state.quotas.add_space(number, fingerprint)
            return space

    def _unused_space(self) -> int | None:
        """A namespace that no session and no block belongs to: its number may be another's."""
        used = {session.namespace for session in self.state.ledger.sessions.values()}
        live = self.blocks.namespace[self.blocks.state != BlockState.FREE]
        used.update(np.unique(live).tolist())
        return next((space.index for space in self.state.spaces if space.index not in used), None)

    # ------------------------------------------------------------------------------------------------ sessions

    def open_session(self, space: Space) -> Session:
        session = Session(self.state.ledger.next_number(), space.index)
        self.state.ledger.sessions[session.id] = session
        return session

    def end_session(self, session: Session) -> None:
        """It said goodbye or its process is proved gone: everything it held ends, nothing is quarantined."""
        for hold in list(self.state.ledger.of_session(session)):
            if isinstance(hold, Lease):
                self.leases.end(hold)
            else:
                self.writes.end(hold)
        self._end_requests(session)
        session.ended = True
        self.state.ledger.sessions.pop(session.id, None)

    def lapse_session(self, session: Session) -> None:
        """Its grace is over but its process may live: what it held lapses, and what it may still touch is quarantined."""
        for hold in list(self.state.ledger.of_session(session)):
            if not hold.lapsed:
                self.leases.lapse(hold) if isinstance(hold, Lease) else self.writes.lapse(hold)
        self._end_requests(session)
        session.ended = True
        if not any(hold.haunts for hold in self.state.ledger.of_session(session)):
            self.end_session(session)

    def _end_requests(self, session: Session) -> None:
        for number in list(session.requests):
            self.accesses.end(session, number)

    def expire(self, now: float) -> None:
        """Leases, reservations and requests whose time is over lapse."""
        for lease in [x for x in self.state.ledger.leases.values() if not x.lapsed and x.expires_at <= now]:
            self.leases.lapse(lease)
        for hold in [x for x in self.state.ledger.reservations.values() if not x.lapsed and x.expires_at <= now]:
            self.writes.lapse(hold)
        for session in list(self.state.ledger.sessions.values()):
            for number, request in list(session.requests.items()):
                if request.expires_at <= now:
                    self.accesses.end(session, number)

    # ------------------------------------------------------------------------------------------------ blocks

    def sealed(self, space: int, keys: Sequence[bytes]) -> Rows:
        """Row of each sealed block, NO_ROW elsewhere. int64 [n]."""
        rows = self.blocks.find(space, keys)
        rows[self.blocks.state[rows] != BlockState.SEALED] = -1
        return rows

    def restore(
        self,
        space: Space,
        keys: Sequence[bytes],
        parents: Sequence[bytes],
        segments: Sequence[int],
        checksums: Sequence[int],
        stored_at: Sequence[float],
    ) -> None:
        """Blocks found on disk at start become known, oldest first; none may be known yet."""
        disk = self.state.disk
        if disk is None or not keys:
            return
        rows = self.blocks.allocate(len(keys))
        self.blocks.insert(space.index, keys, rows, parents, BlockState.SEALED)
        self.blocks.checksum[rows] = np.array(checksums, np.uint64)
        self.blocks.checked[rows] = Checksum.VERIFIED
        # A clock that was ahead when they were stored must not make them count as used until then.
        times = np.minimum(np.array(stored_at), self.state.clock.now())
        self.blocks.sealed_at[rows] = self.blocks.last_access[rows] = times
        disk.accept(space.block_bytes, rows)
        self.copies.place(rows, disk.index, np.array(segments, np.int64))

    def without_copy_in(self, pool: int) -> Rows:
        """Sealed blocks that have no copy in this pool."""
        sealed = self.blocks.state == BlockState.SEALED
        return np.flatnonzero(sealed & (self.blocks.slot[pool] == NO_SLOT))

    def of_space(self, space: int) -> Rows:
        """Sealed blocks of a namespace."""
        return np.flatnonzero((self.blocks.state == BlockState.SEALED) & (self.blocks.namespace == space))

    def check(self) -> list[str]:
        """One line for each law found broken; empty when all hold."""
        with self.lock:
            return check(self.state)
