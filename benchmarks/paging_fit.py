"""How many sequences of real lengths fit a pool: in pages, and where each has one contiguous range."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.lengths import lengths
from hybridkv.benchmarks.paging_rig import allocate, here, numbered, space_of
from hybridkv.benchmarks.report import Better, Row
from hybridkv.tiers.errors import ResourceExhaustedError

BLOCK_BYTES, BLOCK_TOKENS = 4096, 16
POOL_BLOCKS = 8192
PAGE_SIZES = (1, 2, 4, 8, 16, 32)

FIT, USED, WASTE, TABLE, FAULTS = (
    "sequences that fit",
    "pool in use by tokens",
    "internal waste",
    "tables",
    "page faults",
)
MAXIMUM, DOUBLING = "reserved at the longest length", "grown by doubling"


@dataclass(frozen=True, slots=True)
class Fitted:
    """What fitted before the pool was full: sequences, their tokens, and what their pages came to."""

    sequences: int
    tokens: int
    page_bytes: int
    table_bytes: int
    faults: int

    @property
    def used(self) -> float:
        return self.tokens * BLOCK_BYTES / BLOCK_TOKENS / (POOL_BLOCKS * BLOCK_BYTES)

    @property
    def waste(self) -> float:
        return 1 - self.tokens * BLOCK_BYTES / BLOCK_TOKENS / self.page_bytes


def row_name(what: str, trace: str, page_blocks: int) -> str:
    return f"{trace}: {what}, pages of {page_blocks * BLOCK_TOKENS} tokens"


def fits(setting: Setting, trace: str, page_sizes: Sequence[int] = PAGE_SIZES) -> list[Row]:
    """Real sequences of the host until it refuses one. Floors are counted, not run: contiguous ranges of the trace's longest
    length (for how many fit), and ranges doubled from one block on, with what moving them costs left out (for use)."""
    asked = lengths(trace)
    at_longest, by_doubling = _contiguous(asked)
    rows = [
        Row(f"{trace}: {FIT}, {MAXIMUM}", at_longest.sequences, "sequences"),
        Row(f"{trace}: {FIT}, {DOUBLING}", by_doubling.sequences, "sequences"),
        Row(f"{trace}: {USED}, {MAXIMUM}", at_longest.used * 100, "%"),
        Row(f"{trace}: {USED}, {DOUBLING}", by_doubling.used * 100, "%"),
    ]
    for size in page_sizes:
        found = _paged(setting, asked, size)
        rows += [
            Row(row_name(FIT, trace, size), found.sequences, "sequences", at_longest.sequences),
            Row(row_name(USED, trace, size), found.used * 100, "%", by_doubling.used * 100),
            Row(row_name(WASTE, trace, size), found.waste * 100, "%", better=Better.LOWER),
            Row(
                row_name(TABLE, trace, size), found.table_bytes / found.sequences, "bytes/sequence", better=Better.LOWER
            ),
            Row(row_name(FAULTS, trace, size), found.faults / found.sequences, "faults/sequence", better=Better.LOWER),
        ]
    return rows


def _paged(setting: Setting, asked: npt.NDArray[np.int64], page_blocks: int) -> Fitted:
    folder = setting.folder / f"pages-{page_blocks}"
    count = tokens = 0
    with here(folder, space_of(BLOCK_BYTES, BLOCK_TOKENS), gpu_blocks=POOL_BLOCKS, page_blocks=page_blocks) as kv:
        for length in asked.tolist():
            sequence = kv.open_sequence(numbered(length, tokens))
            try:
                allocate(sequence, sequence.blocks)
            except ResourceExhaustedError:
                break
            count, tokens = count + 1, tokens + length
        else:
            raise AssertionError("the sample is too short to fill the pool")
        paging = kv.stats()["paging"]
        held = paging["pools"]["gpu0"]["written_bytes"]
    return Fitted(count, tokens, held, paging["table_bytes"], held // (page_blocks * BLOCK_BYTES))


def _contiguous(asked: npt.NDArray[np.int64]) -> tuple[Fitted, Fitted]:
    """What two ways of reserving contiguous ranges would hold of the same sequences in the same order."""
    room = POOL_BLOCKS
    at_longest = np.full(len(asked), -(-int(asked.max()) // BLOCK_TOKENS))
    blocks = -(-asked // BLOCK_TOKENS)
    by_doubling = np.int64(1) << np.ceil(np.log2(blocks)).astype(np.int64)
    found = []
    for need in (at_longest, by_doubling):
        count = int(np.searchsorted(np.cumsum(need), room, side="right"))
        held = int(need[:count].sum()) * BLOCK_BYTES
        found.append(Fitted(count, int(asked[:count].sum()), held, 0, 0))
    return found[0], found[1]
