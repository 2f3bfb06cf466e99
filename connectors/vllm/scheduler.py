"""The scheduler's half: what of a request is there, and what the workers load and store in each step."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridkv.connectors.vllm.door import Door, Doors
from hybridkv.connectors.vllm.groups import Group, uncached
from hybridkv.connectors.vllm.match import Presence, agreed_tokens
from hybridkv.connectors.vllm.metadata import Handshake, Load, Report, Step, Store
from hybridkv.connectors.vllm.requests import TrackedRequest
from hybridkv.connectors.vllm.settings import LoadMode, Settings
from hybridkv.connectors.vllm.stats import Counters
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, Tier

log = logging.getLogger(__name__)

Clear = Callable[[Namespace], None]
"""Removes a namespace's blocks from every tier. Raises HybridKVError."""


class SchedulerSide:
    """One engine's scheduler half. One thread calls it: the scheduler's."""

    def __init__(
        self, settings: Settings, groups: tuple[Group, ...], doors: Doors, clear: Clear, counters: Counters
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._doors = doors
        self._clear = clear
        self._counters = counters
        self._ranks: list[list[Door]] = []
        self._requests: dict[str, TrackedRequest] = {}
        self._loads: list[Load] = []
        self._held: set[str] = set()
        self._ended: dict[str, bool] = {}
        self._round = 0

    def attach(self, handshakes: Sequence[Handshake]) -> None:
        """Take over the ranks' namespaces, and open the doors; waits for a daemon no longer than a call may take."""
        self._ranks = [[self._doors.of(space) for space in one.spaces] for one in handshakes]
        self._doors.wait(self._settings.timeout_s)

    # ------------------------------------------------------------------------------------------------------ hits

    def matched(self, request: Any, computed: int) -> tuple[int, bool]:
        """How many tokens beyond `computed` can be loaded, and whether asynchronously. Changes nothing; may be repeated.

        At least one token is left to compute.
        """
        tracked = self._track(request)
        tracked.computed, tracked.disk_tokens = computed, 0
        if tracked.gave_up or not self._ranks or getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        found = self._looked_up(tracked, computed)
        if found is None:
            return 0, False
        presence, on_disk = found
        tokens = min(agreed_tokens(presence, computed), request.num_tokens - 1)
        if tokens <= computed:
            return 0, False
        tracked.disk_tokens = min(tokens - computed, self._disk_tokens(on_disk, computed, tokens))
        return tokens - computed, self._asynchronous(tracked.disk_tokens)

    def _asynchronous(self, disk_tokens: int) -> bool:
        """With several groups vLLM can be told of a failed load only while the request waits for it; with several ranks
        the others would compute, and store, on top of what one of them does not have."""
        mode = self._settings.load
        return (
            len(self._groups) > 1
            or len(self._ranks) > 1
            or mode is LoadMode.ASYNC
            or (mode is LoadMode.AUTO and disk_tokens > 0)
        )

    def _looked_up(
        self, tracked: TrackedRequest, computed: int
    ) -> tuple[list[Presence], list[tuple[int, "np.ndarray[Any, Any]"]]] | None:
        """Per group what every rank has, and (block size, which blocks lie on disk). None when there is nothing."""
        presence: list[Presence] = []
        on_disk: list[tuple[int, np.ndarray[Any, Any]]] = []
        with self._counters.timed("lookup"):
            for i, group in enumerate(self._groups):
                keys, first = tracked.keys.of(group), computed // group.block_tokens
                if group.window is None and first >= len(keys):
                    return None
                hits, below = np.ones(len(keys), np.bool_), np.zeros(len(keys), np.bool_)
                wanted = keys[first:]
                for rank in self._ranks:
                    states, tiers = self._ask(rank[i], wanted)
                    hits[first:] &= states == Outcome.HIT
                    below[first:] |= tiers == Tier.DISK
                if group.window is None and not hits[first]:
                    return None
                presence.append(Presence(group, hits))
                on_disk.append((group.block_tokens, below))
        return presence, on_disk

    @staticmethod
    def _ask(door: Door, keys: list[bytes]) -> tuple[Any, Any]:
        nothing = (np.full(len(keys), Outcome.MISS, np.uint8), np.zeros(len(keys), np.uint8))
        if not keys:
            return nothing
        packed = Keys.of(keys)

        def call(kv: Any) -> tuple[Any, Any]:
            found = kv.lookup(packed)
            return found.states, found.tiers

        return door.ask(call, nothing)

    @staticmethod
    def _disk_tokens(on_disk: list[tuple[int, Any]], computed: int, tokens: int) -> int:
        return max(int(below[computed // size : -(-tokens // size)].sum()) * size for size, below in on_disk)

    def hit_tokens(self, request: Any, tokens: int) -> tuple[int, int]:
        """Of `tokens` loaded ones, how many are in memory and how many have to come from disk."""
        tracked = self._requests.get(request.request_id)
        on_disk = 0 if tracked is None else min(tokens, tracked.disk_tokens)
        return tokens - on_disk, on_disk

    # -------------------------------------------------------------------------------------------------- a step

    def arrived(self, request: Any) -> None:
        """A request is new."""
        self._track(request)

    def allocated(self, request: Any, block_ids: tuple[list[int], ...], tokens: int) -> None:
        """vLLM gave the request blocks, `tokens` of them to be loaded."""
        tracked = self._track(request)
        tracked.replace_blocks(block_ids)
        if tokens <= 0:
            return
        asynchronous = self._asynchronous(tracked.disk_tokens)
        end = tracked.computed + tokens
        parts = tracked.to_load(self._groups, tracked.computed, end)
        if parts or asynchronous:
            self._loads.append(Load(tracked.request_id, not asynchronous, parts, tracked.wish.hints))
        tracked.load_in_flight = asynchronous
        tracked.stored = [
            max(done, end // g.block_tokens) for done, g in zip(tracked.stored, self._groups, strict=True)
        ]
        self._counters.add(hit_requests=1, hit_tokens=tokens, disk_hit_tokens=tracked.disk_tokens)

    def step(self, output: Any) -> Step:
        """What the workers do in the step that vLLM has just planned (a SchedulerOutput)."""
        step = Step(
            round=self._round,
            loads=self._loads,
            preempted=self._preempted(output),
            held=frozenset(self._held),
            ended=self._ended,
        )
        self._loads, self._held, self._ended = [], set(), {}
        for new in output.scheduled_new_reqs:
            tracked = self._requests.get(new.req_id)
            if tracked is not None:
                tracked.replace_blocks(new.block_ids)
                self._plan(step, output, tracked, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            if request_id in cached.resumed_req_ids:
                tracked.replace_blocks(cached.new_block_ids[i] or ())
            else:
                tracked.append_blocks(cached.new_block_ids[i])
            self._plan(step, output, tracked, cached.num_computed_tokens[i])
        return step

    def _preempted(self, output: Any) -> frozenset[str]:
        known = {name for name, tracked in self._requests.items() if tracked.preempted}
        return frozenset(known | set(output.preempted_req_ids or ()))

    def _plan(self, step: Step, output: Any, tracked: TrackedRequest, computed: int) -> None:
        """The stores of one request. Tokens that are only guessed yet (drafts) are no part of `num_tokens`."""
        scheduled = output.num_scheduled_tokens.get(tracked.request_id, 0)
        prompt = max(0, min(scheduled, tracked.request.num_prompt_tokens - computed))
        step.prefill_tokens += prompt
        step.decodes += scheduled > 0 and not prompt
        if not self._settings.store or not tracked.wish.store:
            return
        end = min(computed + scheduled, tracked.request.num_tokens)
        for part in tracked.to_store(self._groups, computed, end):
            step.stores.append(Store(tracked.request_id, part, tracked.wish.hints))
            tracked.stores_under_way += len(self._ranks)

    # ------------------------------------------------------------------------------------------------------ ends

    def finished(self, request: Any) -> bool:
        """The request is over; whether vLLM must keep its blocks until the workers report it."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return False
        self._ended[tracked.request_id] = tracked.wish.hints.end_of_session
        if tracked.load_in_flight or not tracked.stores_under_way:
            return False  # a load in flight keeps the blocks by itself; reported twice they would be freed twice
        self._held.add(tracked.request_id)
        return True

    def reported(self, received: set[str] | None, report: Report | None) -> None:
        """What the workers said after a step: asynchronous loads that are done, and what went wrong."""
        for request_id in received or ():
            if (tracked := self._requests.get(request_id)) is not None:
                tracked.load_in_flight = False
        if not report:
            return
        for request_id in report.failed:
            if (tracked := self._requests.get(request_id)) is not None:
                tracked.gave_up = True
                tracked.stored = [0] * len(self._groups)
        for request_id, count in report.copied.items():
            if (tracked := self._requests.get(request_id)) is not None:
                tracked.stores_under_way -= count
        for (request_id, group), first in report.dropped.items():
            if (tracked := self._requests.get(request_id)) is not None:
                tracked.stored[group] = min(tracked.stored[group], first)
        if report.round == self._round:
            self._round += 1

    def reset(self) -> bool:
        """Remove this model's blocks from every tier, on every rank; whether that was done."""
        done = bool(self._ranks)
        for space in {door.space.fingerprint: door.space for rank in self._ranks for door in rank}.values():
            done = self._cleared(space) and done
        return done

    def _cleared(self, space: Namespace) -> bool:
        try:
            self._clear(space)
        except HybridKVError as error:
            log.warning("hybridkv: the cache was not cleared: %s", error)
            return False
        return True

    def close(self) -> None:
        self._doors.close()

    def _track(self, request: Any) -> TrackedRequest:
        found = self._requests.get(request.request_id)
        if found is None:
            found = self._requests[request.request_id] = TrackedRequest(request, self._groups)
            self._counters.add(**uncached(request.num_tokens, self._groups))
        return found
