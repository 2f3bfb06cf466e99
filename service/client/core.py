"""What the sync and the asyncio client share that needs no I/O: checking and splitting keys, answers, deadlines."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, Tier

States = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Found:
    """Answer of a lookup; it promises nothing. `states` holds an Outcome per key, `tiers` the highest Tier that has
    it (meaningless for a MISS), `prefix` how many keys from the start are HIT."""

    prefix: int
    states: States
    tiers: States


def prefix_of(states: States) -> int:
    """How many keys from the start are HIT."""
    misses = np.flatnonzero(states != Outcome.HIT)
    return int(misses[0]) if len(misses) else len(states)


def tier_of(tier: "Tier | str | None", field: str = "tier") -> Tier | None:
    """A Tier, from itself or its name ("gpu", "cpu", "disk"). Raises InvalidArgumentError."""
    if tier is None or isinstance(tier, Tier):
        return tier
    try:
        return Tier[tier.upper()]
    except (KeyError, AttributeError):
        names = ", ".join(known.name.lower() for known in Tier)
        raise InvalidArgumentError(field, f"{tier!r} is no tier; known: {names}, or None") from None


def one_call(keys: Keys, limit: int) -> Keys:
    """The keys, when one call takes as many. Raises InvalidArgumentError."""
    if len(keys) > limit:
        raise InvalidArgumentError("keys", f"{len(keys)} keys; one call takes {limit} (limits.keys_per_call_count)")
    return keys


def check_follows(keys: Keys, parent: bytes | None) -> None:
    """Each key once, after a parent that is none of them. Raises InvalidArgumentError."""
    distinct = set(keys)
    if len(distinct) < len(keys):
        raise InvalidArgumentError("keys", f"{len(keys) - len(distinct)} occur twice; a chain has each key once")
    if parent is None:
        return
    if len(parent) != keys.width:
        raise InvalidArgumentError("parent", f"has {len(parent)} bytes; keys here have {keys.width}")
    if parent in distinct:
        raise InvalidArgumentError("parent", "is one of the keys; a chain has no cycle")


def batches(keys: Keys, limit: int) -> Iterator[tuple[slice, Keys]]:
    """The keys in calls of at most `limit`. No key is one call, so that the daemon says what it thinks of that."""
    for start in range(0, max(len(keys), 1), limit):
        chosen = slice(start, min(start + limit, len(keys)))
        yield chosen, keys[chosen]


def as_keys(keys: "Keys | Iterable[bytes]", width: int) -> Keys:
    """Keys of the namespace's width. Raises InvalidArgumentError."""
    return Keys.of(keys, width)


class Budget:
    """How long one call of the user may take: `wait_s` of waiting that was asked for, and `timeout_s` for the rest.

    One budget spans every attempt and every batch of the call.
    """

    def __init__(self, wait_s: float, timeout_s: float) -> None:
        if not wait_s >= 0:
            raise InvalidArgumentError("timeout_s", f"must be at least 0 seconds, got {wait_s}")
        now = time.monotonic()
        self._wait_until = now + wait_s
        self._until = now + wait_s + timeout_s

    def wait_s(self) -> float:
        """What is left to wait."""
        return max(0.0, self._wait_until - time.monotonic())

    def left_s(self) -> float:
        """What is left in all; 0 when over."""
        return max(0.0, self._until - time.monotonic())


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for, so that it can be asked again."""

    keys: Keys
    tier: Tier | None = None
    device: int | None = None
    views: bool = True
    independent: bool = False
    request: int | None = None
    recompute_s: float | None = None
    hints: Hints = NO_HINTS
