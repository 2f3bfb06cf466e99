"""Access patterns: is a sequence read page after page, or in strides, and which pages come next?

Not thread-safe; `detect` and `predicted` are pure.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

REMEMBERED_PAGES = 16
CONFIRMED_STEPS = 3
"""Equal steps in a row that make a pattern. Two happen by chance often enough to fetch pages that nobody reads."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Accesses go on by `stride` pages (1 is sequential, negative backwards) and have done so `steps` times in a row."""

    stride: int
    steps: int

    @property
    def sequential(self) -> bool:
        return self.stride == 1


def detect(pages: Sequence[int]) -> Pattern | None:
    """The pattern of the newest accesses (newest last); None when the last steps differ. A page that is accessed again
    at once counts once."""
    steps = [after - before for before, after in itertools.pairwise(pages) if after != before]
    if len(steps) < CONFIRMED_STEPS:
        return None
    alike = 0
    for step in reversed(steps):
        if step != steps[-1]:
            break
        alike += 1
    return Pattern(steps[-1], alike) if alike >= CONFIRMED_STEPS else None


def predicted(pattern: Pattern, page: int, page_count: int, limit_pages: int) -> tuple[int, ...]:
    """The pages that come after `page`, nearest first, all in [0, page_count).

    Twice as many as steps were seen, up to `limit_pages`: as with the readahead of files, a pattern earns its reach.
    """
    reach = min(limit_pages, 2 * pattern.steps)
    ahead = (page + pattern.stride * n for n in range(1, reach + 1))
    return tuple(n for n in ahead if 0 <= n < page_count)


class Accesses:
    """The last accesses of one sequence. A batch (a window, a prompt) counts with the pages the batch before did not have:
    a window that moves on by a page is one step."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=REMEMBERED_PAGES)
        self._last_batch: frozenset[int] = frozenset()

    def note(self, pages: Iterable[int]) -> None:
        """A batch of pages was accessed, in this order."""
        batch = tuple(dict.fromkeys(pages))
        self._recent.extend(page for page in batch if page not in self._last_batch)
        self._last_batch = frozenset(batch)

    @property
    def pattern(self) -> Pattern | None:
        return detect(tuple(self._recent))

    def next_pages(self, page_count: int, limit_pages: int) -> tuple[int, ...]:
        """Pages to fetch ahead; none without a pattern."""
        pattern = self.pattern
        return () if pattern is None else predicted(pattern, self._recent[-1], page_count, limit_pages)

    def __repr__(self) -> str:
        return f"Accesses({list(self._recent)}, {self.pattern})"
