"""Replacement policies: each orders the rows of one pool, coldest first (`hybridkv.tiers.replacement.Policy`).

They decide nothing else: which of the coldest may go (leases, moves in flight, children) is judged by the caller.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from hybridkv.migration.policies.arc import Arc
from hybridkv.migration.policies.clock import Clock
from hybridkv.migration.policies.fifo import Fifo
from hybridkv.migration.policies.gdsf import Gdsf
from hybridkv.migration.policies.lfu import Lfu
from hybridkv.migration.policies.lru import Lru
from hybridkv.migration.policies.rhq import Rhq
from hybridkv.migration.policies.s3fifo import S3Fifo
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.replacement import Policy, PoolFacts

__all__ = ["DEFAULT_HALF_LIFE_S", "POLICY_NAMES", "make_policy", "succeed"]

DEFAULT_HALF_LIFE_S: Final = 600.0

_MAKERS: Final[dict[str, Callable[[PoolFacts, float], Policy]]] = {
    "lru": lambda facts, half_life_s: Lru(),
    "lfu": lambda facts, half_life_s: Lfu(facts, half_life_s),
    "fifo": lambda facts, half_life_s: Fifo(),
    "clock": lambda facts, half_life_s: Clock(facts),
    "arc": lambda facts, half_life_s: Arc(facts),
    "s3fifo": lambda facts, half_life_s: S3Fifo(facts),
    "gdsf": lambda facts, half_life_s: Gdsf(facts),
    "rhq": lambda facts, half_life_s: Rhq(facts),
}
POLICY_NAMES: Final = tuple(_MAKERS)


def make_policy(name: str, facts: PoolFacts, *, half_life_s: float = DEFAULT_HALF_LIFE_S) -> Policy:
    """An empty policy for the pool that `facts` tell of. Raises InvalidArgumentError for an unknown name."""
    maker = _MAKERS.get(name)
    if maker is None:
        raise InvalidArgumentError("policy", f"{name!r} is none of {', '.join(POLICY_NAMES)}")
    return maker(facts, half_life_s)


def succeed(old: Policy, new: Policy, now: float) -> None:
    """`new`, empty, takes over the rows that `old` holds, in its order: for changing a pool's policy while it runs.

    Linear in the rows; under the lock. What `old` learned ends with it; the blocks' access history stays known.
    """
    windows = list(old.scan())
    if windows:
        new.inserted(np.concatenate(windows), now)
