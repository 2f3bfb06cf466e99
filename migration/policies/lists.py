"""Ordered lists of rows that share one column of stamps: what every policy here is built from.

Appending writes (row, stamp) at the end of a list's log and the stamp into the row's column. An entry is current when it
carries its row's latest stamp, so that moving a row to the end of its list or to another list is a few vectorised writes
and nothing is unlinked. Cleaning drops outdated entries chunk by chunk, as many as changes have paid for, so that no
single call pays for a whole log. Stamps grow for ever, across all lists.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.policies.chunks import Chunk, Run, Stamps, grown, last_stamp
from hybridkv.tiers.errors import InternalError
from hybridkv.tiers.replacement import Rows

FIRST_STAMP: Final = 1
_ABSENT: Final = 0  # in the stamp column: the row is in no list
_CHUNK_ENTRIES: Final = 16384
_FIRST_CHUNK_ENTRIES: Final = 64  # a policy with thousands of short lists pays little for each
_EXAMINED_PER_CHANGE: Final = 3  # keeps the logs near 1.5 entries per row while rows are touched
_CHUNK_COST: Final = 256  # what cleaning a chunk costs at least, in entries examined
_SPARE_CHUNKS: Final = 4  # the constant in the bound of the logs
_FIRST_WINDOW: Final = 256
_LAST_WINDOW: Final = 8192
_FEW_LISTS: Final = 64  # fewer are counted all at once

_least = np.minimum.reduce
_all = np.logical_and.reduce


class RowLists:
    """`count` lists of rows, numbered from 0; a held row is in exactly one, and batches keep their order.

    Memory: 12 bytes for each row number up to the largest seen, and 16 for each log entry; the logs together hold at most
    2 x rows + 4 chunks + one short chunk a list. Wrong calls raise `InternalError` and change nothing. Not thread-safe.
    """

    def __init__(self, count: int = 1, *, chunk_entries: int = _CHUNK_ENTRIES) -> None:
        self._chunk_entries = chunk_entries
        self._latest: Stamps = np.zeros(0, np.int64)
        self._list: NDArray[np.int32] = np.zeros(0, np.int32)
        self._logs: list[list[Chunk]] = []
        self._lengths: NDArray[np.int64] = np.zeros(0, np.int64)
        self._entries = 0
        self._held = 0
        self._next_stamp = FIRST_STAMP
        self._cursor = (0, 0)  # list and chunk to clean next
        self._credit = 0  # entries that may be examined, paid for by changes
        self.add_lists(count)

    # ------------------------------------------------------------------------------------------------ reading

    def __len__(self) -> int:
        """Rows in all lists."""
        return self._held

    def __repr__(self) -> str:
        return f"RowLists(lists={len(self._logs)}, rows={self._held}, entries={self._entries})"

    @property
    def next_stamp(self) -> int:
        """The stamp the next appended row gets."""
        return self._next_stamp

    @property
    def entries(self) -> int:
        """Log entries kept, outdated ones included."""
        return self._entries

    @property
    def rows_seen(self) -> int:
        """One more than the largest row number the columns have room for."""
        return len(self._latest)

    def length(self, number: int) -> int:
        """Rows in one list."""
        return int(self._lengths[number])

    def list_of(self, rows: Rows) -> NDArray[np.int32]:
        """Number of the list each held row is in."""
        return self._list[rows]

    def held(self, rows: Rows) -> NDArray[np.bool_]:
        """bool[n]: is the row in a list. Rows must be valid."""
        known = rows < len(self._latest)
        return (
            np.asarray(known & (self._latest[np.where(known, rows, 0)] != _ABSENT))
            if len(self._latest)
            else known & False
        )

    def scan(self, number: int, begin: int = FIRST_STAMP, end: int | None = None) -> Iterator[Run]:
        """One list's rows with their stamps, head first, of stamps in [begin, end), in windows that begin small."""
        if begin == FIRST_STAMP:
            self._drop_outdated_head(number)
        window = _FIRST_WINDOW
        log = tuple(self._logs[number])
        for chunk in log[bisect_left(log, begin, key=last_stamp) :]:
            if not len(chunk):
                continue
            if end is not None and chunk.stamps[chunk.start] >= end:
                return
            at = chunk.place_of(begin)
            stop = chunk.end if end is None else chunk.place_of(end)
            while at < stop:
                rows, stamps = chunk.current(self._latest, at, min(at + window, stop))
                at += window
                window = min(2 * window, _LAST_WINDOW)
                if len(rows):
                    yield rows, stamps

    def first(self, number: int, count: int) -> Iterator[Rows]:
        """The first `count` rows of a list."""
        for rows, _ in self.scan(number):
            if count <= 0:
                return
            yield rows[:count]
            count -= len(rows)

    def after(self, number: int, count: int) -> Iterator[Rows]:
        """All rows of a list but the first `count`."""
        for rows, _ in self.scan(number):
            if count < len(rows):
                yield rows[max(0, count) :]
            count -= len(rows)

    # ------------------------------------------------------------------------------------------------ changing

    def add_lists(self, count: int) -> None:
        """`count` more empty lists; their numbers follow the last one's."""
        self._logs.extend([] for _ in range(count))
        self._lengths = np.append(self._lengths, np.zeros(count, np.int64))

    def require_new(self, rows: Rows) -> None:
        """Raise unless each of `rows` is a row number that is in no list. Makes room for them."""
        if not len(rows):
            return
        self._grow(int(rows.max()) + 1)
        if rows.min() < 0 or (self._latest[rows] != _ABSENT).any():
            raise InternalError("policy: a row was inserted that is held already, or is no row")

    def require_held(self, rows: Rows) -> None:
        """Raise unless each of `rows` is in a list."""
        if len(rows):
            self._held_stamps(rows)

    def _held_stamps(self, rows: Rows) -> Stamps:
        """The latest stamp of each of `rows`; raises unless each is in a list."""
        try:
            before = self._latest[rows]
        except IndexError:
            before = rows[:0]
        # One reduction for both: a row below 0 would be looked up from the end. Methods of arrays cost a Python call.
        if not len(before) or _least(np.minimum(before, rows + 1)) <= _ABSENT:
            raise InternalError("policy: a row was touched or removed that is not held")
        return before

    def append(self, rows: Rows, number: int) -> None:
        """`rows`, new or from any list, become the end of list `number`. Of a row named twice the last place counts."""
        if not len(rows):
            return
        before = self._latest[rows]
        stamps = self._stamped(rows)
        last = self._latest[rows] == stamps
        if not _all(last):
            rows, stamps, before = rows[last], stamps[last], before[last]
        self._leave(rows, before)
        self._list[rows] = number
        self._lengths[number] += len(rows)
        self._held += len(rows)
        self._write(self._logs[number], rows, stamps)
        self._clean(len(rows))

    def renew(self, rows: Rows) -> None:
        """`append` of rows that are held, for a single list; raises InternalError when one is not held."""
        if not len(rows):
            return
        self._held_stamps(rows)
        stamps = self._stamped(rows)
        last = self._latest[rows] == stamps
        if not _all(last):
            rows, stamps = rows[last], stamps[last]
        self._write(self._logs[0], rows, stamps)
        self._clean(len(rows))

    def append_parts(self, rows: Rows, counts: Sequence[int], order: NDArray[np.int64] | None = None) -> None:
        """`rows` (distinct) become the ends of the lists 0, 1, ...: the first counts[0] of the first, and so on. With `order`,
        positions in `rows`: of rows[order]; stamps follow the order of `rows` all the same."""
        before = self._latest[rows]
        stamps = self._stamped(rows)
        self._leave(rows, before)
        self._held += len(rows)
        if order is not None:
            rows, stamps = rows[order], stamps[order]
        first = 0
        for number, count in enumerate(counts):
            if count:
                part = rows[first : first + count]
                self._list[part] = number
                self._lengths[number] += count
                self._write(self._logs[number], part, stamps[first : first + count])
                first += count
        self._clean(len(rows))

    def _stamped(self, rows: Rows) -> Stamps:
        """New stamps for `rows`; of a row named twice NumPy keeps the last."""
        stamps = np.arange(self._next_stamp, self._next_stamp + len(rows))
        self._next_stamp += len(rows)
        self._latest[rows] = stamps
        return stamps

    def remove(self, rows: Rows) -> None:
        """`rows` (distinct, held) are in no list any more."""
        if not len(rows):
            return
        self._leave(rows, self._latest[rows])
        self._latest[rows] = _ABSENT
        self._clean(len(rows))

    def _leave(self, rows: Rows, before: Stamps) -> None:
        if not _all(before):
            rows = rows[before != _ABSENT]
        self._held -= len(rows)
        if len(self._logs) == 1:
            self._lengths[0] -= len(rows)
        elif len(self._logs) <= _FEW_LISTS:
            self._lengths -= np.bincount(self._list[rows], minlength=len(self._lengths))
        else:
            np.subtract.at(self._lengths, self._list[rows], 1)

    def _grow(self, rows: int) -> None:
        if rows > len(self._latest):
            room = max(rows, 2 * len(self._latest))
            for name in ("_latest", "_list"):
                setattr(self, name, grown(getattr(self, name), room))

    def _write(self, log: list[Chunk], rows: Rows, stamps: Stamps) -> None:
        self._entries += len(rows)
        done = log[-1].extend(rows, stamps) if log else 0
        while done < len(rows):
            last = len(log[-1].rows) if log else _FIRST_CHUNK_ENTRIES // 2
            log.append(Chunk.empty(min(2 * last, self._chunk_entries)))
            done += log[-1].extend(rows[done:], stamps[done:])

    # ------------------------------------------------------------------------------------------------ cleaning

    def bound(self) -> int:
        """Most log entries there may be."""
        return 2 * self._held + _SPARE_CHUNKS * self._chunk_entries + _FIRST_CHUNK_ENTRIES * len(self._logs)

    def _clean(self, changes: int) -> None:
        """Pay for `changes`: some chunks once enough has been paid, and more only when the logs would exceed their bound."""
        self._credit += _EXAMINED_PER_CHANGE * changes
        if self._credit >= self._chunk_entries:
            while self._credit > 0:
                self._credit -= max(_CHUNK_COST, self._clean_next())
        while (
            self._entries > self.bound()
        ):  # ends within one round: all but last chunks are then current, those by half
            self._clean_next()

    def _clean_next(self) -> int:
        """Drop the outdated entries of the chunk at the cursor: how many entries were looked at.

        The chunk is joined to the one before if both fit in one. A list's last chunk is being written: it is left alone
        while most of it is current.
        """
        number, at = self._cursor
        log = self._logs[number]
        if at >= len(log):
            self._cursor = ((number + 1) % len(self._logs), 0)
            return 0
        chunk = log[at]
        looked_at = len(chunk)
        rows, stamps = chunk.current(self._latest, chunk.start, chunk.end)
        if at == len(log) - 1 and 2 * len(rows) > looked_at:
            self._cursor = ((number + 1) % len(self._logs), 0)
            return looked_at
        self._entries -= looked_at - len(rows)
        before = log[at - 1] if at else None
        if before is not None and len(before) + len(rows) <= self._chunk_entries:
            looked_at += len(before)
            rows = np.concatenate([before.rows[before.start : before.end], rows])
            stamps = np.concatenate([before.stamps[before.start : before.end], stamps])
            log[at - 1 : at + 1] = [Chunk(rows, stamps, len(rows))]
        elif len(rows):
            log[at] = Chunk(rows, stamps, len(rows))
            self._cursor = (number, at + 1)
        else:
            del log[at]
        return looked_at

    def _drop_outdated_head(self, number: int) -> None:
        """Forget the outdated entries before the first current one, so that no later scan looks at them again."""
        log, window = self._logs[number], _FIRST_WINDOW
        while log:
            head = log[0]
            while head.start < head.end:
                end = min(head.start + window, head.end)
                live = self._latest[head.rows[head.start : end]] == head.stamps[head.start : end]
                outdated = int(live.argmax()) if live.any() else len(live)
                head.start += outdated
                self._entries -= outdated
                if outdated < len(live):
                    return
                window = min(2 * window, _LAST_WINDOW)
            if len(log) == 1:
                return
            del log[0]
            if self._cursor[0] == number:
                self._cursor = (number, max(0, self._cursor[1] - 1))

    # ------------------------------------------------------------------------------------------------ law

    def check(self) -> list[str]:
        """One line for each finding that the inner state is broken; linear in the rows."""
        found = []
        held = np.flatnonzero(self._latest != _ABSENT)
        if len(held) != self._held:
            found.append(f"lists: {len(held)} rows held, {self._held} counted")
        lengths = np.bincount(self._list[held], minlength=len(self._logs))
        if not np.array_equal(lengths, self._lengths):
            found.append(f"lists: rows by list are {lengths.tolist()}, counted {self._lengths.tolist()}")
        for number, log in enumerate(self._logs):
            found += self._check_log(number, log, held[self._list[held] == number])
        if (entries := sum(len(chunk) for log in self._logs for chunk in log)) != self._entries:
            found.append(f"lists: {entries} entries in the logs, {self._entries} counted")
        if self._entries > self.bound():
            found.append(f"lists: {self._entries} entries in the logs, at most {self.bound()} allowed")
        return found

    def _check_log(self, number: int, log: list[Chunk], held: Rows) -> list[str]:
        parts = [chunk.current(self._latest, chunk.start, chunk.end) for chunk in log]
        rows = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)])
        stamps = np.concatenate([np.zeros(0, np.int64), *(part[1] for part in parts)])
        found = []
        if not np.array_equal(np.sort(rows), held):
            found.append(f"lists: {len(rows)} current entries of list {number} for {len(held)} held rows")
        if any(a >= b for a, b in pairwise(stamps.tolist())):
            found.append(f"lists: the log of list {number} is out of order")
        return found
