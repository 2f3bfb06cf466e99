"""Copying reads: without a call where translations are known, else leased without views. Either way every slot's
generation and extent epoch are asked again after the copy; what changed meanwhile is read once more, more carefully."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.core import Budget, States, Wish, batches
from hybridkv.service.client.lease import ask, read_stream
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.memory import Memory
from hybridkv.service.client.outputs import Rows
from hybridkv.service.client.transport import Indices, LostError
from hybridkv.service.client.unasked import NOTHING, copy_known, copy_one
from hybridkv.tiers.errors import ExpiredError, NotFoundError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome


def read_known(attachment: Attachment, keys: Keys, target: Rows) -> Indices:
    """Copy what can be copied without a call, and have it reported: the positions of its keys."""
    if attachment.reports.full:
        return NOTHING
    read = copy_known(attachment.memory, attachment.translations, keys, target)
    if len(read):
        attachment.reports.note(keys if len(read) == len(keys) else keys.at(read))
    return read


def read_one(attachment: Attachment, key: Keys, target: Rows) -> bool:
    """`read_known` for one key: whether it was read."""
    memory, translations, reports = attachment.memory, attachment.translations, attachment.reports
    if memory is None or translations is None or reports.full:
        return False
    if not copy_one(memory, translations, key.packed, target):
        return False
    reports.note(key)
    return True


def read_asked(attachment: Attachment, wish: Wish, budget: Budget, target: Rows, rows: Indices) -> States:
    """Ask for the wish's keys, however many, and read them into `rows` of `target`; an Outcome per key."""
    states = np.full(len(wish.keys), Outcome.MISS, np.uint8)
    for chosen, batch in batches(wish.keys, attachment.attached.limits.keys_per_call_count):
        states[chosen] = _read_batch(attachment, replace(wish, keys=batch), budget, target, rows[chosen])
    return states


def _read_batch(attachment: Attachment, wish: Wish, budget: Budget, target: Rows, rows: Indices) -> States:
    """Read the keys of one call into `rows` of `target`; an Outcome per key.

    What was revoked during its copy is read once more under a lease with views, which is not revoked.
    """
    if attachment.memory is None:
        return _streamed(attachment, wish, budget, target, rows)
    states = _copied(attachment, attachment.memory, wish, budget, target, rows)
    revoked = np.flatnonzero(states == _REVOKED)
    if len(revoked):
        again = replace(wish, keys=wish.keys.at(revoked), views=True)
        states[revoked] = _copied(attachment, attachment.memory, again, budget, target, rows[revoked])
        states[states == _REVOKED] = Outcome.MISS
    return states


_REVOKED = 0  # no Outcome: copied, but the slot had changed


def _copied(attachment: Attachment, memory: Memory, wish: Wish, budget: Budget, target: Rows, rows: Indices) -> States:
    """One Acquire, the copy, the check, one Release."""
    reply = ask(attachment, wish, budget)
    states = reply.states
    try:
        hits = np.flatnonzero(states == Outcome.HIT)
        unchanged = memory.copy(reply.slots[hits], rows[hits], target)
        states[hits[~unchanged]] = _REVOKED
    except ExpiredError as error:  # another thread found the session lost, and let its mappings go
        raise LostError(f"the session ended during a copy: {error}") from error
    finally:
        if reply.lease:
            _release(attachment, reply.lease, budget)
    return states


def _release(attachment: Attachment, lease: int, budget: Budget) -> None:
    """The copies are made and checked: that the lease is gone by now is no loss."""
    try:
        attachment.transport.release(lease, timeout_s=max(budget.left_s(), 1.0))
    except (LostError, NotFoundError, ExpiredError):
        return


def _streamed(attachment: Attachment, wish: Wish, budget: Budget, target: Rows, rows: Indices) -> States:
    """Blocks are put into their rows once they are whole."""
    block_bytes = attachment.attached.block_bytes
    blocks: dict[int, npt.NDArray[np.uint8]] = {}

    def row_of(i: int) -> npt.NDArray[np.uint8]:
        return blocks.setdefault(i, np.empty(block_bytes, np.uint8))

    states = read_stream(attachment, wish.keys, row_of, budget, wish)
    for i, block in blocks.items():
        target.put(int(rows[i]), block)
    return states
