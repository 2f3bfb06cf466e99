"""`hybridkv bench paging`: how many sequences fit, translation, faults, windows and page sizes. Rows: docs/paging.md."""

from functools import partial

from hybridkv.benchmarks import fault_times, open_time, paging_fit, resize_cost, translation_rates, windowed_decode
from hybridkv.benchmarks.bench import Bench, Step
from hybridkv.benchmarks.lengths import TRACES
from hybridkv.benchmarks.paging_fit import BLOCK_TOKENS, FAULTS, FIT, PAGE_SIZES, TABLE, USED, WASTE, row_name
from hybridkv.benchmarks.panels import Panel


def _panels() -> tuple[Panel, ...]:
    ticks = [f"{size * BLOCK_TOKENS}" for size in PAGE_SIZES]

    def by_trace(what: str) -> dict[str, list[str]]:
        return {trace: [row_name(what, trace, size) for size in PAGE_SIZES] for trace in TRACES}

    return (
        Panel("Sequences that fit, by tokens of a page (dashed: each at the longest)", "sequences", ticks, by_trace(FIT)),
        Panel("Pool in use by tokens (dashed: ranges grown by doubling)", "%", ticks, by_trace(USED)),
        Panel("Internal waste, by tokens of a page", "%", ticks, by_trace(WASTE)),
        Panel("Page table of a sequence, by tokens of a page", "bytes", ticks, by_trace(TABLE), log=True),
        Panel("Page faults of a sequence, by tokens of a page", "faults", ticks, by_trace(FAULTS), log=True),
    )  # fmt: skip


BENCH = Bench(
    "paging",
    "hybridkv bench paging",
    (
        *(Step(f"fit, {trace}", partial(paging_fit.fits, trace=trace)) for trace in TRACES),
        Step("translation, page table", translation_rates.tables),
        Step("translation, TLB", translation_rates.buffered),
        Step("faults, minor", fault_times.minor),
        Step("faults, major", fault_times.major),
        Step("open", open_time.opening),
        Step("window", windowed_decode.decodes),
        Step("resize", resize_cost.resizes),
    ),
    _panels(),
)
