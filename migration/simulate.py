"""Replays of a workload on the shipped policies and victim choice, without a directory: what one tier would have hit.

A request is a chain of blocks. Its hits are the longest prefix of the chain that is resident when it arrives. Then its
missing blocks come in, all of its blocks are touched once in reverse order, and the tier, which may have overshot, is
trimmed to its capacity; a block of the request may itself be a victim. Nothing is moved, nothing waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridkv.tiers.replacement import NO_ROW, Policy, Rows
from hybridkv.tiers.victims import choose_victims

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Request:
    """One use of a chain: its blocks, numbered from 0, in prefix order; when, in seconds; and the prompt's tokens."""

    at_s: float
    chain: Rows
    input_tokens: int = 0


class PlainFacts:
    """`PoolFacts` of a simulated tier: a row is its own identity, all blocks are of one size."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks

    def capacity_slots(self) -> int:
        return self._capacity_blocks

    def identities(self, rows: Rows) -> NDArray[np.uint64]:
        return rows.astype(np.uint64)

    def block_bytes(self, rows: Rows) -> NDArray[np.int64]:
        return np.ones(len(rows), np.int64)

    def dirty(self, rows: Rows) -> NDArray[np.bool_]:
        return np.zeros(len(rows), np.bool_)

    def history(self, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.zeros(len(rows)), np.zeros(len(rows))


class SimulatedTier:
    """Blocks in one place, in a policy's order."""

    def __init__(self, policy: Policy, capacity_blocks: int, blocks: int) -> None:
        self.policy, self.capacity_blocks = policy, capacity_blocks
        self.resident = np.zeros(blocks, np.bool_)

    @property
    def excess(self) -> int:
        """Blocks above the capacity; negative where there is room."""
        return len(self.policy) - self.capacity_blocks

    def put(self, rows: Rows, now: float) -> None:
        self.policy.inserted(rows, now)
        self.resident[rows] = True

    def drop(self, rows: Rows) -> None:
        self.policy.removed(rows)
        self.resident[rows] = False

    def victims(self, may_go: NDArray[np.bool_], blocking_children: Counts, parents: Rows) -> Rows:
        """The blocks to drop for the tier to be within its capacity. All columns have an entry per block."""
        if self.excess <= 0:
            return np.zeros(0, np.int64)
        picked = choose_victims(
            self.policy.scan(),
            may_go.__getitem__,
            blocking_children.__getitem__,
            parents.__getitem__,
            self.excess,
        )
        return np.array(picked, np.int64)


def block_count(requests: Sequence[Request]) -> int:
    """One more than the largest block number."""
    return 1 + max((int(request.chain.max()) for request in requests if len(request.chain)), default=-1)


def prefix_length(resident: NDArray[np.bool_]) -> int:
    """Length of the leading run of True."""
    return int(np.append(resident, False).argmin())


def replay_one_tier(
    requests: Sequence[Request],
    policy: Policy,
    capacity_blocks: int,
    *,
    chain_order: bool = True,
    served: Callable[[], None] = lambda: None,
) -> list[int]:
    """Hit blocks of each request; `served` is called after each.

    `chain_order` off: blocks are independent, as in textbooks: no block waits for its children to go, and those of the
    request at hand, as many as fit from its head, are never victims.
    """
    blocks = block_count(requests)
    tier = SimulatedTier(policy, capacity_blocks, blocks)
    parents, children = np.full(blocks, NO_ROW), np.zeros(blocks, np.int64)
    hits = []
    for request in requests:
        chain, reverse = request.chain, request.chain[::-1]
        hits.append(prefix_length(tier.resident[chain]))
        missing = reverse[~tier.resident[reverse]]
        tier.put(missing, request.at_s)
        policy.touched(reverse, request.at_s)
        may_go = tier.resident
        if chain_order:
            parents[chain[1:]] = chain[:-1]
            count_children(children, parents, missing, 1)
        else:
            may_go = tier.resident.copy()
            may_go[chain[:capacity_blocks]] = False
        victims = tier.victims(may_go, children, parents)
        count_children(children, parents, victims, -1)
        tier.drop(victims)
        served()
    return hits


def count_children(children: Counts, parents: Rows, rows: Rows, change: int) -> None:
    """`rows` came (+1) or went (-1): carry it into their parents' counts."""
    above = parents[rows]
    np.add.at(children, above[above != NO_ROW], change)


def hit_tokens(requests: Sequence[Request], hits: Sequence[int], block_tokens: int) -> int:
    """Prompt tokens that the hit blocks covered; the last block of a prompt may be partly filled."""
    return sum(min(n * block_tokens, request.input_tokens) for request, n in zip(requests, hits, strict=True))
