"""A sequence: one virtual KV address space of a session. A plain record; `Mappings` changes it."""

from dataclasses import dataclass, field

import numpy as np

from hybridkv.paging.backing import Backing, Blocks
from hybridkv.paging.page_table import PageTable
from hybridkv.paging.states import Backed
from hybridkv.tiers.directory.holds import Reservation, Session
from hybridkv.tiers.errors import InvalidArgumentError


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` positions of `block_tokens` a block, living in one pool. `backing` says which block is where in the space,
    `table` where the resident ones lie.

    `writable[block]` is the place of a WRITABLE block: (reservation, position). `busy` are blocks that a fault is making
    writable. `sticky` and `kept` (by the attention window) are blocks that are not to be evicted.
    """

    id: int
    session: Session
    pool: int
    block_bytes: int
    tokens: int
    table: PageTable
    last_used: float
    backing: Backing = field(default_factory=Backing)
    writable: dict[int, tuple[Reservation, int]] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    leases: set[int] = field(default_factory=set)
    sticky: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    suspended: bool = False
    closed: bool = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else "suspended" if self.suspended else "open"
        return f"Sequence({self.id}, {self.tokens} tokens, {self.table!r}, {state})"

    @property
    def block_tokens(self) -> int:
        return self.table.block_tokens

    @property
    def page_blocks(self) -> int:
        return self.table.page_blocks

    @property
    def blocks(self) -> int:
        """Blocks the space has, whether backed or not; the last may be partly used."""
        return -(-self.tokens // self.block_tokens)

    def checked(self, blocks: Blocks) -> Blocks:
        """Raises InvalidArgumentError when one lies outside of the space."""
        if len(blocks) and not (int(blocks.min()) >= 0 and int(blocks.max()) < self.blocks):
            wrong = blocks[(blocks < 0) | (blocks >= self.blocks)]
            raise InvalidArgumentError(
                "blocks", f"{int(wrong[0])}: sequence {self.id} has {self.blocks} ({self.tokens} tokens)"
            )
        return blocks

    def pages(self, blocks: Blocks, *, whole: bool) -> Blocks:
        """The blocks of all pages that these are in, each once, in order; `whole`: beyond the end of the space, too."""
        size = self.page_blocks
        if size > 1:
            blocks = (np.unique(blocks // size)[:, None] * size + np.arange(size)).ravel()
            return blocks if whole else blocks[blocks < self.blocks]
        return np.unique(blocks) if len(blocks) > 1 else blocks

    def holds(self, block: int) -> int:
        """How often this sequence holds the sealed block it has at `block`."""
        return (block in self.sticky and not self.suspended) + (block in self.kept)

    def sealed(self) -> Blocks:
        return self.backing.blocks(Backed.SEALED)
