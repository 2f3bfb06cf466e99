"""The worker's half: one rank's caches, and what is loaded into and stored from them."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridkv.connectors.vllm.door import Door
from hybridkv.connectors.vllm.layout import GroupLayout
from hybridkv.connectors.vllm.loads import Loaded, Loader, SyncLoads
from hybridkv.connectors.vllm.metadata import Report, Step
from hybridkv.connectors.vllm.rate import PrefillRate
from hybridkv.connectors.vllm.scopes import Scopes
from hybridkv.connectors.vllm.settings import Settings
from hybridkv.connectors.vllm.stats import Counters
from hybridkv.connectors.vllm.stores import Storer
from hybridkv.connectors.vllm.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

EMPTY_STEP_S = 0.002
"""What a step that computes nothing gives asynchronous loads: an engine in its caller's process steps again without a pause,
and loads would wait for the interpreter's lock with every call they make (measured: 0.25 s became 1.0 s)."""


@dataclass(slots=True)
class Results:
    """What vLLM is told after a step."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    failed_ids: set[int] = field(default_factory=set)


class WorkerSide:
    """One rank. One thread calls it, the engine's; copies run on others.

    Order in a step: `preempt`, `start`, `wait_layer` for each layer, `save`, then `results` and `report`. Where no load is
    synchronous vLLM calls `start` behind the forward.
    """

    def __init__(
        self,
        settings: Settings,
        layouts: Sequence[GroupLayout],
        transfers: Sequence[Transfer],
        doors: Sequence[Door],
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        order = model_order([layout.group.layers for layout in layouts])
        self._layouts = layouts
        self._places = order
        self._scopes = Scopes(doors)
        self._rate = PrefillRate(clock)
        learned = self._rate.seconds_for if settings.use_recompute_s else lambda tokens: None
        places = [[order[layer] for layer in layout.group.layers] for layout in layouts]
        self._loader = Loader(layouts, transfers, places, self._scopes, settings.load_timeout_s, counters, learned)
        self._storer = Storer(layouts, transfers, self._scopes, settings.timeout_s, counters)
        self._sync: SyncLoads | None = None
        self._spoiled: int | None = None
        self._empty = False
        self._held: set[str] = set()
        self._results = Results()
        self._report = Report()

    # ------------------------------------------------------------------------------------------------------ a step

    def preempt(self, step: Step) -> None:
        """Before anything of the step overwrites blocks: nothing reads those of preempted requests any more."""
        for request_id in step.preempted:
            self._storer.flush(request_id)
        self._rate.begin(step.prefill_tokens, pure=not step.decodes and not any(load.sync for load in step.loads))

    def start(self, step: Step) -> None:
        """Begin the step's loads."""
        needed = [load for load in step.loads if load.sync]
        if needed:
            self._sync = self._loader.start_sync(needed)
        for load in step.loads:
            if not load.sync:
                self._loader.start_async(load)

    def wait_layer(self, layer: str) -> None:
        """Return once the bytes of this layer are there; a layer without KV of ours returns at once."""
        if self._sync is not None and layer in self._places:
            self._sync.wait(self._places[layer])

    def save(self, step: Step) -> None:
        """The forward has run, or there was none: begin the step's stores.

        After a load that the forward needed and that failed, nothing computed by plans of that time is stored: vLLM
        computes it again, and the scheduler plans it again in a later round.
        """
        self._rate.end()
        self._empty = not step.prefill_tokens and not step.decodes
        self._storer.note_step()
        self._settle_sync(step)
        if self._spoiled is not None and step.round <= self._spoiled:
            for store in step.stores:
                self._storer.refuse(store)
        else:
            self._store(step)
        self._held |= step.held
        for request_id, end_of_session in step.ended.items():
            self._storer.end_request(request_id, end_of_session)

    def _settle_sync(self, step: Step) -> None:
        batch, self._sync = self._sync, None
        if batch is None:
            return
        for loaded in batch.finish():
            if loaded.failed_ids:
                self._results.failed_ids |= loaded.failed_ids
                self._note_failed({loaded.load.request})
        if batch.failed:
            self._spoiled = self._report.round = step.round

    def _store(self, step: Step) -> None:
        jobs = [self._storer.submit(store) for store in step.stores]
        for job in jobs:
            if self._layouts[job.store.part.group].group.window is not None:
                job.copied.wait()

    # -------------------------------------------------------------------------------------------------- what came

    def results(self) -> Results:
        """What is over since the last call: held requests whose blocks nobody reads any more, and asynchronous loads."""
        results, self._results = self._results, Results()
        if self._empty:
            self._loader.await_one(EMPTY_STEP_S)
        for loaded in self._loader.take_finished():
            self._note_async(results, loaded)
        results.sent = {request for request in self._held if not self._storer.pending(request)}
        self._held -= results.sent
        return results

    def _note_async(self, results: Results, loaded: Loaded) -> None:
        results.received.add(loaded.load.request)
        if not loaded.failed_ids:
            return
        self._note_failed({loaded.load.request})
        if len(self._layouts) > 1:
            results.failed.add(loaded.load.request)  # block ids of several groups overlap: vLLM takes the request
        else:
            results.failed_ids |= loaded.failed_ids

    def _note_failed(self, requests: "Iterable[str]") -> None:
        self._report.failed |= frozenset(requests)

    def report(self) -> Report | None:
        """What the scheduler must know; None when there is nothing."""
        report, self._report = self._report, Report()
        report.dropped, report.copied = self._storer.take_dropped(), self._storer.take_copied()
        return report or None

    def close(self) -> None:
        """Finish what is under way."""
        if self._sync is not None:
            self._sync.finish()
        self._loader.close()
        self._storer.close()


def model_order(groups: "Iterable[Sequence[str]]") -> dict[str, int]:
    """Each layer's place in the model, by the numbers in its name."""
    layers = [layer for group in groups for layer in group]
    return {layer: place for place, layer in enumerate(sorted(layers, key=_numbers))}


def _numbers(layer: str) -> tuple[list[int], str]:
    return [int(part) for part in layer.split(".") if part.isdigit()], layer
