"""Translation: positions to places by the page table and by the client's TLB, beside a flat array as long as the space."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, interleaved, lap
from hybridkv.benchmarks.paging_rig import allocate, here, numbered, space_of
from hybridkv.benchmarks.report import Better, Row
from hybridkv.paging.entries import PageFlag
from hybridkv.paging.page_table import PageTable
from hybridkv.service.client.sequence import Sequence

BLOCK_BYTES, BLOCK_TOKENS = 4096, 32
SPACE_TOKENS = 10**7
POSITIONS = 10**6
PAGE_SIZES = (1, 8)
MOST_OF_A_FLAT_ARRAY = 3.0
MOST_FOR_ONE_US = 3.0
ORDERS = ("in order", "at random")
_ONES = 2000

Positions = npt.NDArray[np.int64]


def table_name(order: str, page_blocks: int) -> str:
    return f"translation of {POSITIONS:,} positions {order}, page table, pages of {page_blocks}"


def tables(setting: Setting) -> list[Row]:
    """A full page table of 10^7 tokens whose pages lie anywhere; the floor has its answer for every position."""
    rows = []
    for size in PAGE_SIZES:
        table = _full_table(size)
        flat = np.repeat(table.words(np.arange(table.mapped_count)), BLOCK_TOKENS)
        for order in ORDERS:
            asked = _positions(order, len(flat))
            rows.append(_row(table_name(order, size), setting, lambda t=table, p=asked: t.translate_many(p),  # type: ignore[misc]
                             lambda f=flat, p=asked: f[p]))  # type: ignore[misc]  # fmt: skip
        rows.append(Row(f"page table of {SPACE_TOKENS:,} tokens, pages of {size}", table.nbytes / 1e6, "MB",
                        flat.nbytes / 1e6, better=Better.LOWER))  # fmt: skip
    sparse = PageTable(BLOCK_TOKENS, BLOCK_BYTES)
    sparse.map(np.linspace(0, SPACE_TOKENS // BLOCK_TOKENS - 1, 10).astype(int), 0, np.arange(10) * BLOCK_BYTES)
    rows.append(
        Row(f"page table of {SPACE_TOKENS:,} tokens, ten pages mapped", sparse.nbytes / 1e3, "kB", better=Better.LOWER)
    )
    return rows


def buffered(setting: Setting) -> list[Row]:
    """The client's TLB over a resident sequence: each block's epoch and generation is compared in shared memory. No call."""
    blocks = POSITIONS // BLOCK_TOKENS
    with here(setting.folder / "tlb", space_of(BLOCK_BYTES, BLOCK_TOKENS), gpu_blocks=blocks + 512) as kv:
        sequence = kv.open_sequence(numbered(POSITIONS), tlb_entries=1 << 15)
        allocate(sequence, blocks)
        words = sequence.translate(np.arange(POSITIONS)).words
        rows = []
        for order in ORDERS:
            asked = _positions(order, POSITIONS)
            rows.append(
                _row(
                    f"translation of {POSITIONS:,} positions {order}, TLB",
                    setting,
                    lambda p=asked: sequence.translate(p),  # type: ignore[misc]
                    lambda p=asked: words[p],  # type: ignore[misc]
                )
            )
        rows.append(_one(sequence, setting))
        counts = sequence.tlb_counts
    if counts.misses > 3 * blocks:
        raise AssertionError(f"the TLB missed: {counts}")
    return rows


def _one(sequence: Sequence, setting: Setting) -> Row:
    """One position, again and again: the median of runs."""
    positions = np.random.default_rng(5).integers(0, POSITIONS, 64).tolist()
    locate = sequence.locate
    for position in positions:
        locate(position)
    times = []
    for _ in range(max(21, setting.pairs)):
        began = time.perf_counter()
        for _ in range(_ONES // 64):
            for position in positions:
                locate(position)
        times.append((time.perf_counter() - began) / (_ONES // 64 * 64))
    return Row(
        "translation of one position, TLB hit", float(np.median(times)) * 1e6, "µs", None, MOST_FOR_ONE_US, Better.LOWER
    )


def _row(name: str, setting: Setting, subject: Callable[[], Any], floor: Callable[[], Any]) -> Row:
    found = interleaved({"subject": _timed(subject), "floor": _timed(floor)}, max(15, setting.pairs))
    value, least = found["subject"].wall_s * 1e3, found["floor"].wall_s * 1e3
    return Row(name, value, "ms", least, MOST_OF_A_FLAT_ARRAY, Better.LOWER)


def _timed(call: Callable[[], Any]) -> Callable[[], Lap]:
    def run() -> Lap:
        with lap() as taken:
            call()
        return taken

    return run


def _full_table(page_blocks: int) -> PageTable:
    pages = SPACE_TOKENS // BLOCK_TOKENS // page_blocks
    first = np.random.default_rng(3).permutation(pages) * page_blocks
    slots = (first[:, None] + np.arange(page_blocks)).reshape(-1)
    table = PageTable(BLOCK_TOKENS, BLOCK_BYTES, page_blocks)
    table.map(np.arange(len(slots)), 0, slots * BLOCK_BYTES, PageFlag.RESIDENT)
    return table


def _positions(order: str, space: int) -> Positions:
    if order == ORDERS[0]:
        return np.arange(space - POSITIONS, space)
    return np.random.default_rng(4).integers(0, space, POSITIONS)
