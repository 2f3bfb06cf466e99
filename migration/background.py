"""The background pass: what the planner would move, now and then, pool by pool.

Takes a view under the directory's lock, plans without it, and carries out under it what still holds.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from hybridkv.migration.history import MoveHistory
from hybridkv.migration.planner import Move, draining, due, plan, promotions
from hybridkv.migration.reclaim import Reclaim
from hybridkv.migration.view import PoolView, Thresholds
from hybridkv.tiers.decay import decayed
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import Book, MappedBook
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import BlockState, Priority, Reason, Tier
from hybridkv.tiers.victims import choose_victims

_log = logging.getLogger(__name__)

VIEW_ROWS = 8192
"""Rows one pass looks at in a pool: bounds the time under the lock; the next pass goes on."""

CARRIED_ROWS = 256
"""Moves that are carried out while the lock is held once."""


@dataclass(frozen=True, slots=True)
class BackgroundRules:
    """Thresholds by tier; a tier without any is left alone."""

    thresholds: dict[Tier, Thresholds]


class Background:
    """One pass at a time; `run_once` is called by the migrator's loop, and by tests."""

    def __init__(
        self,
        directory: Directory,
        reclaim: Reclaim,
        send: Callable[[Sequence[Transfer]], None],
        rules: BackgroundRules,
        history: MoveHistory,
    ) -> None:
        self.rules = rules
        self._history = history
        self._directory = directory
        self._reclaim = reclaim
        self._send = send
        self._draining = [False] * len(directory.books)

    def run_once(self) -> int:
        """Look at every pool, highest tier first: the number of moves decided."""
        return sum(self._look_at(book) for book in self._directory.books) + self._promote()

    # ------------------------------------------------------------------------------------------------ down

    def _look_at(self, book: Book) -> int:
        now = self._directory.state.clock.now()
        thresholds = self.rules.thresholds.get(book.id.tier)
        if thresholds is None:
            return 0
        with self._directory.lock:
            if not self._due(book, thresholds, now):
                self._draining[book.index] = False
                return 0
            view = self.view(book, now)
        moves = plan(view, thresholds, now)
        self._draining[book.index] = draining(view, thresholds, self._draining[book.index])
        return self._carry_out(book.index, moves)

    def _due(self, book: Book, thresholds: Thresholds, now: float) -> bool:
        staying_bytes = book.used_bytes - self._leaving_bytes(book)
        staying = staying_bytes / book.capacity_bytes if book.capacity_bytes else 0.0
        any_idle = False
        if thresholds.idle_timeout_s is not None:
            blocks = self._directory.blocks
            idle = now - blocks.last_access > thresholds.idle_timeout_s
            any_idle = bool((idle & (blocks.slot[book.index] != NO_SLOT)).any())
        return due(staying, thresholds, self._draining[book.index], any_idle=any_idle)

    def view(self, book: Book, now: float, rows: Rows | None = None, *, upwards: bool = False) -> PoolView:
        """The pool's figures over `rows` (None: its coldest). `upwards`: a held block may still be copied up."""
        directory, choice = self._directory, self._directory.choice
        blocks = directory.blocks
        rows = _head(choice.scan(book.index), VIEW_ROWS) if rows is None else rows
        return PoolView(
            pool=book.id,
            capacity_bytes=book.capacity_bytes,
            used_bytes=book.used_bytes,
            rows=rows,
            slot_bytes=directory.state.sizes[blocks.namespace[rows]],
            last_access=blocks.last_access[rows],
            arrived=blocks.arrived_at[book.index][rows],
            last_moved=np.where(blocks.moved_at[rows] > 0, blocks.moved_at[rows], -np.inf),
            accesses=decayed(
                blocks.accesses[rows].astype(np.float64), blocks.last_access[rows], now, directory.state.half_life_s
            ),
            window_accesses=blocks.window_count[rows].astype(np.int64),
            eligible=(blocks.busy[rows] == 0) & ~directory.state.setbacks.resting(rows, now)
            if upwards
            else choice.may_go(book.index, None)(rows),
            highest=blocks.highest[rows] == book.id.tier,
            orphan=blocks.is_orphan(rows),
            blocking_children=choice.blocking_children(book.index, Priority.BACKGROUND)(rows),
            parents=blocks.parent[rows].astype(np.int64),
            lowest=self._reclaim.below(book.index) is None,
            leaving_bytes=self._leaving_bytes(book),
            draining=self._draining[book.index],
        )

    def _carry_out(self, pool: int, moves: list[Move]) -> int:
        """Moves that were decided without the lock, as far as they still hold, some at a time: the number begun or done."""
        done = 0
        for some in _batched(moves, CARRIED_ROWS):
            with self._directory.lock, self._history.deciding({move.row: move.figures for move in some}):
                rows = self._still_allowed(pool, some)
                went = self._lower(pool, rows, {move.row: move.reason for move in some})
            done += went
            if went < len(rows):
                break
        return done

    def _still_allowed(self, pool: int, moves: Sequence[Move]) -> list[int]:
        """Of the moves' rows, those that law 7 lets go now, children before parents. Children that are on their way out
        stand in their parents' way no more than those chosen with them."""
        choice = self._directory.choice
        return choose_victims(
            [np.array([move.row for move in moves], np.int64)],
            choice.may_go(pool, None),
            choice.blocking_children(pool, Priority.BACKGROUND),
            choice.parents_above(pool),
            len(moves),
        )

    def _lower(self, pool: int, rows: list[int], reasons: dict[int, Reason]) -> int:
        done = 0
        for reason, group in groupby(rows, key=reasons.__getitem__):
            freed, started = self._reclaim.lower(pool, list(group), reason, Priority.BACKGROUND)
            done += freed + started
        return done

    # ------------------------------------------------------------------------------------------------ up

    def _promote(self) -> int:
        """Blocks touched below the top tier lately, as far as the tier above has room below its low watermark."""
        directory = self._directory
        now = directory.state.clock.now()
        with directory.lock:
            rows = np.fromiter(directory.state.warming, np.int64, len(directory.state.warming))
            directory.state.warming.clear()
            rows = rows[directory.blocks.state[rows] == BlockState.SEALED]
            views = [
                (book, self.view(book, now, self._lying_in(book, rows), upwards=True))
                for book in directory.books
                if book.id.tier > directory.state.top
            ]
        started = 0
        for book, view in views:
            thresholds = self.rules.thresholds.get(book.id.tier)
            if thresholds is not None and len(view.rows):
                started += self._raise(book, view, thresholds, now)
        return started

    def _lying_in(self, book: Book, rows: Rows) -> Rows:
        here: Rows = rows[self._directory.blocks.slot[book.index][rows] != NO_SLOT]
        return here[:VIEW_ROWS]

    def _raise(self, book: Book, view: PoolView, thresholds: Thresholds, now: float) -> int:
        directory, target = self._directory, self._above(book)
        if target is None:
            return 0
        moves = promotions(view, thresholds, now, max(0, self.room_above(book)))
        started = 0
        for some in _batched(moves, CARRIED_ROWS):
            with directory.lock, self._history.deciding({move.row: move.figures for move in some}):
                started += self._begin(book, target, np.array([move.row for move in some], np.int64))
        return started

    def _begin(self, book: Book, target: Book, rows: Rows) -> int:
        """Promotions of those of `rows` that still lie here, at rest, and not above: how many."""
        directory, blocks = self._directory, self._directory.blocks
        rows = rows[
            (blocks.state[rows] == BlockState.SEALED)
            & (blocks.busy[rows] == 0)
            & (blocks.slot[book.index][rows] != NO_SLOT)
            & (blocks.slot[target.index][rows] == NO_SLOT)
        ]
        begun: list[Transfer] = []
        for size, some in directory.state.by_size(rows):
            self._carve_ahead(target, size, some)
            begun += directory.moves.begin(
                directory.fitting(some, target.index),
                book.index,
                target.index,
                Reason.PROMOTE_AT_ACCESSES,
                Priority.BACKGROUND,
                keep_source=True,
            )
        self._send(begun)
        return len(begun)

    def _above(self, book: Book) -> Book | None:
        """The least used pool one tier up."""
        above = [b for b in self._directory.books if b.id.tier == book.id.tier - 1]
        return min(above, key=lambda b: b.used_bytes / b.capacity_bytes, default=None)

    def room_above(self, book: Book) -> int:
        """Bytes that promotions out of the pool may fill: what the tier above has below its low watermark once the moves
        out of it are done. Below 0: none, or there is no tier above."""
        target = self._above(book)
        if target is None:
            return -1
        marks = self.rules.thresholds.get(target.id.tier, Thresholds())
        staying = target.used_bytes - self._leaving_bytes(target)
        return int(marks.low_watermark * target.capacity_bytes) - staying

    def _leaving_bytes(self, book: Book) -> int:
        with self._directory.lock:
            under_way = self._directory.state.transfers.values()
            return sum(t.size for t in under_way if t.source == book.index and t.demotes)

    def _carve_ahead(self, target: Book, size: int, rows: Rows) -> None:
        """A pool that was not used yet has room but no slots: the next pass finds them."""
        missing = len(rows) - target.free_slots(size)
        if missing > 0 and isinstance(target, MappedBook) and self._reclaim.carve_for(target, size, missing):
            self._directory.state.warming.update(dict.fromkeys(rows[-missing:].tolist()))


def _head(windows: Iterable[Rows], count: int) -> Rows:
    """The first `count` rows of a scan."""
    taken: list[Rows] = []
    have = 0
    for window in windows:
        taken.append(window[: count - have])
        have += len(taken[-1])
        if have >= count:
            break
    return np.concatenate(taken) if taken else np.empty(0, np.int64)


def _batched(moves: list[Move], size: int) -> Iterator[list[Move]]:
    """The moves in order, so many at a time."""
    for start in range(0, len(moves), size):
        yield moves[start : start + size]
