"""Runs of a replay: a trace against a config, a policy or a model of three tiers, and what came of it, as figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridkv.migration.optimum import optimum
from hybridkv.migration.policies import make_policy
from hybridkv.migration.simulate import PlainFacts, hit_tokens, replay_one_tier
from hybridkv.migration.simulate_tiers import Model, three_tiers
from hybridkv.migration.trace import Trace, block_tokens_of
from hybridkv.service.config import Config
from hybridkv.service.replay.host import SimulatedHost
from hybridkv.service.replay.worker import KEY_BYTES, Worker
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.directory.books import Book
from hybridkv.tiers.errors import InvalidArgumentError, LawViolationError
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Tier

TIERS = tuple(tier.name.lower() for tier in Tier)
ONE_TIER = "tier"

Served = Callable[[], None]


@dataclass(frozen=True, slots=True)
class TierFigures:
    """One tier of a run; the GPU tier is all its devices together."""

    policy: str
    capacity_blocks: int
    hit_blocks: int


@dataclass(frozen=True, slots=True)
class Run:
    """What one run found. `moves`: blocks by way ("cpu_to_gpu", "disk_dropped"), None where nothing can move;
    `disk_writes` None without a disk tier; `new_blocks`: blocks that came in and were nowhere before."""

    config: str | None
    model: str | None
    chain_order: bool
    tiers: dict[str, TierFigures]
    hits_by_request: Sequence[int]
    block_bytes: int | None = None
    moves: dict[str, int] | None = None
    disk_writes: int | None = None
    new_blocks: int | None = None

    @property
    def hit_blocks(self) -> int:
        return sum(self.hits_by_request)

    @property
    def policy(self) -> str:
        """One name where all tiers have one policy, else that of each, top tier first."""
        names = [tier.policy for tier in self.tiers.values()]
        return names[0] if len(set(names)) == 1 else "/".join(names)

    @property
    def label(self) -> str:
        """What it is called beside others."""
        name = self.policy if self.config is None else Path(self.config).stem
        return name if self.model is None else f"{name} ({self.model})"

    @property
    def capacity_blocks(self) -> int:
        """Of all tiers together: what the optimum has."""
        return sum(tier.capacity_blocks for tier in self.tiers.values())

    @property
    def copies(self) -> int | None:
        """Blocks copied from tier to tier."""
        if self.moves is None:
            return None
        return sum(count for way, count in self.moves.items() if "_to_" in way)


@dataclass(slots=True)
class Replay:
    """A trace and its runs. `block_tokens` None: not known, and so are hits in tokens."""

    trace: Trace
    block_tokens: int | None
    runs: list[Run] = field(default_factory=list)
    _optima: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, block_tokens: int | None) -> "Replay":
        """`block_tokens` None: as the trace itself tells."""
        return cls(trace, block_tokens or block_tokens_of(trace.requests))

    # ------------------------------------------------------------------------------------------------ runs

    def run_config(self, config: Config, name: str, block_bytes: int, served: Served) -> None:
        """The daemon's own decisions under this config, on a simulated clock. Raises InvalidArgumentError for blocks that
        fit no extent, LawViolationError when a law is broken at the end."""
        clock = ManualClock()
        host = SimulatedHost(config, clock)
        worker = Worker(host, clock, self._space(block_bytes))
        hits = []
        for request in self.trace.requests:
            hits.append(worker.serve(request))
            served()
        if broken := host.check():
            raise LawViolationError(broken)
        moves = _moves_of(host)
        books = host.directory.books
        writes = moves.get("cpu_to_disk", 0) + moves.get("gpu_to_disk", 0)
        self.runs.append(
            Run(
                name, None, True, _tiers_of(config, books, block_bytes, worker.hits), hits, block_bytes, moves,
                writes if books[-1].id.tier is Tier.DISK else None, worker.new_blocks,
            )
        )  # fmt: skip
        host.close()

    def run_policy(self, policy: str, capacity_blocks: int, served: Served, *, chain_order: bool = True) -> None:
        """One tier, by itself."""
        made = make_policy(policy, PlainFacts(capacity_blocks))
        hits = replay_one_tier(self.trace.requests, made, capacity_blocks, chain_order=chain_order, served=served)
        self.runs.append(
            Run(None, None, chain_order, {ONE_TIER: TierFigures(policy, capacity_blocks, sum(hits))}, hits)
        )

    def run_model(
        self,
        model: Model,
        policies: Sequence[str],
        capacities: Sequence[int],
        served: Served,
        config: str | None = None,
    ) -> None:
        """Three tiers as the model defines them; policies and capacities of GPU, CPU and disk."""
        made = [make_policy(name, PlainFacts(blocks)) for name, blocks in zip(policies, capacities, strict=True)]
        counts = three_tiers(self.trace.requests, made, capacities, model, served=served)
        tiers = {
            tier: TierFigures(policy, capacity, hits)
            for tier, policy, capacity, hits in zip(TIERS, policies, capacities, counts.hits, strict=True)
        }
        second = "disk_to_gpu" if model == "exclusive" else "disk_to_cpu"
        moves = {
            "cpu_to_gpu": counts.up[0],
            second: counts.up[1],
            "gpu_to_cpu": counts.down[0],
            "cpu_to_disk": counts.down[1],
            "disk_dropped": counts.dropped,
        }
        self.runs.append(
            Run(config, model, True, tiers, counts.hits_by_request, None, moves, counts.down[1], counts.new_blocks)
        )

    def capacities_of(self, config: Config, block_bytes: int) -> list[int]:
        """Blocks that GPU, CPU and disk of a config hold. Raises InvalidArgumentError unless it has all three."""
        host = SimulatedHost(config, ManualClock())
        host.attach(self._space(block_bytes), in_process=True)
        capacities = _capacities(host.directory.books, block_bytes)
        host.close()
        if len(capacities) < len(Tier):
            raise InvalidArgumentError("model", f"needs three tiers; the config has {', '.join(capacities)}")
        return list(capacities.values())

    def _space(self, block_bytes: int) -> Namespace:
        layout = BlockLayout.opaque(block_bytes, self.block_tokens or 1, "trace")
        return Namespace(model="trace", layout=layout, key_bytes=KEY_BYTES)

    # ------------------------------------------------------------------------------------------------ figures

    def figures(self) -> dict[str, Any]:
        """For JSON. The optima are computed here, which takes a while with large traces."""
        return {
            "requests": len(self.trace.requests),
            "unique_blocks": self.trace.unique_blocks,
            "block_tokens": self.block_tokens,
            "runs": [self._figures_of(run) for run in self.runs],
        }

    def optimum_of(self, run: Run) -> int:
        """Hit blocks of one tier as large as all tiers of the run, under a policy that knows the future."""
        capacity = run.capacity_blocks
        if capacity not in self._optima:
            self._optima[capacity] = sum(optimum(self.trace.requests, capacity))
        return self._optima[capacity]

    def _figures_of(self, run: Run) -> dict[str, Any]:
        accesses, tokens = self.trace.block_accesses, self._hit_tokens(run)
        return {
            "config": run.config,
            "policy": run.policy,
            "model": run.model,
            "chain_order": run.chain_order,
            "block_bytes": run.block_bytes,
            "requests": len(self.trace.requests),
            "block_accesses": accesses,
            "hit_blocks": run.hit_blocks,
            "block_hit_rate": run.hit_blocks / accesses,
            "hit_tokens": tokens,
            "token_hit_rate": _ratio(tokens, self.trace.input_tokens),
            "tiers": {
                name: {
                    "policy": tier.policy,
                    "capacity_blocks": tier.capacity_blocks,
                    "hit_blocks": tier.hit_blocks,
                    "block_hit_rate": tier.hit_blocks / accesses,
                }
                for name, tier in run.tiers.items()
            },
            "moves": run.moves,
            "moves_per_hit": _ratio(run.copies, run.hit_blocks),
            "new_blocks": run.new_blocks,
            "disk_writes_per_new_block": _ratio(run.disk_writes, run.new_blocks),
            "optimum_hit_blocks": self.optimum_of(run),
            "share_of_optimum": _ratio(run.hit_blocks, self.optimum_of(run)),
        }

    def _hit_tokens(self, run: Run) -> int | None:
        if self.block_tokens is None:
            return None
        return hit_tokens(self.trace.requests, run.hits_by_request, self.block_tokens)


def _ratio(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else part / whole


def _capacities(books: Sequence[Book], block_bytes: int) -> dict[str, int]:
    capacities: dict[str, int] = {}
    for book in books:
        name = book.id.tier.name.lower()
        capacities[name] = capacities.get(name, 0) + book.capacity_slots(block_bytes)
    return capacities


def _tiers_of(
    config: Config, books: Sequence[Book], block_bytes: int, hits: "dict[Tier, int]"
) -> dict[str, TierFigures]:
    return {
        name: TierFigures(getattr(config, name).policy, capacity, hits[Tier[name.upper()]])
        for name, capacity in _capacities(books, block_bytes).items()
    }


def _moves_of(host: SimulatedHost) -> dict[str, int]:
    """Blocks by way: copied from tier to tier, or dropped from one ("free": another copy stayed; "evicted": the last)."""
    moves: dict[str, int] = {}
    for row in host.migrator.moves.rows():
        source = row["from"].rstrip("0123456789")
        target = row["to"].rstrip("0123456789")
        way = f"{source}_to_{target}" if row["outcome"] == "done" else f"{source}_{row['outcome']}"
        moves[way] = moves.get(way, 0) + row["count"]
    return dict(sorted(moves.items()))
