"""Bringing blocks in: leased, copied layer by layer, and given back."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from hybridkv.connectors.vllm.layout import GroupLayout
from hybridkv.connectors.vllm.metadata import Load, Part
from hybridkv.connectors.vllm.scopes import Scopes
from hybridkv.connectors.vllm.stats import Counters
from hybridkv.connectors.vllm.transfer import Transfer
from hybridkv.service.client import KV, Lease
from hybridkv.service.client.memory import Stack
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.keys import Keys

log = logging.getLogger(__name__)

ASYNC_THREADS = 4
"""Asynchronous loads at a time: one that waits for the disk does not hold up the others."""


@dataclass(slots=True)
class Piece:
    """What of a part was leased at once; `ids` are vLLM's blocks of the lease's keys."""

    part: Part
    lease: Lease
    stacks: list[Stack]
    ids: "np.ndarray[tuple[int], np.dtype[np.int64]]"


@dataclass(slots=True)
class Loaded:
    """What became of a load: vLLM's blocks that did not come."""

    load: Load
    failed_ids: set[int] = field(default_factory=set)


class SyncLoads:
    """The loads that one step's forward needs. `wait(layer)` returns once that layer's bytes are there, or cannot come."""

    def __init__(self, loads: Sequence[Load], layers: int) -> None:
        self.results = [Loaded(load) for load in loads]
        self.marks: list[list[tuple[Transfer, object]]] = [[] for _ in range(layers)]
        self.ready = [threading.Event() for _ in range(layers)]
        self.done: Future[None] | None = None

    def wait(self, layer: int) -> None:
        self.ready[layer].wait()
        for transfer, mark in self.marks[layer]:
            transfer.wait(mark)

    def finish(self) -> list[Loaded]:
        """Return once nothing is copied any more."""
        if self.done is not None:
            self.done.result()
        return self.results

    @property
    def failed(self) -> bool:
        return any(result.failed_ids for result in self.results)


class Loader:
    """Carries loads out. One thread for synchronous ones, several for asynchronous ones; results are taken by the caller.

    A layer here is a place in the model; `places[group][l]` is the place of the group's layer l.
    """

    def __init__(
        self,
        layouts: Sequence[GroupLayout],
        transfers: Sequence[Transfer],
        places: Sequence[Sequence[int]],
        scopes: Scopes,
        load_timeout_s: float,
        counters: Counters,
        recompute_s: Callable[[int], float | None],
    ) -> None:
        """`recompute_s(tokens)`: seconds to compute that many here, None where that is not known or not wanted."""
        self._layouts = layouts
        self._transfers = transfers
        self._places = places
        self._layers = sum(map(len, places))
        self._scopes = scopes
        self._load_timeout_s = load_timeout_s
        self._counters = counters
        self._recompute_s = recompute_s
        self._sync = ThreadPoolExecutor(1, "hybridkv-load")
        self._async = ThreadPoolExecutor(ASYNC_THREADS, "hybridkv-load-async")
        self._lock = threading.Lock()
        self._over = threading.Condition(self._lock)
        self._finished: list[Loaded] = []
        self._under_way = 0

    def start_sync(self, loads: Sequence[Load]) -> SyncLoads:
        """Begin; the caller waits layer by layer and must call `finish` before the blocks may be given to others."""
        batch = SyncLoads(loads, self._layers)
        batch.done = self._sync.submit(self._run_sync, batch)
        return batch

    def start_async(self, load: Load) -> None:
        """Begin; `take_finished` tells when it is over."""
        with self._lock:
            self._under_way += 1
        self._async.submit(self._run_async, load)

    def await_one(self, timeout_s: float) -> None:
        """Return once an asynchronous load is over or there is none, or after `timeout_s`."""
        with self._over:
            self._over.wait_for(lambda: self._finished or not self._under_way, timeout_s)

    def take_finished(self) -> list[Loaded]:
        """Asynchronous loads that are over since the last call."""
        with self._lock:
            taken, self._finished = self._finished, []
        return taken

    def close(self) -> None:
        """Return once nothing is copied any more."""
        self._sync.shutdown()
        self._async.shutdown()

    # ------------------------------------------------------------------------------------------------ in threads

    def _run_sync(self, batch: SyncLoads) -> None:
        try:
            with self._counters.timed("load"), ExitStack() as stack:
                pieces = [(result, self._leased(result, stack)) for result in batch.results]
                for place, group, layer in self._in_order():
                    for _, held in pieces:
                        self._scatter(group, layer, held)
                    transfer = self._transfers[group]
                    batch.marks[place].append((transfer, transfer.scattered(layer)))
                    batch.ready[place].set()
                for result, held in pieces:
                    self._settle(result, held)
        except Exception:  # the engine must not die of a load: every block of it counts as failed
            log.exception("hybridkv: a load failed")
            for result in batch.results:
                result.failed_ids.update(ids_of(result.load))
        finally:
            for event in batch.ready:
                event.set()

    def _run_async(self, load: Load) -> None:
        result = Loaded(load)
        try:
            with self._counters.timed("load"), ExitStack() as stack:
                held = self._leased(result, stack)
                for _, group, layer in self._in_order():
                    self._scatter(group, layer, held)
                self._settle(result, held)
        except Exception:  # as above; and it must be reported, or its blocks are never freed
            log.exception("hybridkv: a load failed")
            result.failed_ids.update(ids_of(load))
        with self._over:
            self._under_way -= 1
            self._finished.append(result)
            self._over.notify_all()

    def _in_order(self) -> list[tuple[int, int, int]]:
        """(place in the model, group, layer of the group) in the order in which the model computes."""
        return sorted((place, g, layer) for g, places in enumerate(self._places) for layer, place in enumerate(places))

    def _leased(self, result: Loaded, stack: ExitStack) -> list[Piece]:
        """Leases on what is there; what is not goes to the result."""
        held: list[Piece] = []
        for part in result.load.parts:
            got = self._lease_part(result.load, part, stack)
            held.extend(got)
            reached = sum(len(piece.ids) for piece in got)
            result.failed_ids.update(part.block_ids[reached:])
        return held

    def _lease_part(self, load: Load, part: Part, stack: ExitStack) -> list[Piece]:
        door, got, start = self._scopes.doors[part.group], [], 0
        kv = door.kv
        while kv is not None and start < len(part.keys):
            try:
                keys = Keys.of(part.keys[start : start + kv.keys_per_call])
                lease = stack.enter_context(self._acquired(kv, load, part, keys))
                prefix = lease.prefix
                stacks = lease.stacks(np.arange(prefix))
            except HybridKVError as error:
                door.failed(kv, error)
                break
            if prefix:
                got.append(Piece(part, lease, stacks, np.array(part.block_ids[start : start + prefix], np.int64)))
            start += prefix
            if prefix < len(keys):
                break
        return got

    def _acquired(self, kv: KV, load: Load, part: Part, keys: Keys) -> Lease:
        tokens = self._layouts[part.group].group.block_tokens
        request = self._scopes.request(kv, load.request, load.hints)
        return request.acquire(keys, tier="cpu", timeout_s=self._load_timeout_s, recompute_s=self._recompute_s(tokens))

    def _scatter(self, group: int, layer: int, held: list[Piece]) -> None:
        for piece in held:
            if piece.part.group == group:
                self._transfers[group].scatter(layer, piece.stacks, piece.ids)

    def _settle(self, result: Loaded, held: list[Piece]) -> None:
        """Everything has been copied, or will not be; what a lease did not hold until then did not come."""
        for piece in held:
            self._transfers[piece.part.group].finish()
            if not piece.lease.valid:
                result.failed_ids.update(piece.ids.tolist())
        came = sum(len(piece.ids) for piece in held if piece.lease.valid)
        size = sum(len(p.ids) * self._layouts[p.part.group].payload_bytes for p in held if p.lease.valid)
        self._counters.add(loaded_blocks=came, loaded_bytes=size, load_failed_blocks=len(result.failed_ids))


def ids_of(load: Load) -> set[int]:
    """vLLM's blocks of a load."""
    return {block for part in load.parts for block in part.block_ids}
