"""Whose blocks the soak's are, and which chains there are: the same in every process, so that any of them can verify any."""

from functools import lru_cache

from hybridkv.tiers.keys import Keys, chain
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

BLOCK_TOKENS = 16
BLOCK_BYTES = (4 << 10, 16 << 10, 64 << 10)
"""Of each namespace: three sizes, so that extents are emptied and carved anew for another."""
CHAIN_BLOCKS = 24
CHAINS = (96, 96, 64)
"""Of each namespace. All blocks together are 140 MiB, three times what the tiers hold."""
SIBLINGS = 4
"""So many chains share their first half."""


@lru_cache
def space_of(number: int) -> Namespace:
    """Namespace `number`."""
    layout = BlockLayout.opaque(BLOCK_BYTES[number], BLOCK_TOKENS, f"soak{number}")
    return Namespace(model="soak", layout=layout)


def tokens_of(number: int, blocks: int = CHAIN_BLOCKS) -> list[int]:
    """The tokens of the first blocks of chain `number`."""
    shared = CHAIN_BLOCKS // 2 * BLOCK_TOKENS
    family, own = 1_000_000 + number // SIBLINGS * 1000, 100_000_000 + number * 1000
    tokens = [*range(family, family + shared), *range(own, own + CHAIN_BLOCKS * BLOCK_TOKENS - shared)]
    return tokens[: blocks * BLOCK_TOKENS]


@lru_cache(maxsize=512)
def keys_of(space: int, number: int) -> Keys:
    """The whole chain `number` of namespace `space`."""
    return chain(space_of(space), tokens_of(number))
