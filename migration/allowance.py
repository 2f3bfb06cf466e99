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
        if not isinstance(self._directory.books[pool], MappedBook):
            return False
        size, started = self._directory.state.spaces[space].block_bytes, 0
        while (missing := self.short(pool, space, count) - self._leaving_bytes(pool, space) // size) > 0:
            freed, started = self._lower(pool, self._victims(pool, space, missing), Reason.QUOTA, Priority.DEMAND)
            if started or not freed:
                break
        return started > 0 or self.short(pool, space, count) < short or self.coming(pool, space)

    def _victims(self, pool: int, space: int, want: int) -> list[int]:
        """The tenant's coldest, of any size, as far as their blocks stay somewhere."""
        quotas, blocks = self._quotas, self._directory.blocks
        assert quotas is not None
        account = quotas.of_space(space)
        victims = self._directory.choice.victims(
            pool, None, want, Priority.DEMAND, lambda rows: quotas.of_spaces(blocks.namespace[rows]) == account
        )
        rows = np.array(victims, np.int64)
        keeps = self._keeps(pool, rows)
        return victims if keeps.all() else victims[: int(np.argmin(keeps))]

    def coming(self, pool: int, space: int) -> bool:
        """Whether transfers in flight take something of the tenant's out of the pool."""
        return self._leaving_bytes(pool, space) > 0

    def made(self, pool: int, space: int, count: int) -> tuple[bool, int]:
        """(Something is under way, or was freed, that gives quota back; of `count`, how many find none now)."""
        short = self.short(pool, space, count)
        if not short:
            return False, 0
        return self.make(pool, space, count), self.short(pool, space, count)

    def found_below(self, below: int | None, rows: Rows) -> bool:
        """Blocks of one namespace are to go down there, where their tenant may have no more: its other blocks there go
        further down, or begin to. Whether the first of `rows` finds quota by that."""
        if below is None:
            return False
        self.make(below, int(self._directory.blocks.namespace[rows[0]]), len(rows))
        return len(self._directory.fitting(rows[:1], below)) > 0

    def of_others(self, rows: Rows, run: Rows) -> Rows:
        """Those of other tenants than the one of `run`, its head: what may not go may be an ancestor of its own tenant's
        blocks, and of no others."""
        quotas, spaces = self._quotas, self._directory.blocks.namespace
        if quotas is None:
            return rows[len(run) :]
        others: Rows = rows[quotas.of_spaces(spaces[rows]) != quotas.of_space(int(spaces[run[0]]))]
        return others

    def _leaving_bytes(self, pool: int, space: int) -> int:
        quotas = self._quotas
        if quotas is None:
            return 0
        account = quotas.of_space(space)
        return sum(
            t.size
            for t in self._directory.state.transfers.values()
            if t.source == pool and t.demotes and t.target != pool and quotas.of_space(t.space) == account
        )

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
