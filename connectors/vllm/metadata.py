"""What the two halves of the connector tell each other, as plain values that are pickled between processes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks of one group: `keys[i]` belongs in, or comes from, vLLM's block `block_ids[i]`. `first` is the index of
    `keys[0]` in its chain, `parent` the key before it (None at the head)."""

    group: int
    first: int
    keys: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    parent: bytes | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Blocks to bring in for a request. `sync`: this step's forward needs them."""

    request: str
    sync: bool
    parts: tuple[Part, ...]
    hints: Hints = NO_HINTS


@dataclass(frozen=True, slots=True)
class Store:
    """Blocks of a request that are full once this step's forward has run."""

    request: str
    part: Part
    hints: Hints = NO_HINTS


@dataclass(slots=True)
class Step:
    """What the worker is to do in one step.

    `round` counts the scheduler's answers to failed loads: what was planned in an earlier round than the worker's may rest
    on blocks that were not loaded. `preempted`: their blocks are about to be overwritten. `held`: finished, and the
    scheduler keeps their blocks until the worker reports them. `ended`: finished, and whether nothing continues them.
    `prefill_tokens`: tokens of prompts that this step computes.
    """

    round: int = 0
    loads: list[Load] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    preempted: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    ended: dict[str, bool] = field(default_factory=dict)
    prefill_tokens: int = 0
    decodes: int = 0


@dataclass(slots=True)
class Report:
    """What a worker tells the scheduler after a step; those of several ranks are merged.

    `failed`: requests of which a load did not come. `dropped`: (request, group) → first index in the chain that was to be
    stored and was not. `copied`: request → how many of its stores read its blocks no more, whatever became of them, summed
    over ranks. `round`: the step's, when a load failed in it that its forward needed; else None.
    """

    failed: frozenset[str] = frozenset()
    dropped: dict[tuple[str, int], int] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)
    round: int | None = None

    def __bool__(self) -> bool:
        return bool(self.failed or self.dropped or self.copied or self.round is not None)

    def aggregate(self, other: "Report") -> "Report":
        """Both reports, for vLLM, which calls it by this name."""
        dropped = dict(self.dropped)
        note_dropped(dropped, other.dropped.items())
        rounds = [one for one in (self.round, other.round) if one is not None]
        copied = {
            name: self.copied.get(name, 0) + other.copied.get(name, 0) for name in {**self.copied, **other.copied}
        }
        return Report(self.failed | other.failed, dropped, copied, max(rounds, default=None))


def note_dropped(into: dict[tuple[str, int], int], dropped: Iterable[tuple[tuple[str, int], int]]) -> None:
    """Keep the earliest index of each."""
    for place, first in dropped:
        into[place] = min(first, into.get(place, first))


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a worker tells the scheduler once: the namespaces of its groups, in order."""

    spaces: tuple[Namespace, ...]
