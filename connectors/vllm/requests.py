"""What the scheduler's half knows of each request: its blocks in vLLM, and how far they are stored."""

from collections.abc import Iterable, Sequence
from typing import Any

from hybridkv.connectors.vllm.groups import Group
from hybridkv.connectors.vllm.hints import RequestHints, hints_of
from hybridkv.connectors.vllm.keys import RequestKeys
from hybridkv.connectors.vllm.metadata import Part

NULL_BLOCK = 0
"""vLLM's block of nothing: what stands in a block table where a sliding window has passed."""


class TrackedRequest:
    """One request between its arrival and its end. Not thread-safe: the scheduler's thread only."""

    def __init__(self, request: Any, groups: Sequence[Group]) -> None:
        self.request = request
        self.keys = RequestKeys(request)
        self.wish: RequestHints = hints_of(getattr(request, "kv_transfer_params", None))
        self.block_ids: list[list[int]] = [[] for _ in groups]
        self.stored = [0] * len(groups)
        self.computed = 0
        """Tokens in vLLM when the last hit was looked for."""
        self.disk_tokens = 0
        self.stores_under_way = 0
        """Stores planned, one for each rank, that no rank has reported as copied yet."""
        self.load_in_flight = False
        self.gave_up = False
        """A load of it failed: nothing is offered again, or it would fail for ever."""

    @property
    def request_id(self) -> str:
        return str(self.request.request_id)

    @property
    def preempted(self) -> bool:
        return bool(self.request.status.name == "PREEMPTED")

    def replace_blocks(self, block_ids: Iterable[Iterable[int]]) -> None:
        """The whole block table: at the start, and after a preemption."""
        self.block_ids = [list(ids) for ids in block_ids]

    def append_blocks(self, block_ids: Iterable[Iterable[int]] | None) -> None:
        for known, new in zip(self.block_ids, block_ids or (), strict=False):
            known.extend(new)

    def to_load(self, groups: Sequence[Group], computed: int, end: int) -> tuple[Part, ...]:
        """The blocks that hold tokens `computed` to `end`, but for those that vLLM did not give a place."""
        parts = (self._part(group, computed // group.block_tokens, -(-end // group.block_tokens)) for group in groups)
        return tuple(part for part in parts if part is not None)

    def to_store(self, groups: Sequence[Group], computed: int, end: int) -> list[Part]:
        """The blocks that are full at `end` tokens and were not stored yet; `computed` were there before this step.

        Behind a sliding window vLLM may give blocks to others at any time: of such a group only what this step computes.
        """
        parts: list[Part] = []
        for i, group in enumerate(groups):
            first = self.stored[i]
            if group.window is not None:
                first = max(first, computed // group.block_tokens)
            last = min(len(self.keys.of(group)), end // group.block_tokens, len(self.block_ids[i]))
            self.stored[i] = max(self.stored[i], last)
            part = self._part(group, first, last)
            if part is not None:
                parts.append(part)
        return parts

    def _part(self, group: Group, first: int, last: int) -> Part | None:
        """Blocks `first` to `last` of the chain; leading ones without a place are left out."""
        keys, ids = self.keys.of(group), self.block_ids[group.index]
        last = min(last, len(keys), len(ids))
        while first < last and ids[first] == NULL_BLOCK:
            first += 1
        if first >= last:
            return None
        parent = keys[first - 1] if first else None
        return Part(group.index, first, tuple(keys[first:last]), tuple(ids[first:last]), parent)
