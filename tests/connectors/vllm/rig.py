"""vLLM as far as the connector sees it: requests, block tables and steps, with KV whose bytes tell which tokens they are of.

The calls come in the order in which vLLM 0.32 makes them. KV of a block and layer is made from the hash of all tokens up to it,
so that a wrong byte anywhere is seen.
"""

import hashlib
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from hybridkv.connectors.vllm.door import Doors, connecting
from hybridkv.connectors.vllm.groups import Group
from hybridkv.connectors.vllm.layout import GroupLayout, layout_of
from hybridkv.connectors.vllm.metadata import Handshake, Report, Step
from hybridkv.connectors.vllm.scheduler import SchedulerSide
from hybridkv.connectors.vllm.settings import Settings
from hybridkv.connectors.vllm.stats import Counters
from hybridkv.connectors.vllm.transfer import HostTransfer, Transfer
from hybridkv.connectors.vllm.worker import Results, WorkerSide
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

BLOCK_TOKENS = 16
LAYERS = 3
BLOCKS = 64
HEADS, DIM = 2, 32
SENT_WITHIN_S = 30.0


class FakeRequest:
    """What the connector reads of vLLM's Request."""

    def __init__(
        self, request_id: str, tokens: list[int], salt: str = "", params: dict[str, Any] | None = None
    ) -> None:
        self.request_id = request_id
        self.tokens = list(tokens)
        self.num_prompt_tokens = len(tokens)
        self.salt = salt
        self.kv_transfer_params = params
        self.lora_request: Any = None
        self.skip_reading_prefix_cache = False
        self.status = SimpleNamespace(name="WAITING")
        self.block_hashes: list[bytes] = []
        self._hash()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self._hash()

    def _hash(self) -> None:
        for i in range(len(self.block_hashes), len(self.tokens) // BLOCK_TOKENS):
            parent = self.block_hashes[i - 1] if i else self.salt.encode()
            block = self.tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]
            self.block_hashes.append(hashlib.sha256(parent + repr(block).encode()).digest())


def full_group(index: int = 0, window: int | None = None, layers: int = LAYERS) -> Group:
    return Group(
        index, tuple(f"model.layers.{index * layers + i}.attn" for i in range(layers)), BLOCK_TOKENS, window, 1
    )


@dataclass
class Output:
    """What the connector reads of vLLM's SchedulerOutput."""

    scheduled_new_reqs: list[Any] = field(default_factory=list)
    scheduled_cached_reqs: Any = None
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    preempted_req_ids: set[str] | None = None

    def __post_init__(self) -> None:
        if self.scheduled_cached_reqs is None:
            self.scheduled_cached_reqs = SimpleNamespace(
                req_ids=[], resumed_req_ids=set(), new_block_ids=[], num_computed_tokens=[]
            )


class FakeEngine:
    """One engine with one rank: the caches, the two halves, and steps by hand."""

    def __init__(
        self, address: str, groups: tuple[Group, ...] = (), settings: dict[str, Any] | None = None, **space: Any
    ) -> None:
        self.groups = groups or (full_group(),)
        self.settings = Settings(address=address, **{"timeout_s": 5.0, "retry_s": 0.02, **(settings or {})})
        self.caches = {
            layer: torch.zeros(BLOCKS, HEADS, BLOCK_TOKENS, 2 * DIM) for g in self.groups for layer in g.layers
        }
        self.counters = Counters()
        self.doors = Doors(connecting(address, self.settings.timeout_s), self.settings.retry_s)
        self.layouts = [layout_of(group, self.caches, BLOCKS) for group in self.groups]
        self.spaces = tuple(space_for(layout, **space) for layout in self.layouts)
        self.transfers: list[Transfer] = [
            HostTransfer(layout, [self.caches[layer] for layer in layout.group.layers]) for layout in self.layouts
        ]
        self.worker = WorkerSide(
            self.settings, self.layouts, self.transfers, [self.doors.of(one) for one in self.spaces], self.counters
        )
        self.cleared: list[Namespace] = []
        self.scheduler = SchedulerSide(self.settings, self.groups, self.doors, self.cleared.append, self.counters)
        self.scheduler.attach([Handshake(self.spaces)])
        self._next_block = [1] * len(self.groups)
        self.tables: dict[str, list[list[int]]] = {}
        self.steps = 0

    # ------------------------------------------------------------------------------------------- pieces of a step

    def admit(self, request: FakeRequest, local: int = 0) -> tuple[int, bool]:
        """Ask, allocate, tell: (external tokens, asynchronous)."""
        self.scheduler.arrived(request)
        tokens, asynchronous = self.scheduler.matched(request, local)
        self.allocate(request, request.num_tokens)
        self.scheduler.allocated(request, self.table(request), tokens)
        return tokens, asynchronous

    def allocate(self, request: FakeRequest, tokens: int) -> list[list[int]]:
        """Blocks for `tokens` tokens; the new ones, per group."""
        tables = self.tables.setdefault(request.request_id, [[] for _ in self.groups])
        new: list[list[int]] = [[] for _ in self.groups]
        for g, table in enumerate(tables):
            while len(table) * BLOCK_TOKENS < tokens:
                new[g].append(self._next_block[g])
                table.append(self._next_block[g])
                self._next_block[g] = self._next_block[g] % (BLOCKS - 1) + 1
        return new

    def table(self, request: FakeRequest) -> tuple[list[int], ...]:
        return tuple(list(ids) for ids in self.tables[request.request_id])

    def new_output(self, request: FakeRequest, computed: int, scheduled: int) -> Output:
        new = SimpleNamespace(req_id=request.request_id, block_ids=self.table(request), num_computed_tokens=computed)
        return Output([new], num_scheduled_tokens={request.request_id: scheduled})

    def cached_output(self, request: FakeRequest, computed: int, scheduled: int, *, resumed: bool = False) -> Output:
        new = self.allocate(request, computed + scheduled)
        cached = SimpleNamespace(
            req_ids=[request.request_id],
            resumed_req_ids={request.request_id} if resumed else set(),
            new_block_ids=[self.table(request) if resumed else tuple(new)],
            num_computed_tokens=[computed],
        )
        return Output(scheduled_cached_reqs=cached, num_scheduled_tokens={request.request_id: scheduled})

    def run(self, output: Output, computing: dict[FakeRequest, tuple[int, int]] | None = None) -> Results:
        """One step in the worker; `computing`: request → (first token, tokens) whose KV the forward writes."""
        self.steps += 1
        step = self.scheduler.step(output)
        return self.work(step, computing or {})

    def work(self, step: Step, computing: dict[FakeRequest, tuple[int, int]]) -> Results:
        self.worker.preempt(step)
        needed = any(load.sync for load in step.loads)
        if needed:
            self.worker.start(step)
        for layer in sorted(self.caches):
            self.worker.wait_layer(layer)
            for request, (first, count) in computing.items():
                self.compute(request, layer, first, count)
        if not needed:
            self.worker.start(step)
        self.worker.save(step)
        return self.tell()

    def tell(self) -> Results:
        """The worker's results, and the scheduler told of them."""
        results = self.worker.results()
        report: Report | None = self.worker.report()
        self.scheduler.reported(results.received, report)
        return results

    def idle_until_sent(self, request_id: str) -> None:
        """Empty steps, as vLLM makes them while it keeps a finished request's blocks: a store may wait for room below, and
        needs the interpreter's lock now and then."""
        until = time.monotonic() + SENT_WITHIN_S
        while time.monotonic() < until:
            if request_id in self.run(Output()).sent:
                return
            time.sleep(0.0005)
        raise AssertionError(f"{request_id} was never reported")

    # -------------------------------------------------------------------------------------------- whole requests

    def serve(self, request: FakeRequest) -> int:
        """Prompt in one step, then the end: the tokens that were loaded."""
        tokens, asynchronous = self.admit(request)
        if asynchronous:
            while request.request_id not in self.run(Output()).received:
                pass
            self.scheduler.allocated(request, self.table(request), 0)
        rest = (tokens, request.num_tokens - tokens)
        self.run(self.new_output(request, *rest), {request: rest})
        self.check(request)
        self.finish(request)
        return tokens

    def finish(self, request: FakeRequest) -> None:
        if self.scheduler.finished(request):
            self.idle_until_sent(request.request_id)
        else:
            self.run(Output())
        self.tables.pop(request.request_id, None)
        self.settle()

    def settle(self) -> None:
        """Return once every store that was begun is sealed or given up."""
        until = time.monotonic() + 30
        while self.worker._storer._under_way:
            assert time.monotonic() < until, "a store never ended"

    # ------------------------------------------------------------------------------------------------------- KV

    def compute(self, request: FakeRequest, layer: str, first: int, count: int) -> None:
        """The forward's writes: whole blocks, which is as good as token by token for what is looked at here."""
        group = next(g for g in self.groups if layer in g.layers)
        for i in range(first // BLOCK_TOKENS, (first + count) // BLOCK_TOKENS):
            self.caches[layer][self.tables[request.request_id][group.index][i]] = kv_of(request, layer, i)

    def check(self, request: FakeRequest) -> None:
        """Every full block of every layer holds the KV of its tokens."""
        for group in self.groups:
            for layer in group.layers:
                for i, block in enumerate(self.tables[request.request_id][group.index][: len(request.block_hashes)]):
                    if block:
                        assert torch.equal(self.caches[layer][block], kv_of(request, layer, i)), (layer, i)

    def close(self) -> None:
        self.worker.close()
        self.scheduler.close()


def kv_of(request: FakeRequest, layer: str, block: int) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(request.block_hashes[block] + layer.encode()).digest()[:7], "little")
    return torch.rand(HEADS, BLOCK_TOKENS, 2 * DIM, generator=torch.Generator().manual_seed(seed))


def space_for(layout: GroupLayout, **given: Any) -> Namespace:
    opaque = BlockLayout.opaque(layout.payload_bytes, layout.group.block_tokens, f"group {layout.group.index}")
    return Namespace(**{"model": "fake", "layout": opaque, "key_bytes": 32, **given})
