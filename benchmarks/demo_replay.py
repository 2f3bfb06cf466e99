"""The demo's first part: the workers share the requests of the trace, and the daemon is asked for its figures meanwhile."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridkv.benchmarks.demo_crew import Crew
from hybridkv.benchmarks.workload import Request
from hybridkv.service.admin_client import AdminClient

SAMPLES = 100
"""Points of the plot."""


@dataclass(slots=True)
class Sample:
    """Figures after so many requests: hits per tier until then, bytes in each tier now."""

    requests: int
    hits: dict[str, int]
    used_bytes: dict[str, int]


@dataclass(slots=True)
class Replay:
    """What the workers counted, added up (the fields of `demo_request.Tally`), and what the daemon says of itself."""

    counts: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    requests: int = 0
    wall_s: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def served(self) -> int:
        """Hits: blocks that were there when a request asked, and were read and verified; and late ones."""
        return self.hits.total() + self.counts["late"]

    def add(self, tally: dict[str, Any]) -> None:
        """One request more."""
        self.requests += 1
        self.hits.update(tally["hits"])
        self.counts.update({name: value for name, value in tally.items() if name not in ("hits", "request")})


def replay(crew: Crew, requests: Sequence[Request], admin: AdminClient, on_request: Callable[[Replay], None]) -> Replay:
    """Serve `requests`; `on_request` is called after each."""
    found = Replay()
    every = max(1, len(requests) // SAMPLES)

    def on_answer(tally: dict[str, Any]) -> None:
        found.add(tally)
        if found.requests % every == 0:
            found.samples.append(_sample(found, admin.stats()))
        on_request(found)

    began = time.monotonic()
    crew.serve(requests, on_answer)
    found.wall_s = time.monotonic() - began
    found.stats = admin.stats()
    return found


def _sample(found: Replay, stats: dict[str, Any]) -> Sample:
    used = {name: int(tier["used_bytes"]) for name, tier in stats["tiers"].items()}
    return Sample(found.requests, dict(found.hits), used)
