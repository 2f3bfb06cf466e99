"""How long a hit is: what all ranks and all KV-cache groups agree on."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

from hybridkv.connectors.vllm.groups import Group

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Presence:
    """Which blocks of a group are there on every rank: `hits[i]` for the block that starts at token i · block_tokens."""

    group: Group
    hits: Flags


def agreed_tokens(found: Sequence[Presence], computed: int) -> int:
    """The longest prefix, in tokens, that every group can serve where `computed` tokens are in the engine already.

    A group with full attention needs every block from `computed` on; one with a sliding window only those that a token
    after the prefix looks back to. A multiple of every group's block size, at least `computed` rounded down to one.
    """
    step = lcm(*(one.group.block_tokens for one in found))
    start = computed // step * step
    longest = min(len(one.hits) * one.group.block_tokens for one in found) // step * step
    for tokens in range(longest, start, -step):
        if all(_serves(one, tokens, computed) for one in found):
            return tokens
    return start


def _serves(one: Presence, tokens: int, computed: int) -> bool:
    size, window = one.group.block_tokens, one.group.window
    first = computed if window is None else max(computed, tokens - window + 1)
    return bool(one.hits[first // size : tokens // size].all())
