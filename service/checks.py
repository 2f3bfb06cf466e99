"""What the facade refuses, by name and limit, before anything is changed."""

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.directory.holds import Reservation
from hybridkv.tiers.directory.state import Space
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Tier


def check_keys(space: Space, keys: Keys, limit: int) -> None:
    """At least one key, no more than a call may name, of the namespace's width."""
    if not len(keys):
        raise InvalidArgumentError("keys", "the list is empty; at least one key")
    if len(keys) > limit:
        raise InvalidArgumentError("keys", f"{len(keys)} in one call; the limit is {limit}")
    if keys.width != space.key_bytes:
        raise InvalidArgumentError("keys", f"{keys.width} bytes wide; this namespace's are {space.key_bytes}")


def check_counts(keys: Keys, counts: NDArray[np.int64] | None) -> None:
    """One for each key, each at least 1."""
    if counts is None:
        return
    if len(counts) != len(keys):
        raise InvalidArgumentError("counts", f"{len(counts)} given for {len(keys)} keys")
    if len(counts) and counts.min() < 1:
        raise InvalidArgumentError("counts", f"{int(counts.min())}: each must be at least 1")


def check_chain(space: Space, keys: Keys, parent: bytes) -> None:
    """Each key once, and none is its own ancestor."""
    if parent and len(parent) != space.key_bytes:
        raise InvalidArgumentError("parent", f"{len(parent)} bytes; this namespace's keys are {space.key_bytes}")
    distinct = set(keys.as_list())
    if len(distinct) != len(keys):
        raise InvalidArgumentError("keys", f"{len(keys) - len(distinct)} occur twice; a chain has each key once")
    if parent in distinct:
        raise InvalidArgumentError("parent", "is one of the keys; a chain has no cycle")


def check_device(tier: Tier | None, device: int | None) -> None:
    """A device is named for the GPU tier only."""
    if device is not None and tier is not Tier.GPU:
        raise InvalidArgumentError("device", "needs tier gpu")


def checked_positions(held: Reservation, indices: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Positions in the reservation that are ours to write; None means all of them."""
    count = len(held.keys)
    if indices is None:
        return np.flatnonzero(held.slots >= 0)
    outside = indices[(indices < 0) | (indices >= count)]
    if len(outside):
        raise InvalidArgumentError("indices", f"{int(outside[0])}: the reservation has keys 0 to {count - 1}")
    if len(np.unique(indices)) != len(indices):
        raise InvalidArgumentError("indices", "one occurs twice")
    foreign = indices[held.slots[indices] < 0]
    if len(foreign):
        raise InvalidArgumentError("indices", f"{int(foreign[0])} is not ours to write (it was not NEW)")
    return np.asarray(indices, np.int64)
