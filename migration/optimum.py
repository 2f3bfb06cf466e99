"""The offline optimum of one tier: what a policy that knew the future would hit."""

import heapq
from collections.abc import Sequence

import numpy as np

from hybridkv.migration.simulate import Request, block_count, prefix_length
from hybridkv.tiers.replacement import Rows

_NEVER = 1 << 40
_SPARE_ENTRIES = 1 << 16


def optimum(requests: Sequence[Request], capacity_blocks: int) -> list[int]:
    """Hit blocks of each request under Belady's MIN with bypass.

    Decided between requests: of the blocks there, those stay whose next request is soonest; of one next request, those
    nearest its head. A block that is never used again is not kept.
    """
    if capacity_blocks >= block_count(requests):
        return _hits_without_limit(requests)
    next_use = np.full(block_count(requests), _NEVER)
    resident = np.zeros(len(next_use), np.bool_)
    count, hits = 0, []
    farthest: list[
        tuple[int, int, int]
    ] = []  # (-next request, -depth, block); entries of earlier requests are outdated
    for request, following in zip(requests, _next_requests(requests), strict=True):
        chain = request.chain
        hits.append(prefix_length(resident[chain]))
        again = following != _NEVER
        next_use[chain] = following
        count += int(np.count_nonzero(again)) - int(np.count_nonzero(resident[chain]))
        resident[chain] = again
        depths = np.flatnonzero(again)
        for entry in zip((-following[depths]).tolist(), (-depths).tolist(), chain[depths].tolist(), strict=True):
            heapq.heappush(farthest, entry)
        if len(farthest) > 4 * count + _SPARE_ENTRIES:
            farthest = [entry for entry in farthest if resident[entry[2]] and next_use[entry[2]] == -entry[0]]
            heapq.heapify(farthest)
        while count > capacity_blocks:
            use, _, block = heapq.heappop(farthest)
            if resident[block] and next_use[block] == -use:
                resident[block] = False
                count -= 1
    return hits


def _hits_without_limit(requests: Sequence[Request]) -> list[int]:
    seen = np.zeros(block_count(requests), np.bool_)
    hits = []
    for request in requests:
        hits.append(prefix_length(seen[request.chain]))
        seen[request.chain] = True
    return hits


def _next_requests(requests: Sequence[Request]) -> list[Rows]:
    """For each block of each request, the number of the next request that uses it."""
    upcoming = np.full(block_count(requests), _NEVER)
    found = []
    for number in range(len(requests) - 1, -1, -1):
        chain = requests[number].chain
        found.append(upcoming[chain])
        upcoming[chain] = number
    return found[::-1]
