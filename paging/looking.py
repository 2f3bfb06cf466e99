"""What callers are told about blocks of sequences: states and slots, from the tables. Under the directory's lock."""

from collections.abc import Sequence as ListOf

import numpy as np
from numpy.typing import NDArray

from hybridkv.paging.backing import Blocks
from hybridkv.paging.entries import offsets_of
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.states import Backed, PageState
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.pools import SLOT_DTYPE

_STATE_OF = np.zeros(len(Backed), np.uint8)
_STATE_OF[Backed.SEALED] = PageState.READABLE
_STATE_OF[Backed.WRITABLE] = PageState.WRITABLE
_STATE_OF[Backed.LOST] = PageState.LOST


def look(directory: Directory, asked: ListOf[tuple[Sequence, Blocks]]) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """PageState uint8 [n] and SLOT_DTYPE [n] of all blocks asked for, one after another."""
    kinds = _joined([sequence.backing.kinds(blocks) for sequence, blocks in asked], np.uint8)
    words = _joined([sequence.table.words(blocks) for sequence, blocks in asked], np.int64)
    states = _STATE_OF[kinds]
    states[(kinds == Backed.SEALED) & (words == 0)] = PageState.ELSEWHERE
    slots = np.zeros(len(words), SLOT_DTYPE)
    pools = {sequence.pool for sequence, _ in asked}
    of_pool = None
    if len(pools) > 1:
        of_pool = np.repeat([sequence.pool for sequence, _ in asked], [len(blocks) for _, blocks in asked])
    for pool in pools:
        here = words != 0 if of_pool is None else (words != 0) & (of_pool == pool)
        slots[here] = directory.state.mapped(pool).translations(offsets_of(words[here]))
    return states, slots


def _joined(parts: list[NDArray[np.generic]], dtype: type[np.generic]) -> NDArray[np.generic]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype)
