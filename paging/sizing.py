"""Which page size? What each would waste, what its tables would take and how often it would fault, on observed lengths.

Pure functions, thread-safe.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from hybridkv.paging.table_checks import checked_page_blocks
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.errors import InvalidArgumentError

ENTRY_BYTES = 8
PAGE_SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class PageSize:
    """What pages of `page_blocks` blocks come to. `waste`: bytes of pages that hold no token, of all bytes of pages;
    `faults`: pages that are allocated one after another while the sequences grow."""

    page_blocks: int
    page_tokens: int
    page_bytes: int
    pages: int
    used_bytes: int
    page_bytes_total: int
    waste: float
    table_bytes: int
    faults: int

    def as_dict(self) -> dict[str, int | float]:
        return asdict(self)


def report(
    lengths: Sequence[int] | npt.NDArray[np.int64],
    block_tokens: int,
    block_bytes: int,
    page_sizes: Sequence[int] = PAGE_SIZES,
) -> list[PageSize]:
    """One line for each page size, for sequences of these lengths in tokens (0 is allowed). Raises InvalidArgumentError."""
    checked_int("block_tokens", block_tokens, 1, 1 << 16)
    checked_int("block_bytes", block_bytes, 1, 1 << 30)
    tokens = np.asarray(lengths, np.int64)
    if tokens.ndim != 1 or (tokens.size and int(tokens.min()) < 0):
        raise InvalidArgumentError("lengths", "must be a one-dimensional array of lengths in tokens, none negative")
    token_bytes = block_bytes / block_tokens
    used = int(int(tokens.sum()) * token_bytes)
    rows = []
    for size in page_sizes:
        blocks = checked_page_blocks(size)
        pages = int((-(-tokens // (blocks * block_tokens))).sum())
        total = pages * blocks * block_bytes
        rows.append(
            PageSize(
                page_blocks=blocks,
                page_tokens=blocks * block_tokens,
                page_bytes=blocks * block_bytes,
                pages=pages,
                used_bytes=used,
                page_bytes_total=total,
                waste=(total - used) / total if total else 0.0,
                table_bytes=pages * ENTRY_BYTES,
                faults=pages,
            )
        )
    return rows


def advised(rows: Sequence[PageSize], max_waste: float = 0.05) -> PageSize:
    """The largest pages that waste at most `max_waste`; the smallest there are when none does. Raises InvalidArgumentError
    without rows."""
    if not rows:
        raise InvalidArgumentError("rows", "must not be empty")
    ordered = sorted(rows, key=lambda row: row.page_blocks)
    fitting = [row for row in ordered if row.waste <= max_waste]
    return fitting[-1] if fitting else ordered[0]
