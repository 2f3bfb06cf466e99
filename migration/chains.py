"""Chain prefetch: what followed a chain's end when it was last used is fetched before anybody asks for it.

An engine that acquires a prompt block by block, or in pieces, is served ahead; so is the next turn of a session, whose
prompt begins where the last one ended. It takes free room and that of clean copies, nothing else.
"""

import numpy as np

from hybridkv.migration.prefetch import Prefetches
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.replacement import NO_ROW, Rows


class Chains:
    """Looks ahead of acquires. Called under the directory's lock."""

    def __init__(self, directory: Directory, prefetches: Prefetches) -> None:
        self._directory = directory
        self._prefetches = prefetches

    def acquired(self, rows: Rows, target: int) -> None:
        """A chain was asked for in `target`, NO_ROW where it is not known.

        One with a block that is not known has left the known chains: nothing followed it before.
        """
        guesses = self._directory.state.speculation
        if not guesses.max_blocks:
            return
        guesses.used(rows[rows != NO_ROW])
        if rows[-1] == NO_ROW:
            return
        reach = guesses.reach(int(self._directory.blocks.namespace[rows[-1]]))
        here = self._directory.blocks.slot[target]
        after = [row for row in guesses.followers(int(rows[-1]), reach) if here[row] == NO_SLOT]
        if after:
            guesses.brought(self._prefetches.start_gently(np.array(after, np.int64), target), target)
