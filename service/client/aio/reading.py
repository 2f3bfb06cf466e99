"""Copying reads of the asyncio client: see `reading.py` beside this folder, whose steps these are."""

from dataclasses import replace

import numpy as np

from hybridkv.service.client.aio.lease import stream, take_mapped
from hybridkv.service.client.aio.link import AsyncAttachment
from hybridkv.service.client.aio.tasks import off_loop
from hybridkv.service.client.core import Budget, States, Wish, batches
from hybridkv.service.client.leased import Bytes
from hybridkv.service.client.outputs import Rows
from hybridkv.service.client.transport import Indices
from hybridkv.service.client.unasked import copy_known, may_be_free
from hybridkv.tiers.states import Outcome


async def read_all(attachment: AsyncAttachment, wish: Wish, budget: Budget, target: Rows, timeout_s: float) -> States:
    """Read the keys, however many, into the rows of `target`; an Outcome per key."""
    count = len(wish.keys)
    states = np.full(count, Outcome.MISS, np.uint8)
    if may_be_free(wish) and not attachment.reports.full:
        states[await _read_known(attachment, wish, target)] = Outcome.HIT
    rest = np.flatnonzero(states != Outcome.HIT)
    if not len(rest) and count:
        return states
    asked = replace(wish, keys=wish.keys.at(rest))
    read_batch = _streamed if attachment.memory is None else _leased
    for chosen, batch in batches(asked.keys, attachment.attached.limits.keys_per_call_count):
        rows = rest[chosen]
        states[rows] = await read_batch(attachment, replace(asked, keys=batch), budget, target, rows, timeout_s)
    return states


async def _read_known(attachment: AsyncAttachment, wish: Wish, target: Rows) -> Indices:
    """Copy what needs no call, and note that it was read."""
    nbytes = len(wish.keys) * attachment.attached.block_bytes
    read = await off_loop(nbytes, lambda: copy_known(attachment.memory, attachment.translations, wish.keys, target))
    if len(read):
        attachment.reports.note(wish.keys if len(read) == len(wish.keys) else wish.keys.at(read))
    return read


async def _leased(
    attachment: AsyncAttachment, wish: Wish, budget: Budget, target: Rows, rows: Indices, timeout_s: float
) -> States:
    """What was revoked during its copy is read once more under a lease with views, which is not revoked."""
    states, revoked = await _copied(attachment, wish, budget, target, rows, timeout_s)
    if len(revoked):
        again = replace(wish, keys=wish.keys.at(revoked), views=True)
        states[revoked], _ = await _copied(attachment, again, budget, target, rows[revoked], timeout_s)
    return states


async def _copied(
    attachment: AsyncAttachment, wish: Wish, budget: Budget, target: Rows, rows: Indices, timeout_s: float
) -> tuple[States, Indices]:
    """States after the copy, and which keys were a HIT before it only."""
    async with await take_mapped(attachment, wish, budget, timeout_s) as lease:
        hits = np.flatnonzero(lease.states == Outcome.HIT)
        states = lease.states.copy()
        nbytes = len(hits) * attachment.attached.block_bytes
        unchanged = await off_loop(nbytes, lambda: lease._copy(hits, rows[hits], target))
    states[hits[~unchanged]] = Outcome.MISS
    return states, hits[~unchanged]


async def _streamed(
    attachment: AsyncAttachment, wish: Wish, budget: Budget, target: Rows, rows: Indices, timeout_s: float
) -> States:
    """Blocks are put into their rows once they are whole."""
    blocks: dict[int, Bytes] = {}
    states = await stream(attachment, wish, wish.keys, budget, blocks)
    for i, block in blocks.items():
        target.put(int(rows[i]), block)
    return states
