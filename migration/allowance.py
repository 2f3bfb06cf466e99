"""Room within a tenant's quota: whether it is short, what is on its way out, and moving the tenant's own coldest down.

Called under the directory's lock. Nothing is ever lost for a quota here: what cannot go down stays, and whoever asked is
refused.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.directory.quotas import Quotas
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Priority, Reason

Lower = Callable[[int, list[int], Reason, Priority], tuple[int, int]]
"""`Reclaim.lower`."""


class Allowance:
    """The quotas as those see them who need room. Without tenants nothing is ever short."""

    def __init__(self, directory: Directory, lower: Lower, keeps: Callable[[int, Rows], NDArray[np.bool_]]) -> None:
        """`keeps(pool, rows)`: whose block stays somewhere when its copy leaves the pool by `lower`."""
        self._directory = directory
        self._lower = lower
        self._keeps = keeps

    def short(self, pool: int, space: int, count: int) -> int:
        """Of `count` more copies of a namespace's blocks in the pool, how many find no quota."""
        quotas = self._quotas
        if quotas is None:
            return 0
        size = self._directory.state.spaces[space].block_bytes
        return quotas.missing(self._directory.books[pool].id.tier, quotas.of_space(space), count, size)

    def make(self, pool: int, space: int, count: int) -> bool:
        """See to it that `count` more copies find quota: True when they do now, or something under way gives some back;
        False when nothing of the tenant's can go down."""
        short = self.short(pool, space, count)
        if not short:
            return True
        quotas, book = self._quotas, self._directory.books[pool]
        if quotas is None or not isinstance(book, MappedBook):
            return False
        account = quotas.of_space(space)
        missing = short - self._coming(pool, account, self._directory.state.spaces[space].block_bytes)
        if missing <= 0:
            return True
        blocks = self._directory.blocks
        victims = self._directory.choice.victims(
            pool, None, missing, Priority.DEMAND, lambda rows: quotas.of_spaces(blocks.namespace[rows]) == account
        )
        rows = np.array(victims, np.int64)
        keeps = self._keeps(pool, rows)
        rows = rows if keeps.all() else rows[: int(np.argmin(keeps))]
        freed, started = self._lower(pool, rows.tolist(), Reason.QUOTA, Priority.DEMAND)
        return freed + started > 0 or missing < short

    def made(self, pool: int, space: int, count: int) -> tuple[bool, int]:
        """(Something is under way, or was freed, that gives quota back; of `count`, how many find none now)."""
        short = self.short(pool, space, count)
        if not short:
            return False, 0
        return self.make(pool, space, count), self.short(pool, space, count)

    def _coming(self, pool: int, account: int, size: int) -> int:
        """Copies of `size` that fit the quota once transfers in flight have taken the tenant's others away."""
        quotas = self._quotas
        assert quotas is not None
        leaving = sum(
            t.size
            for t in self._directory.state.transfers.values()
            if t.source == pool and t.demotes and t.target != pool and quotas.of_space(t.space) == account
        )
        return leaving // size

    def refusal(self, pool: int, space: int, count: int) -> ResourceExhaustedError | None:
        """What to answer where no room was found for `count` blocks: the quota's name and figures, when it is that."""
        quotas = self._quotas
        if quotas is None or not self.short(pool, space, 1):
            return None
        name, figures = quotas.refusal(self._directory.books[pool].id.tier, quotas.of_space(space))
        size = self._directory.state.spaces[space].block_bytes
        self._directory.state.counters["refused_by_quota"] += 1
        return ResourceExhaustedError(name, f"{figures}, no room for {count} blocks of {size} bytes")

    @property
    def _quotas(self) -> Quotas | None:
        return self._directory.state.quotas
