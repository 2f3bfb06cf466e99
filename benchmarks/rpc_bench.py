"""`hybridkv bench rpc`: what small calls cost, beside bare echoes. What each row means: docs/performance.md."""

from functools import partial

from hybridkv.benchmarks import crowd, rpc_calls
from hybridkv.benchmarks.bench import Bench, Step
from hybridkv.benchmarks.panels import Panel

BLOCKS = (10_000, 1_000_000)

_steps = (
    Step("acquires", rpc_calls.acquires),
    *(Step(f"lookups, {blocks:,} blocks", partial(rpc_calls.lookups, blocks=blocks)) for blocks in BLOCKS),
    Step("tail of small calls", crowd.small_calls),
)
_panels = (
    Panel(
        "Acquire and release (dashed: two echoes)",
        "µs",
        ["one block"],
        {"blocking": [rpc_calls.ACQUIRE], "asyncio": [rpc_calls.ACQUIRE_ASYNC]},
    ),
    Panel(
        f"Lookup of {rpc_calls.LOOKUP_KEYS:,} keys (dashed: an echo)",
        "µs",
        [f"{blocks:,} blocks" for blocks in BLOCKS],
        {"lookup": [rpc_calls.lookup_name(blocks) for blocks in BLOCKS]},
    ),
)

BENCH = Bench("rpc", "hybridkv bench rpc", _steps, _panels)
