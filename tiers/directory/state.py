"""What the parts of the directory share: the lock, the block table, the pools' books, the ledger and the counters."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybridkv.tiers.clock import Clock
from hybridkv.tiers.directory.blocks import BlockTable
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.directory.feed import Feed
from hybridkv.tiers.directory.holds import HoldLedger
from hybridkv.tiers.directory.mappings import Mapper
from hybridkv.tiers.directory.quotas import Quotas
from hybridkv.tiers.directory.setbacks import Setbacks
from hybridkv.tiers.directory.speculation import Speculation
from hybridkv.tiers.directory.standings import Standings
from hybridkv.tiers.directory.unverified import Unverified
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Tier

if TYPE_CHECKING:
    from hybridkv.tiers.directory.moves import Transfer


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace as the directory sees it. `index` numbers it in the block table."""

    index: int
    fingerprint: bytes
    block_bytes: int
    key_bytes: int


class State:
    """Shared by the directory's parts, and only by them. Every change is made under `lock` (re-entrant)."""

    def __init__(
        self, books: Sequence[MappedBook | DiskBook], clock: Clock, half_life_s: float, window_s: float
    ) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.half_life_s = half_life_s
        self.window_s = window_s
        self.books = list(books)
        self.blocks = BlockTable([book.id.tier for book in books])
        self.ledger = HoldLedger()
        self.spaces: list[Space] = []
        self.sizes = np.zeros(0, np.int64)
        self.feed = Feed(self.blocks, self.spaces)
        """Hears of every copy that comes or goes, for those who watch."""
        self.transfers: dict[int, Transfer] = {}
        self.shadowed: list[dict[int, None]] = [{} for _ in books]
        """Per CPU pool: rows whose block also lies on a device, its first victims. Empty for other pools."""
        self.warming: dict[int, None] = {}
        """Rows touched below the top tier since the migrator last asked, oldest first; bounded."""
        self.counters: Counter[str] = Counter()
        self.standings = Standings(self.blocks, len(self.books))
        self.speculation = Speculation(self.blocks, self.counters)
        self.unverified = Unverified(self.blocks, self.pools_in(Tier.CPU))
        self.quotas: Quotas | None = None
        """Who may have how much; None: the host has no tenants."""
        self.setbacks = Setbacks()
        self.mapper: Mapper | None = None
        """Hears of what becomes of blocks that sequences map; None: there are no sequences."""
        self.broken: list[str] = []
        """Laws seen broken at the moment of a decision; `check` reports them."""

    @property
    def top(self) -> Tier:
        return min(book.id.tier for book in self.books)

    def pools_in(self, tier: Tier) -> list[int]:
        return [book.index for book in self.books if book.id.tier is tier]

    def mapped(self, pool: int) -> MappedBook:
        book = self.books[pool]
        if not isinstance(book, MappedBook):
            raise AssertionError(f"{book.id} holds no slots")
        return book

    @property
    def disk(self) -> DiskBook | None:
        book = self.books[-1]
        return book if isinstance(book, DiskBook) else None

    def size_of(self, row: int) -> int:
        return int(self.sizes[self.blocks.namespace[row]])

    def by_size(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """The rows in groups of one block size, order kept."""
        if len(self.spaces) == 1:
            if len(rows):
                yield self.spaces[0].block_bytes, rows
            return
        sizes = self.sizes[self.blocks.namespace[rows]]
        for size in np.unique(sizes).tolist():
            yield size, rows[sizes == size]
