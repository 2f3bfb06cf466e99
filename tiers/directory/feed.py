"""The feed: what became of blocks, as numbered events in the order of commit, for those who watch.

Noted under the directory's lock, read without it. While nobody watches an event costs a number and nothing else; the
number tells whoever comes back that something is missing.
"""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.blocks import NO_SLOT, BlockTable
from hybridkv.tiers.directory.packed import WORD_BYTES
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import BlockState, Reason

if TYPE_CHECKING:
    from hybridkv.tiers.directory.moves import Transfer
    from hybridkv.tiers.directory.state import Space

DEFAULT_LIMIT_BYTES = 8 << 20
KEYS_PER_EVENT = 4096
LOOKED_AT_PER_READ = 4096
_EVENT_BYTES = 400
"""What an event takes beside its keys, in Python objects, about."""

_SEALED = int(BlockState.SEALED)


class EventKind(IntEnum):
    """What happened to the blocks of an event. Wire values: never renumber; 6 and 7 are the stream's own."""

    SEALED = 1
    MOVED = 2
    EVICTED = 3
    REMOVED = 4
    CLEARED = 5


@dataclass(frozen=True, slots=True)
class Event:
    """Blocks of one namespace to which the same happened at once.

    SEALED: written, and found in `target` from now on. MOVED: a copy came from `source` to `target`; `kept`: the one in
    `source` stays. EVICTED: the copy in `source` went; `last`: it was the last one, the block is gone. REMOVED: gone from
    every pool. CLEARED: so is the whole namespace, `count` blocks, no keys. Pools by index. `keys` back to back.
    """

    sequence: int
    kind: EventKind
    fingerprint: bytes
    key_bytes: int
    keys: bytes
    count: int
    source: int | None = None
    target: int | None = None
    reason: Reason | None = None
    kept: bool = False
    last: bool = False

    @property
    def nbytes(self) -> int:
        return _EVENT_BYTES + len(self.keys)


@dataclass(frozen=True, slots=True)
class News:
    """What one look found: events in order, and where to look next. `gap_before`: what was to come next is forgotten; the
    events go on with this number."""

    events: list[Event]
    next_sequence: int
    gap_before: int | None = None


@dataclass(frozen=True, slots=True)
class SpaceContent:
    """The findable blocks of one namespace: keys back to back, and for each the pools that hold it, one bit a pool
    (uint32 [n])."""

    fingerprint: bytes
    key_bytes: int
    keys: bytes
    pools: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Content:
    """What there was before the event `sequence`."""

    sequence: int
    spaces: list[SpaceContent]


class Feed:
    """A log of the last events, bounded in bytes and shared by all watchers, each of which is a place in it.

    `note…` are called under the directory's lock; `read`, `join` and `leave` from any thread, without it. Recording starts
    with the first watcher (or snapshot) and ends when the log is full and nobody watches.
    """

    def __init__(self, blocks: BlockTable, spaces: "Sequence[Space]") -> None:
        self.limit_bytes = DEFAULT_LIMIT_BYTES
        self.gaps = 0
        self._blocks = blocks
        self._spaces = spaces
        self._lock = threading.Lock()
        self._log: dict[int, Event] = {}
        self._first = self._next = 1
        self._nbytes = 0
        self._watchers = 0
        self._recording = False

    def __repr__(self) -> str:
        return f"Feed(next {self._next}, {len(self._log)} events in {self._nbytes} bytes, {self._watchers} watchers)"

    # ------------------------------------------------------------------------------------------------ note

    def sealed(self, rows: Rows, pool: int) -> None:
        """Blocks are found in `pool` from now on."""
        if self._recording:
            self._note(EventKind.SEALED, rows, target=pool)
        else:
            self._next += 1

    def moved(self, transfers: "Sequence[Transfer]", rows: Rows, leaving: NDArray[np.bool_]) -> None:
        """The copies of these transfers (of one source and target) have arrived; `leaving` bool [n]: the source goes."""
        if not self._recording:
            self._next += 1
            return
        labels = [(str(t.reason), gone) for t, gone in zip(transfers, leaving.tolist(), strict=True)]
        first = transfers[0]
        for label in dict.fromkeys(labels):
            some = np.fromiter((own == label for own in labels), np.bool_, len(labels))
            self._note(
                EventKind.MOVED, rows[some], source=first.source, target=first.target,
                reason=Reason(label[0]), kept=not label[1],
            )  # fmt: skip

    def dropped(self, rows: Rows, pool: int, reason: Reason) -> None:
        """These copies are gone from `pool`; the rows still have their keys. Blocks removed before have been told of."""
        if not self._recording:
            self._next += 1
            return
        rows = rows[self._blocks.state[rows] == _SEALED]
        last = self._blocks.copies(rows) == 0
        self._note(EventKind.EVICTED, rows[~last], source=pool, reason=reason)
        self._note(EventKind.EVICTED, rows[last], source=pool, reason=reason, last=True)

    def removed(self, rows: Rows, reason: Reason) -> None:
        """Blocks are gone for everybody who looks. A CLEAR is told of by namespace."""
        if not self._recording:
            self._next += 1
        elif reason is Reason.CLEAR:
            for space, some in self._by_space(rows):
                self._append(EventKind.CLEARED, space, b"", len(some), reason=reason)
        else:
            self._note(EventKind.REMOVED, rows, reason=reason)

    def _note(self, kind: EventKind, rows: Rows, **what: Any) -> None:
        for space, of_space in self._by_space(rows):
            for start in range(0, len(of_space), KEYS_PER_EVENT):
                some = of_space[start : start + KEYS_PER_EVENT]
                self._append(kind, space, self._packed(some, space.key_bytes), len(some), **what)

    def _by_space(self, rows: Rows) -> "Iterator[tuple[Space, Rows]]":
        """The rows by namespace, without those that only a sequence knows of."""
        private = self._blocks.private[rows]
        if private.any():
            rows = rows[private == 0]
        if not len(rows):
            return
        namespaces = self._blocks.namespace[rows]
        if (namespaces == namespaces[0]).all():
            yield self._spaces[namespaces[0]], rows
            return
        for number in np.unique(namespaces).tolist():
            yield self._spaces[number], rows[namespaces == number]

    def _packed(self, rows: Rows, key_bytes: int) -> bytes:
        words = np.ascontiguousarray(self._blocks.keys.words(rows))
        if words.shape[1] * WORD_BYTES == key_bytes:
            return words.tobytes()
        return words.view(np.uint8)[:, :key_bytes].tobytes()

    def _append(self, kind: EventKind, space: "Space", keys: bytes, count: int, **what: Any) -> None:
        with self._lock:
            event = Event(self._next, kind, space.fingerprint, space.key_bytes, keys, count, **what)
            self._log[self._next] = event
            self._next += 1
            self._nbytes += event.nbytes
            if self._nbytes > self.limit_bytes:
                self._make_room()

    def _make_room(self) -> None:
        if not self._watchers:
            self._recording = False
            self._log.clear()
            self._first, self._nbytes = self._next, 0
            return
        while self._nbytes > self.limit_bytes:
            self._nbytes -= self._log.pop(self._first).nbytes
            self._first += 1

    # ------------------------------------------------------------------------------------------------ read

    @property
    def next_sequence(self) -> int:
        """The number that the next event will have."""
        return self._next

    @property
    def figures(self) -> dict[str, int]:
        """For stats."""
        return {
            "watchers": self._watchers,
            "next_sequence": self._next,
            "buffered_events": len(self._log),
            "buffered_bytes": self._nbytes,
            "gaps": self.gaps,
        }

    def join(self, lock: AbstractContextManager[Any]) -> int:
        """One watcher more: the number its stream may begin with. `lock` is the directory's: nothing is half noted when
        recording begins."""
        with lock:
            self._record()
            self._watchers += 1
            return self._next

    def leave(self) -> None:
        """One watcher less."""
        with self._lock:
            self._watchers -= 1

    def _record(self) -> None:
        with self._lock:
            if not self._recording:
                self._first = self._next
                self._recording = True

    def read(
        self,
        sequence: int,
        limit_bytes: int,
        fingerprints: Collection[bytes] = (),
        kinds: Collection[EventKind] = (),
    ) -> News:
        """Events from `sequence` on, at most about `limit_bytes` (one at least), of some namespaces and kinds (empty: all).

        Linear in what it looks at, which is bounded; `next_sequence` tells how far it came.
        """
        with self._lock:
            start = max(sequence, self._first)
            gap = start if sequence < start else None
            self.gaps += gap is not None
            stop = min(self._next, start + LOOKED_AT_PER_READ)
            looked_at = [self._log[number] for number in range(start, stop)]
        found: list[Event] = []
        nbytes = 0
        for event in looked_at:
            if fingerprints and event.fingerprint not in fingerprints:
                continue
            if kinds and event.kind not in kinds:
                continue
            if found and nbytes + event.nbytes > limit_bytes:
                return News(found, event.sequence, gap)
            found.append(event)
            nbytes += event.nbytes
        return News(found, stop, gap)

    def content(self, fingerprint: bytes | None = None) -> Content:
        """Every findable block of a namespace (None: of all), and the number of the event that comes after. Under the
        directory's lock; linear in the table. Recording goes on from here."""
        self._record()
        blocks = self._blocks
        rows = np.flatnonzero((blocks.state == _SEALED) & (blocks.private == 0))
        namespaces = blocks.namespace[rows]
        if len(rows) and (namespaces != namespaces[0]).any():
            order = np.argsort(namespaces, kind="stable")  # of int16: linear
            rows, namespaces = rows[order], namespaces[order]
        pools = np.zeros(len(blocks.state), np.uint32)
        for pool, slots in enumerate(blocks.slot):
            pools |= (slots != NO_SLOT).astype(np.uint32) << np.uint32(pool)
        found = []
        for space in self._spaces:
            start, stop = np.searchsorted(namespaces, [space.index, space.index + 1]).tolist()
            if start < stop and fingerprint in (None, space.fingerprint):
                some = rows[start:stop]
                keys = self._packed(some, space.key_bytes)
                found.append(SpaceContent(space.fingerprint, space.key_bytes, keys, pools[some]))
        return Content(self._next, found)
