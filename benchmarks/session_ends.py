"""What it is worth to be told that a session has ended: a trace with sessions against one tier, with and without the hint.

    python -m hybridkv.benchmarks.session_ends TRACE [--policies lru rhq] [--shares 0.5 1 2 5 10 25]

The last request of each session carries the hint. As in the daemon, the blocks that its chain has alone, tail first, then
are the first victims, in the order in which sessions ended, until they are used again; everything else is as in
`hybridkv.migration.simulate.replay_one_tier`, and so are the figures without the hint. A chain's block is shared when
another block in the tier follows it. Told: block hit rates, and that of the offline optimum.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hybridkv.migration.optimum import optimum
from hybridkv.migration.policies import make_policy
from hybridkv.migration.simulate import (
    PlainFacts,
    Request,
    SimulatedTier,
    block_count,
    count_children,
    prefix_length,
    replay_one_tier,
)
from hybridkv.migration.trace import read_trace
from hybridkv.tiers.replacement import NO_ROW, Policy, Rows
from hybridkv.tiers.victims import choose_victims


def load(path: Path) -> tuple[Sequence[Request], list[bool]]:
    """The trace's requests, and of each whether it is its session's last."""
    trace = read_trace(path)
    return trace.requests, trace.last_of_session()


class HintedTier(SimulatedTier):
    """A tier whose first victims are the blocks of sessions that ended."""

    def __init__(self, policy: Policy, capacity_blocks: int, blocks: int) -> None:
        super().__init__(policy, capacity_blocks, blocks)
        self.parents, self.children = np.full(blocks, NO_ROW), np.zeros(blocks, np.int64)
        self._cold: dict[int, None] = {}
        self._is_cold = np.zeros(blocks, np.bool_)

    def serve(self, request: Request, *, ends: bool) -> int:
        """One request: its hit blocks."""
        chain, reverse = request.chain, request.chain[::-1]
        hits = prefix_length(self.resident[chain])
        missing = reverse[~self.resident[reverse]]
        self.put(missing, request.at_s)
        self.policy.touched(reverse, request.at_s)
        self._warm(chain)
        self.parents[chain[1:]] = chain[:-1]
        count_children(self.children, self.parents, missing, 1)
        if ends:
            self._cool(reverse)
        self._trim()
        return hits

    def _cool(self, reverse: Rows) -> None:
        children = self.children[reverse]
        own = np.arange(len(reverse)) > 0  # each but the last has the one behind it
        shared = np.flatnonzero(children > own)
        alone = reverse[: shared[0]] if len(shared) else reverse
        self._cold.update(dict.fromkeys(alone.tolist()))
        self._is_cold[alone] = True

    def _warm(self, rows: Rows) -> None:
        for block in rows[self._is_cold[rows]].tolist():
            del self._cold[block]
        self._is_cold[rows] = False

    def _scan(self) -> Iterator[Rows]:
        yield np.fromiter(self._cold, np.int64, len(self._cold))
        for window in self.policy.scan():
            yield window[~self._is_cold[window]]

    def _trim(self) -> None:
        if self.excess <= 0:
            return
        looks = self.resident.__getitem__, self.children.__getitem__, self.parents.__getitem__
        going = np.array(choose_victims(self._scan(), *looks, self.excess), np.int64)
        count_children(self.children, self.parents, going, -1)
        self._warm(going)
        self.drop(going)


def hinted(requests: Sequence[Request], ends: Sequence[bool], policy: Policy, capacity_blocks: int) -> int:
    """Hit blocks in all, with the hint."""
    tier = HintedTier(policy, capacity_blocks, block_count(requests))
    return sum(tier.serve(request, ends=last) for request, last in zip(requests, ends, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--policies", nargs="+", default=["lru", "rhq"])
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.5, 1, 2, 5, 10, 25], help="% of the unique blocks"
    )
    options = parser.parse_args()
    requests, ends = load(options.trace)
    accesses = sum(len(request.chain) for request in requests)
    unique = len(np.unique(np.concatenate([request.chain for request in requests])))
    print("share  blocks  policy   without     with  optimum")
    for share in options.shares:
        capacity = int(unique * share / 100)
        best = sum(optimum(requests, capacity)) / accesses
        for name in options.policies:
            facts = PlainFacts(capacity)
            without = sum(replay_one_tier(requests, make_policy(name, facts), capacity)) / accesses
            told = hinted(requests, ends, make_policy(name, facts), capacity) / accesses
            print(f"{share:>5g} {capacity:>7} {name:>7} {without:>9.4f} {told:>8.4f} {best:>8.4f}", flush=True)


if __name__ == "__main__":
    main()
