"""Copy on write, as a step of a fault: which slots are copied where. Under the directory's lock."""

import numpy as np

from hybridkv.paging.fault import Fault, Fresh
from hybridkv.paging.states import Backed
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import Slots
from hybridkv.tiers.errors import ResourceExhaustedError, UnavailableError
from hybridkv.tiers.states import ReserveOutcome


def check_all_came(fault: Fault) -> None:
    """Nothing more comes. Raises ResourceExhaustedError when something is missing."""
    for acquire in fault.acquires:
        missing = acquire.reply().no_room
        if missing:
            raise ResourceExhaustedError("paging", f"{missing} blocks found no room after all")
    for fresh in fault.reserves:
        outcomes = fresh.ticket.reply().outcomes
        missing = int(np.count_nonzero(outcomes != ReserveOutcome.NEW))
        if missing:
            raise ResourceExhaustedError("paging", f"{missing} of {len(outcomes)} blocks found no slot after all")


def slots_to_copy(directory: Directory, fresh: Fresh) -> tuple[Slots, Slots]:
    """Where the blocks lie that were shared, and where their copies go. What was lost meanwhile starts empty.

    Raises UnavailableError when one could not be brought up.
    """
    sources, targets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for sequence, blocks, positions in fresh.places():
        sealed = sequence.backing.kinds(blocks) == Backed.SEALED
        slots = directory.blocks.slot[sequence.pool][sequence.backing.rows(blocks[sealed])]
        if (slots == NO_SLOT).any():
            raise UnavailableError(f"{sequence}: a block to be copied could not be brought up")
        sources.append(slots)
        targets.append(fresh.reservation.slots[positions[sealed]])
    return np.concatenate(sources), np.concatenate(targets)
