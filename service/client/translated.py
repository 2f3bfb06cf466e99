"""Many positions of a sequence, translated at once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.paging.entries import Words, mapped_in, offsets_of, pools_of, resident_in
from hybridkv.paging.table_checks import checked_positions
from hybridkv.paging.walk import walk
from hybridkv.service.client.core import Budget
from hybridkv.service.client.pages import Pages
from hybridkv.tiers.layout import BlockLayout


@dataclass(frozen=True)
class Translated:
    """Where positions were at the moment of the look: entries of their blocks (`paging.entries`), one int64 each.

    `resident` says of which `pools`, `offsets` (bytes, of the block's slot in the pool) and `tokens` (index in the block along
    the layout's axis of tokens) mean something. `mapped` but not resident: the block lies in a lower tier.
    """

    words: Words
    positions: npt.NDArray[np.int64]
    block_tokens: int

    @property
    def pools(self) -> npt.NDArray[np.int64]:
        return pools_of(self.words)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return offsets_of(self.words)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return self.positions % self.block_tokens

    @property
    def mapped(self) -> npt.NDArray[np.bool_]:
        return mapped_in(self.words)

    @property
    def resident(self) -> npt.NDArray[np.bool_]:
        return resident_in(self.words)

    def __len__(self) -> int:
        return len(self.words)


def translated(pages: Pages, layout: BlockLayout, length: int, positions: Any, budget: Budget) -> Translated:
    """See `Sequence.translate`. Positions past the end are unmapped; negative ones raise InvalidArgumentError."""
    wanted = checked_positions(positions)
    words_of = pages.looker(budget)
    blocks = -(-length // layout.block_tokens)

    def lookup(asked: npt.NDArray[np.int64]) -> Words:
        if int(asked.max()) < blocks:
            return words_of(asked)
        inside = asked < blocks
        words = np.zeros(len(asked), np.int64)
        words[inside] = words_of(asked[inside])
        return words

    return Translated(walk(wanted, layout.block_tokens, lookup), wanted, layout.block_tokens)
