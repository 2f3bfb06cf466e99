"""Replays of a workload on three tiers under two plain models, on the shipped policies and victim choice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.simulate import Request, SimulatedTier, block_count, prefix_length
from hybridkv.tiers.replacement import NO_ROW, Policy, Rows

Model = Literal["exclusive", "inclusive"]

_TIERS = 3
_NOWHERE = _TIERS


@dataclass(slots=True)
class TierCounts:
    """What a replay counted, in blocks; tiers in the order GPU, CPU, disk. `up[t]`, `down[t]`: see the models."""

    hits: list[int] = field(default_factory=lambda: [0] * _TIERS)
    up: list[int] = field(default_factory=lambda: [0] * (_TIERS - 1))
    down: list[int] = field(default_factory=lambda: [0] * (_TIERS - 1))
    dropped: int = 0
    new_blocks: int = 0
    hits_by_request: list[int] = field(default_factory=list)


def three_tiers(
    requests: Sequence[Request],
    policies: Sequence[Policy],
    capacities_blocks: Sequence[int],
    model: Model,
    *,
    served: Callable[[], None] = lambda: None,
) -> TierCounts:
    """Replay on GPU, CPU and disk of these capacities. A hit is served by the highest tier that has the block; `served` is
    called after each request.

    exclusive  A block lies in one tier. A request brings all its blocks to the GPU; then each tier is trimmed by moving
               its victims to the next (from the disk: dropped). up: CPU -> GPU, disk -> GPU; down: GPU -> CPU, CPU -> disk.
    inclusive  A new block is written to all tiers, and every access refreshes, or brings back, its copy in each; tiers trim
               themselves by dropping. up: copied to the GPU, copied to the CPU; down: written to the CPU, to the disk.
    """
    ladder = _Ladder(policies, capacities_blocks, block_count(requests))
    counts = TierCounts()
    serve = _serve_exclusive if model == "exclusive" else _serve_inclusive
    for request in requests:
        chain = request.chain
        prefix = chain[: prefix_length(ladder.highest[chain] < _NOWHERE)]
        for tier, hit in enumerate(np.bincount(ladder.highest[prefix], minlength=_TIERS).tolist()):
            counts.hits[tier] += hit
        counts.hits_by_request.append(len(prefix))
        counts.new_blocks += int(np.count_nonzero(ladder.highest[chain] == _NOWHERE))
        ladder.parents[chain[1:]] = chain[:-1]
        serve(ladder, chain[::-1], request.at_s, counts)
        served()
    return counts


class _Ladder:
    """The tiers, and where each block's highest copy is, with children counted by it (law 7)."""

    def __init__(self, policies: Sequence[Policy], capacities: Sequence[int], blocks: int) -> None:
        self.tiers = [SimulatedTier(p, c, blocks) for p, c in zip(policies, capacities, strict=True)]
        self.highest = np.full(blocks, _NOWHERE)
        self.parents = np.full(blocks, NO_ROW)
        self._children_at = np.zeros((_TIERS + 1, blocks), np.int64)

    def settle(self, rows: Rows) -> None:
        """Copies of `rows` came or went: note where the highest ones are now."""
        highest = np.full(len(rows), _NOWHERE)
        for number in reversed(range(_TIERS)):
            highest[self.tiers[number].resident[rows]] = number
        parents, before = self.parents[rows], self.highest[rows]
        moved = (parents != NO_ROW) & (before != highest)
        np.subtract.at(self._children_at, (before[moved], parents[moved]), 1)
        np.add.at(self._children_at, (highest[moved], parents[moved]), 1)
        self.highest[rows] = highest

    def trim(self, number: int) -> Rows:
        """Drop what is above the tier's capacity: the blocks, in the order in which they went."""
        tier = self.tiers[number]
        if tier.excess <= 0:
            return np.zeros(0, np.int64)
        alone = self.highest == number
        blocking = np.where(alone, self._children_at[: number + 1].sum(axis=0), 0)
        victims = tier.victims(tier.resident, blocking, np.where(alone, self.parents, NO_ROW))
        tier.drop(victims)
        self.settle(victims)
        return victims


def _serve_exclusive(ladder: _Ladder, rows: Rows, now: float, counts: TierCounts) -> None:
    gpu = ladder.tiers[0]
    for number, lower in enumerate(ladder.tiers[1:]):
        rising = rows[lower.resident[rows]]
        lower.drop(rising)
        counts.up[number] += len(rising)
    gpu.put(rows[~gpu.resident[rows]], now)
    gpu.policy.touched(rows, now)
    ladder.settle(rows)
    for number in range(_TIERS):
        going = ladder.trim(number)
        if number + 1 < _TIERS:
            ladder.tiers[number + 1].put(going, now)
            ladder.settle(going)
            counts.down[number] += len(going)
        else:
            counts.dropped += len(going)


def _serve_inclusive(ladder: _Ladder, rows: Rows, now: float, counts: TierCounts) -> None:
    known = ladder.highest[rows] < _NOWHERE
    for number, tier in enumerate(ladder.tiers):
        missing: NDArray[np.bool_] = ~tier.resident[rows]
        if number + 1 < _TIERS:
            counts.up[number] += int(np.count_nonzero(missing & known))
            counts.down[number] += int(np.count_nonzero(~known))
        tier.put(rows[missing], now)
        tier.policy.touched(rows, now)
    ladder.settle(rows)
    for number in range(_TIERS):
        ladder.trim(number)
