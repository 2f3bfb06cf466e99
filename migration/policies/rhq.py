"""Reuse-hazard queues: keep the blocks that are worth most per second kept, as learned from the pool's own reuse.

Blocks are classed by their number of accesses. For each class the policy learns the hazard of reuse: how likely a block
that has waited so long is used within the next moment. From the hazards follows the value of keeping a block of a class
and age: the best reuses per block-second from now on that any waiting time can reach (a Gittins index). The rows of least
value go first; among equals the oldest, and of one request the deepest.

Rows of one class lie in one list in order of use, so the rows of one class and age bin are a run of that list: a choice
looks at a few hundred runs instead of rows.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.policies.chunks import Run, distinct_and_named, grown
from hybridkv.migration.policies.cohorts import Cohorts
from hybridkv.migration.policies.counts import MAX_ACCESSES
from hybridkv.migration.policies.ghosts import Ghosts, Tags
from hybridkv.migration.policies.hazard import BINS, CLASSES, Hazard, bin_of, cell_of, class_of
from hybridkv.migration.policies.lists import FIRST_STAMP, RowLists
from hybridkv.migration.policies.pending import PendingAccesses
from hybridkv.tiers.replacement import PoolFacts, Rows

_GHOSTS_PER_SLOT: Final = 4
_LEAST_GHOSTS: Final = 1 << 15  # a small pool turns over too fast to learn anything from 4 times its size
_LEARN_EVERY_REQUESTS: Final = 50
_COHORTS_PER_REQUEST: Final = 1024  # learning costs time in proportion to the cohorts: then it comes less often
_ACCESS_BITS: Final = MAX_ACCESSES.bit_length()  # of a ghost's tag; the rest is its cohort

_Cell = tuple[float, int, int, int | None]  # value, first stamp, class, stamp at which the next one begins


class Rhq:
    """A `Policy` that learns. Memory: 38 bytes a row, 16 a log entry, 25 for each of 4 ghosts a slot. Not thread-safe."""

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._lists = RowLists(CLASSES)
        self._ghosts = Ghosts(self._ghost_limit())
        self._cohorts = Cohorts(CLASSES)
        self._hazard = Hazard()
        self._accesses = np.zeros(0, np.int32)
        self._used_at = np.zeros(0)
        self._cohort = np.zeros(0, np.int64)
        self._now = 0.0
        """Of the last accesses: the order stands still between requests, whenever blocks arrive."""
        self._pending = PendingAccesses()
        self._requests = 0  # since the last lesson, those that are pending left out
        self._evicted = False

    def _ghost_limit(self) -> int:
        return max(_LEAST_GHOSTS, _GHOSTS_PER_SLOT * self._facts.capacity_slots())

    def inserted(self, rows: Rows, now: float) -> None:
        self._lists.require_new(rows)
        if not len(rows):
            return
        self._work_off()
        self._grow()
        identities = self._facts.identities(rows)
        known, tags = self._ghosts.take(identities)
        counts, used_at = self._facts.history(rows)
        accesses = np.minimum(np.rint(counts), MAX_ACCESSES).astype(np.int32)
        if known.any():
            cohorts = tags[known] >> _ACCESS_BITS
            accesses[known] = tags[known] & MAX_ACCESSES
            used_at = np.where(known, 0.0, used_at)
            used_at[known] = self._cohorts.time[cohorts]
            self._cohorts.leave(cohorts)
        self._accesses[rows] = accesses
        self._used_at[rows] = used_at
        self._queue(rows, class_of(accesses), np.zeros(len(rows), np.int64), [now])

    def touched(self, rows: Rows, now: float) -> None:
        self._lists.require_held(rows)
        if not len(rows):
            return
        self._now = now
        rows, named = distinct_and_named(rows)
        if self._pending.names_any(named):
            self._work_off()
        self._pending.add(rows, named, now)
        if self._pending.full or self._requests + len(self._pending) >= self._lesson_every():
            self._work_off()

    def _work_off(self) -> None:
        """Note the accesses that are pending; nothing else may change, and nobody may look, before that."""
        if not len(self._pending):
            return
        rows, requests, times = self._pending.take()
        accesses, now = self._accesses[rows], np.array(times)[requests]
        cells = cell_of(class_of(accesses), bin_of(now - self._used_at[rows]))
        self._hazard.reused(cells if np.logical_and.reduce(accesses) else cells[accesses > 0])
        accesses = np.minimum(accesses + 1, MAX_ACCESSES)
        self._accesses[rows] = accesses
        self._used_at[rows] = now
        self._cohorts.leave(self._cohort[rows])
        self._queue(rows, class_of(accesses), requests, times)
        self._requests += len(times)
        if self._requests >= self._lesson_every():
            self._learn(times[-1])

    def _lesson_every(self) -> int:
        """Requests from one lesson to the next."""
        return max(_LEARN_EVERY_REQUESTS, len(self._cohorts) // _COHORTS_PER_REQUEST)

    def removed(self, rows: Rows) -> None:
        self._lists.require_held(rows)
        if not len(rows):
            return
        self._work_off()
        wanted = self._ghost_limit()
        if wanted != self._ghosts.limit:
            self._give_up(self._ghosts.resize(wanted))
        accesses, cohorts = self._accesses[rows], self._cohort[rows]
        used = accesses > 0
        tags = (cohorts[used] << _ACCESS_BITS) | accesses[used]
        forgotten = self._ghosts.push(self._facts.identities(rows[used]), tags)
        self._cohorts.leave(cohorts[~used])
        self._lists.remove(rows)
        self._give_up(forgotten)
        self._evicted = True

    def _queue(
        self, rows: Rows, classes: NDArray[np.int64], requests: NDArray[np.int64], times: Sequence[float]
    ) -> None:
        """Put `rows`, which `requests` number and `times` date, at the ends of their classes' lists: of one request lower
        classes first, for they are the deeper."""
        parts = classes if len(times) == 1 else requests * CLASSES + classes
        sizes = np.bincount(parts).tolist()
        if len(rows) not in sizes:
            order = np.argsort(parts, kind="stable")
            rows, parts = rows[order], parts[order]
        first, stamp = 0, self._lists.next_stamp
        for part, count in enumerate(sizes):
            if count:
                cohort = self._cohorts.join(part % CLASSES, times[part // CLASSES], count, stamp + first)
                self._cohort[rows[first : first + count]] = cohort
                first += count
        if len(times) == 1:
            self._lists.append_parts(rows, sizes)
            return
        by_class = parts % CLASSES
        self._lists.append_parts(rows, np.bincount(by_class).tolist(), np.argsort(by_class, kind="stable"))

    def _give_up(self, forgotten: Tags) -> None:
        if len(forgotten):
            cohorts, accesses = forgotten >> _ACCESS_BITS, forgotten & MAX_ACCESSES
            waited = np.maximum(self._now - self._cohorts.time[cohorts], 0.0)
            self._hazard.given_up(cell_of(class_of(accesses), bin_of(waited)))
            self._cohorts.leave(cohorts)

    def _learn(self, now: float) -> None:
        self._requests = 0
        if self._evicted:  # while all that came is here, nothing tells those who come back from those who never do
            live = self._cohorts.live()
            cells = cell_of(self._cohorts.kind[live], bin_of(now - self._cohorts.time[live]))
            waiting = np.bincount(cells, self._cohorts.count[live].astype(np.float64), minlength=CLASSES * BINS)
            self._hazard.learn(waiting.astype(np.float64))
        self._hazard.fade()

    def _grow(self) -> None:
        if (room := self._lists.rows_seen) > len(self._accesses):
            for name in ("_accesses", "_used_at", "_cohort"):
                setattr(self, name, grown(getattr(self, name), room))

    # ------------------------------------------------------------------------------------------------ order

    def scan(self) -> Iterator[Rows]:
        self._work_off()
        cells = self._cells()
        while cells:
            equals = 1
            while equals < len(cells) and cells[equals][0] == cells[0][0]:
                equals += 1
            group, cells = cells[:equals], cells[equals:]
            yield from merged([self._lists.scan(number, begin, end) for _, begin, number, end in group])

    def _cells(self) -> list[_Cell]:
        """The runs of one class and age bin, by value, then by age."""
        live = self._cohorts.live()
        kinds = self._cohorts.kind[live]
        cell = cell_of(kinds, bin_of(np.maximum(self._now - self._cohorts.time[live], 0.0)))
        first = np.full(CLASSES * BINS, np.iinfo(np.int64).max)
        np.minimum.at(first, cell, self._cohorts.first_stamp[live])
        cells: list[_Cell] = []
        for kind in np.unique(kinds).tolist():
            bins = np.flatnonzero(first[kind * BINS : (kind + 1) * BINS] < np.iinfo(np.int64).max)[::-1]
            begins = first[kind * BINS + bins].tolist()
            values = self._hazard.value[kind, bins].tolist()
            begins[0] = FIRST_STAMP
            cells += zip(values, begins, [kind] * len(bins), [*begins[1:], None], strict=True)
        cells.sort(key=lambda cell: cell[:2])
        return cells

    def __len__(self) -> int:
        return len(self._lists)

    def __repr__(self) -> str:
        return f"Rhq(rows={len(self)}, {self._ghosts!r}, {self._cohorts!r})"

    def check(self) -> list[str]:
        self._work_off()
        found = [*self._lists.check(), *self._ghosts.check()]
        tracked = len(self._lists) + len(self._ghosts)
        if (counted := int(self._cohorts.count.sum())) != tracked:
            found.append(f"rhq: cohorts count {counted} blocks, {tracked} are tracked")
        return found


def merged(runs: Sequence[Iterator[Run]]) -> Iterator[Rows]:
    """The rows of several runs, each in order of stamps, in the order of all stamps."""
    if len(runs) == 1:
        for rows, _ in runs[0]:
            yield rows
        return
    heads = [(run, head) for run in runs if (head := next(run, None)) is not None]
    while heads:
        until = min(int(stamps[-1]) for _, (_, stamps) in heads)
        parts, left = [], []
        for run, (rows, stamps) in heads:
            count = int(np.searchsorted(stamps, until, side="right"))
            parts.append((rows[:count], stamps[:count]))
            rest = (rows[count:], stamps[count:]) if count < len(rows) else next(run, None)
            if rest is not None:
                left.append((run, rest))
        order = np.argsort(np.concatenate([stamps for _, stamps in parts]))
        yield np.concatenate([rows for rows, _ in parts])[order]
        heads = left
