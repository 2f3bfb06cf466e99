"""Quotas: how many bytes of each tier every tenant uses, exactly, and how many it may.

Bookkeeping only, under the directory's lock. Everything a tenant's blocks take counts: resident copies, reserved slots,
destinations of transfers, and slots in quarantine. Blocks that no tenant owns are on nobody's account and have no quota.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.namespace import OWNER_TAG_BYTES, owner_tag
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Tier

NOBODY: Final = 0
"""The account of blocks that no tenant owns."""

NO_QUOTA: Final = np.iinfo(np.int64).max

Accounts = NDArray[np.int16]


class Quotas:
    """One account for each tenant. `used[account, tier]` and `limits[account, tier]` are bytes."""

    def __init__(self, tenants: Sequence[str]) -> None:
        self.names = ["", *tenants]
        self.used = np.zeros((len(self.names), len(Tier)), np.int64)
        self.limits = np.full(self.used.shape, NO_QUOTA, np.int64)
        self._by_tag = {owner_tag(name): number for number, name in enumerate(self.names) if number}
        self._of_space = np.zeros(0, np.int16)

    def __repr__(self) -> str:
        return f"Quotas({', '.join(self.names[1:])})"

    # ------------------------------------------------------------------------------------------------ who

    def add_space(self, space: int, fingerprint: bytes) -> None:
        """The namespace of this number belongs to the tenant whose tag its fingerprint begins with."""
        if space >= len(self._of_space):
            self._of_space = np.concatenate([self._of_space, np.zeros(space + 1 - len(self._of_space), np.int16)])
        self._of_space[space] = self._by_tag.get(fingerprint[:OWNER_TAG_BYTES], NOBODY)

    def of_spaces(self, spaces: NDArray[np.int16]) -> Accounts:
        """The account of each namespace. int16 [n]."""
        return self._of_space[spaces]

    def of_space(self, space: int) -> int:
        return int(self._of_space[space])

    # ------------------------------------------------------------------------------------------------ how much

    def set_limits(self, limits: Mapping[str, Mapping[Tier, int | None]]) -> None:
        """Go by these from now on (None: no quota). Nothing that is there goes for it."""
        for number, name in enumerate(self.names):
            for tier, nbytes in limits.get(name, {}).items():
                self.limits[number, tier] = NO_QUOTA if nbytes is None else nbytes

    def fits(self, tier: Tier, accounts: Accounts, nbytes: int) -> NDArray[np.bool_]:
        """Of copies of `nbytes` each, which find their tenant's quota when they come in this order. bool [n]."""
        fits = np.ones(len(accounts), np.bool_)
        for account in _distinct(accounts):
            limit = int(self.limits[account, tier])
            if limit != NO_QUOTA:
                room = max(0, limit - int(self.used[account, tier])) // nbytes
                fits[np.flatnonzero(accounts == account)[room:]] = False
        return fits

    def missing(self, tier: Tier, account: int, count: int, nbytes: int) -> int:
        """How many of `count` copies of `nbytes` find no quota."""
        limit, used = int(self.limits[account, tier]), int(self.used[account, tier])
        return 0 if limit == NO_QUOTA else max(0, count - max(0, limit - used) // nbytes)

    def charge(self, tier: Tier, accounts: Accounts, nbytes: int | NDArray[np.int64]) -> None:
        """Copies are taken room for; with a negative `nbytes` they leave."""
        np.add.at(self.used[:, tier], accounts, nbytes)

    def refusal(self, tier: Tier, account: int) -> tuple[str, str]:
        """The quota's name, and its figures."""
        name = f"quota {self.names[account]}.{tier.name.lower()}_bytes"
        return name, f"{self.used[account, tier]} bytes used of {self.limits[account, tier]}"

    def rows(self, account: int) -> dict[str, dict[str, int | None]]:
        """For stats: bytes used and allowed in each tier."""
        return {
            tier.name.lower(): {
                "used_bytes": int(self.used[account, tier]),
                "quota_bytes": None if (limit := int(self.limits[account, tier])) == NO_QUOTA else limit,
            }
            for tier in Tier
        }

    def prefix(self, tier: Tier, accounts: Accounts, nbytes: int) -> int:
        """Length of the longest beginning that fits."""
        fits = self.fits(tier, accounts, nbytes)
        return len(fits) if fits.all() else int(np.argmin(fits))


def _distinct(accounts: Accounts) -> list[int]:
    """Those that occur; nearly always it is one."""
    if not len(accounts):
        return []
    first = int(accounts[0])
    return [first] if (accounts == first).all() else np.unique(accounts).tolist()


class Namespaces(Protocol):
    """What has the namespace of each row: the block table."""

    namespace: NDArray[np.int16]


class Charges:
    """One pool's side of the quotas: on whose account each of its slots or pages is."""

    def __init__(self, quotas: Quotas, tier: Tier, namespaces: Namespaces, slots: int = 0) -> None:
        """`slots`: how many header indices the pool has; 0 for a pool of pages."""
        self._quotas = quotas
        self._tier = tier
        self._namespaces = namespaces
        self.accounts = np.zeros(slots, np.int16)

    def fitting(self, rows: Rows, nbytes: int) -> Rows:
        """The first of `rows` that fit their tenants' quotas."""
        return rows[: self._quotas.prefix(self._tier, self._of(rows), nbytes)]

    def took(self, indices: NDArray[np.int64], rows: Rows, nbytes: int) -> None:
        """Slots of `nbytes`, by header index, were taken for these rows."""
        self.accounts[indices] = self._of(rows)
        self._quotas.charge(self._tier, self.accounts[indices], nbytes)

    def took_for_nobody(self, nbytes: NDArray[np.int64]) -> None:
        """Free slots of these sizes were taken, and no tenant is known to whom they belong."""
        self._quotas.charge(self._tier, np.full(len(nbytes), NOBODY, np.int16), nbytes)

    def gave(self, indices: NDArray[np.int64], nbytes: NDArray[np.int64]) -> None:
        """Slots are free again."""
        self._quotas.charge(self._tier, self.accounts[indices], -nbytes)
        self.accounts[indices] = NOBODY

    def pages(self, rows: Rows, nbytes: int) -> None:
        """Rows' copies of `nbytes` come to, or (negative) leave, a pool of pages."""
        self._quotas.charge(self._tier, self._of(rows), nbytes)

    def _of(self, rows: Rows) -> Accounts:
        return self._quotas.of_spaces(self._namespaces.namespace[rows])
