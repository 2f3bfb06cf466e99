"""Prefetch: blocks are brought up although nobody waits for them. It promises nothing, and evicts once, not again.

What is queued delays no demand: demand for such a block hastens it, and demand that lacks room displaces it.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.reclaim import Reclaim
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.moves import Stage, Transfer
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState, Priority, Reason

WAITING_BLOCKS = 1 << 16
"""Prefetched blocks that may wait for room at a time; of more the oldest are given up."""

_SEALED = int(BlockState.SEALED)  # a plain number: looking an enum member up costs as much as the comparison


class _Wish(NamedTuple):
    """A block that waits for room: where it is to go, and when it is given up."""

    target: int
    give_up_at: float | None


class Prefetches:
    """Starts prefetches, and goes on with those for which room is on its way. Called under the directory's lock."""

    def __init__(
        self,
        directory: Directory,
        reclaim: Reclaim,
        send: Callable[[Iterable[Transfer]], None],
        withdraw: Callable[[Transfer], bool] = lambda _transfer: False,
        cancelled: Callable[[Transfer], None] = lambda _transfer: None,
    ) -> None:
        """`withdraw` takes a queued transfer out of its lane (False: it is not queued any more); `cancelled` counts it."""
        self._directory = directory
        self._reclaim = reclaim
        self._send = send
        self._withdraw = withdraw
        self._cancelled = cancelled
        self._waiting: dict[tuple[int, bytes], _Wish] = {}
        """By (namespace, key), for a row may come to stand for another block meanwhile."""
        self._timed = False
        """Some transfer may have a deadline."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def waits_for(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of the blocks wait for room. bool [n]."""
        blocks, waiting = self._directory.blocks, self._waiting
        if not waiting:
            return np.zeros(len(rows), np.bool_)
        names = ((int(blocks.namespace[row]), blocks.keys[row]) for row in rows.tolist())
        return np.fromiter((name in waiting for name in names), np.bool_, len(rows))

    # ------------------------------------------------------------------------------------------------ begin

    def start(self, rows: Rows, target: int, *, give_up_at: float | None = None) -> int:
        """Begin to bring sealed blocks up to `target`: how many are on their way, or wait for room that is.

        What has not begun to move by `give_up_at` is given up, unless somebody waits for it by then.
        """
        directory, blocks = self._directory, self._directory.blocks
        rows = np.array(list(dict.fromkeys(rows[rows != NO_ROW].tolist())), np.int64)
        wish = _Wish(target, give_up_at)
        started = 0
        for size, some in directory.state.by_size(self._to_bring(rows, target)):
            coming = self._reclaim.make_room(target, size, len(some), Priority.PREFETCH)
            begun = self._begin(some, wish)
            left = some[blocks.busy[some] == 0]
            started += begun + (len(left) if coming else 0)
            if coming:
                self._remember(left, wish)
        return started

    def start_gently(self, rows: Rows, target: int) -> list[int]:
        """Likewise for a guess (`rows` distinct): it takes room that is free, or held by clean copies that are coldest.

        The rows that are on their way, or wait for memory that is being carved for them.
        """
        directory, blocks = self._directory, self._directory.blocks
        wish, book = _Wish(target, None), directory.state.mapped(target)
        begun: list[int] = []
        for size, some in directory.state.by_size(self._to_bring(rows, target)):
            missing = len(some) - book.free_slots(size)
            carving = self._reclaim.carve_for(book, size, missing) if missing > 0 else 0
            if missing > carving:
                self._reclaim.drop_clean(target, size, missing - carving)
            self._begin(some, wish)
            left = some[blocks.busy[some] == 0]
            self._remember(left[:carving], wish)
            begun += some[blocks.busy[some] > 0].tolist() + left[:carving].tolist()
        return begun

    def advance(self) -> None:
        """Room may have come: begin what fits; give up what nothing makes room for any more, and what is overdue."""
        if not self._waiting:
            return
        blocks, now = self._directory.blocks, self._directory.state.clock.now()
        waiting, self._waiting = self._waiting, {}
        alive = {name: wish for name, wish in waiting.items() if wish.give_up_at is None or wish.give_up_at > now}
        for wish in dict.fromkeys(alive.values()):
            found = [blocks.find_one(space, key) for (space, key), other in alive.items() if other == wish]
            rows = self._to_bring(np.array([row for row in found if row != NO_ROW], np.int64), wish.target)
            for size, some in self._directory.state.by_size(rows):
                self._begin(some, wish)
                if self._reclaim.coming(wish.target, size):
                    self._remember(some[blocks.busy[some] == 0], wish)

    # ------------------------------------------------------------------------------------------------ give up

    def expire(self) -> None:
        """Give up queued transfers whose deadline is over: their room is free again."""
        if not self._timed:
            return
        transfers = self._directory.state.transfers
        timed = [transfer for transfer in transfers.values() if transfer.give_up_at is not None]
        for transfer in timed:
            if self._directory.moves.overdue(transfer):
                self._cancel(transfer)
        self._timed = bool(timed)

    def cancel(self, rows: Rows, target: int) -> int:
        """Nobody wants these blocks in `target` any more: prefetches of them that are queued, or wait for room, are given up.
        How many were."""
        blocks, transfers, done = self._directory.blocks, self._directory.state.transfers, 0
        for row in rows.tolist():
            transfer = transfers.get(row)
            ahead = transfer is not None and transfer.priority is Priority.PREFETCH and transfer.target == target
            if transfer is not None and ahead and not self._directory.blocks.waiting[row]:
                done += self._cancel(transfer)
            done += self._waiting.pop((int(blocks.namespace[row]), blocks.keys[row]), None) is not None
        return done

    def displace(self, pool: int, size: int, count: int) -> int:
        """Somebody needs up to `count` slots of `size` in `pool`: prefetches that are only queued give theirs up, the last
        first. How many did."""
        queued = [
            transfer
            for transfer in self._directory.state.transfers.values()
            if transfer.priority is Priority.PREFETCH
            and (transfer.target, transfer.size) == (pool, size)
            and transfer.stage is Stage.QUEUED
            and transfer.keep_source
        ]
        done = 0
        for transfer in reversed(queued):
            if done == count:
                break
            done += self._cancel(transfer)
        return done

    def _cancel(self, transfer: Transfer) -> bool:
        if transfer.stage is not Stage.QUEUED or not self._withdraw(transfer):
            return False
        self._directory.moves.cancel(transfer)
        self._cancelled(transfer)
        self._directory.state.counters["prefetches_given_up"] += 1
        return True

    # ------------------------------------------------------------------------------------------------ parts

    def _to_bring(self, rows: Rows, target: int) -> Rows:
        """Those that are sealed, at rest, and lie below the target only."""
        blocks = self._directory.blocks
        rows = rows[(blocks.state[rows] == _SEALED) & (blocks.busy[rows] == 0)]
        tier = self._directory.books[target].id.tier
        below: Rows = rows[(blocks.slot[target][rows] == NO_SLOT) & (blocks.highest[rows] > tier)]
        return self._directory.fitting(below, target)

    def _begin(self, rows: Rows, wish: _Wish) -> int:
        """Transfers for those of `rows` (one size) that find room, from the nearest copy of each: how many."""
        directory, blocks, target = self._directory, self._directory.blocks, wish.target
        self._timed |= wish.give_up_at is not None
        begun = 0
        for source in range(target + 1, len(directory.books)):
            here = rows[(blocks.slot[source][rows] != NO_SLOT) & (blocks.busy[rows] == 0)]
            started = directory.moves.begin(here, source, target, Reason.PREFETCH, Priority.PREFETCH, keep_source=True)
            for transfer in started:
                transfer.give_up_at = wish.give_up_at
            self._send(started)
            begun += len(started)
        return begun

    def _remember(self, rows: Rows, wish: _Wish) -> None:
        blocks = self._directory.blocks
        for row in rows.tolist():
            self._waiting[int(blocks.namespace[row]), blocks.keys[row]] = wish
        while len(self._waiting) > WAITING_BLOCKS:
            del self._waiting[next(iter(self._waiting))]
