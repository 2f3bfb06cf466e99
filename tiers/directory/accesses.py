"""Accesses: a request's blocks are touched once, together, at its end, the last block first."""

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.decay import accessed, accessed_in_window
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.directory.copies import Copies
from hybridkv.tiers.directory.hinting import Hinting
from hybridkv.tiers.directory.holds import Lease, Request, Reservation, Session
from hybridkv.tiers.directory.state import State
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.points import point
from hybridkv.tiers.replacement import NO_ROW, Policy, Rows
from hybridkv.tiers.states import BlockState

TOLD_TIMES = 16
"""So many accesses of a block at one moment a policy is told of; more would say nothing that these do not."""
WARMING_ROWS = 1 << 16
REQUESTS_PER_SESSION = 4096

# Plain numbers: looking an enum member up costs as much as the operation it is for.
_SEALED = int(BlockState.SEALED)


class Accesses:
    """Notes accesses and keeps requests. Called under the lock."""

    def __init__(self, state: State, copies: Copies) -> None:
        self._state = state
        self._copies = copies
        self.hinting = Hinting(state)

    def touch(self, rows: Rows, times: NDArray[np.int64] | None = None) -> int:
        """Note one access of each sealed block, or `times` (int64 [n], at least 1) of each, the last of `rows` being the
        most recent: how many blocks."""
        state, blocks = self._state, self._state.blocks
        sealed = blocks.state[rows] == _SEALED
        rows = rows[sealed]
        if not len(rows):
            return 0
        now = state.clock.now()
        more = None if times is None else times[sealed] - 1
        accesses = accessed(blocks.accesses[rows].astype(np.float64), blocks.last_access[rows], now, state.half_life_s)
        counts, opened_at = blocks.window_count[rows].astype(np.int64), blocks.window_opened_at[rows]
        counts, opened_at = accessed_in_window(counts, opened_at, now, state.window_s)
        if more is not None:
            accesses, counts = accesses + more, counts + more
        blocks.accesses[rows] = accesses
        blocks.window_count[rows] = np.minimum(counts, 65535)
        blocks.window_opened_at[rows] = opened_at
        blocks.last_access[rows] = now
        parents = blocks.parent[rows]
        chained = parents != NO_ROW
        blocks.next_child[parents[chained]] = rows[chained]
        state.standings.clear(rows)
        self.hinting.used(rows)
        for book in state.books:
            held = blocks.slot[book.index][rows] != NO_SLOT
            here = rows[held]
            if len(here):
                _tell(book.policy, here, None if more is None else more[held], now)
                self._note_in_headers(here, book)
        if len(state.books) > 1:
            self._note_warming(rows[blocks.highest[rows] > state.top])
        return len(rows)

    def _note_in_headers(self, rows: Rows, book: object) -> None:
        if isinstance(book, MappedBook) and book.headers is not None:
            blocks = self._state.blocks
            indices = book.table.header_indices(blocks.slot[book.index][rows])
            book.headers.note_access(indices, blocks.accesses[rows], blocks.last_access[rows])

    def _note_warming(self, rows: Rows) -> None:
        warming = self._state.warming
        warming.update(dict.fromkeys(rows.tolist()))
        while len(warming) > WARMING_ROWS:
            del warming[next(iter(warming))]

    # ------------------------------------------------------------------------------------------------ requests

    def join(self, session: Session, number: int | None, rows: Rows, life_s: float) -> None:
        """`rows` belong to the session's request `number` from now on (None: the call is a request of its own)."""
        if number is None:
            return
        request = session.requests.get(number)
        if request is None:
            if len(session.requests) >= REQUESTS_PER_SESSION:
                raise ResourceExhaustedError(
                    "request_id", f"{REQUESTS_PER_SESSION} requests of this session are open, the limit"
                )
            request = session.requests[number] = Request(session.id, number)
        request.expires_at = self._state.clock.now() + life_s
        new = [row for row in rows.tolist() if row not in request.rows]
        request.rows.update(dict.fromkeys(new))
        self._state.blocks.holds[np.array(new, np.int64)] += 1

    def hinted(self, session: Session, hold: Lease | Reservation, hints: Hints) -> None:
        """Hints came with a call: they are about its request, else about the hold. The last word wins."""
        if hints == NO_HINTS:
            return
        if hold.request is None:
            hold.hints = hints
        elif hold.request in session.requests:
            session.requests[hold.request].hints = hints.over(session.requests[hold.request].hints)

    def end(self, session: Session, number: int, hints: Hints = NO_HINTS) -> bool:
        """The request is over: its blocks are touched once, in reverse order, and its hints, completed by `hints`, are
        followed. False when there is no such request."""
        request = session.requests.pop(number, None)
        if request is None:
            return False
        rows = np.fromiter(request.rows, np.int64, len(request.rows))
        self.touch(rows[::-1])
        self._state.blocks.holds[rows] -= 1
        self.hinting.ended(rows, hints.over(request.hints))
        point("request.ended")
        self._copies.sweep(rows)
        return True


def _tell(policy: Policy, rows: Rows, more: NDArray[np.int64] | None, now: float) -> None:
    """One access of each, after `more` of it; in the end they stand in the order of their last ones."""
    if more is not None:
        for number in range(min(int(more.max()), TOLD_TIMES - 1), 0, -1):
            policy.touched(rows[more >= number], now)
    policy.touched(rows, now)
