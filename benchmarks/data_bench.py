"""`hybridkv bench data`: reading and writing blocks through the client. What each row means: docs/performance.md."""

from functools import partial

from hybridkv.benchmarks import crowd, data_plane
from hybridkv.benchmarks.bench import Bench, Step
from hybridkv.benchmarks.data_plane import BLOCK_SIZES, CALL_FREE_NAME, HELD, LEASED, ONE_SIZES, WRITTEN, name_of
from hybridkv.benchmarks.lane_rates import size_text
from hybridkv.benchmarks.panels import Panel

_steps = (
    *(Step(f"reads, {size_text(size)}", partial(data_plane.reads, block_bytes=size)) for size in BLOCK_SIZES),
    *(Step(f"writes, {size_text(size)}", partial(data_plane.writes, block_bytes=size)) for size in BLOCK_SIZES),
    *(Step(f"one block, {size_text(size)}", partial(data_plane.one_block, block_bytes=size)) for size in ONE_SIZES),
    Step("many workers", crowd.reads),
)
_panels = (
    Panel(
        "Batches of 64 blocks in random order (dashed: floors)",
        "GB/s",
        [size_text(size) for size in BLOCK_SIZES],
        {what: [name_of(what, size) for size in BLOCK_SIZES] for what in (LEASED, HELD, CALL_FREE_NAME, WRITTEN)},
    ),
)

BENCH = Bench("data", "hybridkv bench data", _steps, _panels)
