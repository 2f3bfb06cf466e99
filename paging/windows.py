"""Sliding windows with sinks: which pages attention at a position needs, which lie behind it, and what to fetch ahead.

Pages are numbered from the start of the sequence; ranges are half-open. Pure functions, thread-safe: nothing here
fetches, cancels or evicts anything.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from hybridkv.tiers.checks import checked_int

MAX_TOKENS = 1 << 40


@dataclass(frozen=True, slots=True)
class Window:
    """What attention looks at from a position p: tokens [0, sink_tokens) and the `window_tokens` up to and with p.

    `ahead_tokens` is how far the pages behind p are fetched before p gets there; 0 switches that off. A wrong value
    raises InvalidArgumentError.
    """

    window_tokens: int
    sink_tokens: int = 0
    ahead_tokens: int = 0

    def __post_init__(self) -> None:
        checked_int("window.window_tokens", self.window_tokens, 1, MAX_TOKENS)
        checked_int("window.sink_tokens", self.sink_tokens, 0, MAX_TOKENS)
        checked_int("window.ahead_tokens", self.ahead_tokens, 0, MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class Reach:
    """Pages as a position sees them. The four ranges do not overlap; `sinks` and `window` are needed now."""

    sinks: range
    behind: range
    window: range
    ahead: range

    def needs(self, page: int) -> bool:
        """Whether attention looks at the page now."""
        return page in self.sinks or page in self.window

    def wants(self, page: int) -> bool:
        """Whether the page is needed now or soon: it is not to be evicted for a prefetch."""
        return self.needs(page) or page in self.ahead


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about prefetches. `fetch` in the order of need; `cancel` are pages under way that nobody wants any more."""

    fetch: tuple[int, ...]
    cancel: tuple[int, ...]


def reach(window: Window, position: int, tokens: int, page_tokens: int) -> Reach:
    """What position `position` of a sequence of `tokens` tokens sees (the position may be its end).

    A page counts as needed when one of its tokens is.
    """
    pages = -(-tokens // page_tokens)
    end = min(position // page_tokens + 1, pages)
    start = min(max(0, position + 1 - window.window_tokens) // page_tokens, end)
    sinks = min(-(-window.sink_tokens // page_tokens), start)
    far = min(-(-(position + 1 + window.ahead_tokens) // page_tokens), pages)
    return Reach(range(sinks), range(sinks, start), range(start, end), range(end, max(end, far)))


def plan(
    wanted: range | tuple[int, ...],
    absent: AbstractSet[int],
    under_way: AbstractSet[int],
    limit_pages: int,
) -> Plan:
    """Fetch what of `wanted` is `absent` and not `under_way`, as long as no more than `limit_pages` are under way then.

    What is under way but not wanted is cancelled, and makes room. `wanted` in the order of need.
    """
    order = tuple(wanted)
    keep = under_way & frozenset(order)
    missing = [page for page in order if page in absent and page not in keep]
    room = max(0, limit_pages - len(keep))
    return Plan(tuple(missing[:room]), tuple(sorted(under_way - keep)))
