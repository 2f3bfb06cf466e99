"""Fetching ahead: what a sequence's attention window needs stays, what it will need comes before it is asked for.

Called under the directory's lock. `windows` and `patterns` say which pages; here their blocks are held, prefetched on the
lanes, and given up when the window has moved on.
"""

from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from hybridkv.migration.prefetch import Prefetches
from hybridkv.paging.backing import Blocks
from hybridkv.paging.behind import Behind
from hybridkv.paging.mappings import Mappings
from hybridkv.paging.patterns import Accesses
from hybridkv.paging.replies import AdvanceReply, Figures
from hybridkv.paging.runs import Runs
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed
from hybridkv.paging.windows import Window, plan, reach
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.replacement import Rows

_PAGES_UNDER_WAY = 256
"""Pages of one sequence that are fetched ahead at a time."""


@dataclass(slots=True, eq=False)
class _Course:
    """Where one sequence's accesses went, and what is fetched for it."""

    window: Window | None = None
    accesses: Accesses = field(default_factory=Accesses)
    under_way: set[int] = field(default_factory=set)


class Ahead:
    """Windows and patterns of all sequences."""

    def __init__(
        self,
        directory: Directory,
        mappings: Mappings,
        prefetches: Prefetches,
        runs: Runs,
        behind: Behind,
        figures: Figures,
    ) -> None:
        self._directory = directory
        self._behind = behind
        self._mappings = mappings
        self._prefetches = prefetches
        self._runs = runs
        self._figures = figures
        self._courses: dict[int, _Course] = {}

    def forget(self, sequence: Sequence) -> None:
        """It is closed."""
        self._courses.pop(sequence.id, None)

    def advance(self, sequence: Sequence, position: int, window: Window | None, keep_limit: int) -> AdvanceReply:
        """The sequence is at `position`: see `Sequences.advance`. At most `keep_limit` blocks are protected."""
        course = self._courses.setdefault(sequence.id, _Course())
        course.window = window or course.window
        size = sequence.page_blocks
        page_tokens = size * sequence.block_tokens
        pages = -(-sequence.blocks // size)
        course.accesses.note([min(position // page_tokens, max(0, pages - 1))])
        seen = None
        if course.window is not None:
            seen = reach(course.window, position, sequence.tokens, page_tokens)
            needed = tuple(islice(chain(seen.window, seen.sinks, seen.ahead), self._most_pages(sequence)))
        else:
            needed = course.accesses.next_pages(pages, _PAGES_UNDER_WAY)
        if course.window is not None or sequence.kept:
            self._keep(sequence, needed if course.window is not None else (), keep_limit)
        if seen is not None:
            self._behind.make_room(sequence, seen.behind, (len(seen.ahead) + 1) * size)
        return self._fetch(sequence, course, needed)

    def _most_pages(self, sequence: Sequence) -> int:
        """Of a window, whatever its size: what its pool holds, and a little to fetch when some of that is there."""
        slots = self._directory.books[sequence.pool].capacity_slots(sequence.block_bytes)
        return slots // sequence.page_blocks + _PAGES_UNDER_WAY

    def _keep(self, sequence: Sequence, pages: tuple[int, ...], limit: int) -> None:
        """Blocks of these pages, the first `limit`, are not evicted; those kept before are let go."""
        size = sequence.page_blocks
        wanted = [page * size + i for page in pages for i in range(size)][: max(0, limit)]
        new = set(wanted)
        gone, came = sequence.kept - new, new - sequence.kept
        self._mappings.hold(sequence, gone, -1)
        sequence.kept = new
        self._mappings.hold(sequence, came, 1)

    def _fetch(self, sequence: Sequence, course: _Course, needed: tuple[int, ...]) -> AdvanceReply:
        pages = np.array(sorted({*needed, *course.under_way}), np.int64)
        absent, moving = self._absent(sequence, pages)
        course.under_way &= moving
        wanted = plan(needed, absent, course.under_way, _PAGES_UNDER_WAY)
        cancelled = self._cancel(sequence, wanted.cancel)
        blocks = _blocks_of(sequence, wanted.fetch)
        begun = self._begin(sequence, blocks)
        course.under_way = (course.under_way | set(wanted.fetch)) - set(wanted.cancel)
        self._figures.prefetched_blocks += begun
        self._figures.prefetches_cancelled += cancelled
        return AdvanceReply(begun, cancelled, len(sequence.kept))

    def _absent(self, sequence: Sequence, pages: Blocks) -> tuple[frozenset[int], frozenset[int]]:
        """Of `pages` those with a sealed block that is not in the pool, and of those the ones on their way."""
        blocks = _blocks_of(sequence, pages)
        rows = sequence.backing.rows(blocks)
        table = self._directory.blocks
        absent = (sequence.backing.kinds(blocks) == Backed.SEALED) & (table.slot[sequence.pool][rows] == NO_SLOT)
        moving = absent & ((table.busy[rows] > 0) | self._prefetches.waits_for(rows))
        size = sequence.page_blocks
        return frozenset((blocks[absent] // size).tolist()), frozenset((blocks[moving] // size).tolist())

    def _begin(self, sequence: Sequence, blocks: Blocks) -> int:
        rows = self._rows(sequence, blocks)
        busy = self._directory.blocks.busy
        before = int(np.count_nonzero(busy[rows]))
        self._runs.bring(sequence, blocks, ahead=True)
        begun = int(np.count_nonzero(busy[rows])) - before
        return begun + self._prefetches.start(rows[busy[rows] == 0], sequence.pool)

    def _cancel(self, sequence: Sequence, pages: tuple[int, ...]) -> int:
        return self._prefetches.cancel(self._rows(sequence, _blocks_of(sequence, pages)), sequence.pool)

    def _rows(self, sequence: Sequence, blocks: Blocks) -> Rows:
        rows: Rows = sequence.backing.rows(blocks[sequence.backing.kinds(blocks) == Backed.SEALED])
        return rows


def _blocks_of(sequence: Sequence, pages: "Blocks | tuple[int, ...]") -> Blocks:
    size = sequence.page_blocks
    array = np.asarray(pages, np.int64)
    return np.asarray((array[:, None] * size + np.arange(size)).ravel(), np.int64)
