"""Read and Write: payload streams for workers that cannot map the daemon's memory.

The bytes are copied here, on the event loop, in pieces of at most 1 MiB between which other calls are served. While a
Write fills slots its reservation is renewed before each piece and its session cannot end (`Sessions.run_payload`), so
that no slot is written after it lapsed; a Read copies out first and then asks the slot's generation.
"""

# ruff: noqa: N802 (the names of the methods are the protocol's)

import asyncio
import contextlib
from typing import Any

import numpy as np

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.codec import keys_from_wire, packed, tier_from_wire, wait_from_wire
from hybridkv.service.facade import Host
from hybridkv.service.replies import AcquireReply, Attached
from hybridkv.service.servicers.gate import check_owner
from hybridkv.service.servicers.incoming import PIECE_BYTES, IncomingBlocks
from hybridkv.service.servicers.sessions import Sessions
from hybridkv.service.servicers.streams import next_message
from hybridkv.service.servicers.waiting import settled
from hybridkv.tiers.errors import (
    ExpiredError,
    HybridKVError,
    InvalidArgumentError,
    UnavailableError,
)
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome, Tier

FIRST_PART_S = 5.0


class PayloadServicer(pb_grpc.KVCacheServicer):
    """The two streams of KVCache."""

    def __init__(self, host: Host, sessions: Sessions) -> None:
        self._host = host
        self._sessions = sessions

    # ------------------------------------------------------------------------------------------------------- Read

    async def Read(self, request: pb.ReadRequest, context: Any) -> None:
        await self._sessions.run_payload(request.session, self._read(request, context))

    async def _read(self, request: pb.ReadRequest, context: Any) -> None:
        attached = self._sessions.attached(request.session)
        wait_s = wait_from_wire(request.wait_s)
        ticket = self._host.acquire(
            request.session,
            keys_from_wire(request.keys, request.key_bytes),
            tier=_readable_tier(attached),
            device=None,
            views=False,
            independent=request.independent,
            request=request.request_id if request.HasField("request_id") else None,
            lease=None,
        )
        await settled(ticket, wait_s, context)
        found = ticket.reply()
        try:
            await context.write(pb.ReadPart(epoch=self._host.epoch, states=packed(found.states)))
            await self._send_blocks(request.session, attached, found, context)
        finally:
            with contextlib.suppress(HybridKVError):  # it lapsed: nothing is left to release
                self._host.release(request.session, found.lease)

    async def _send_blocks(self, session: int, attached: Attached, found: AcquireReply, context: Any) -> None:
        slots = found.slots[found.states == Outcome.HIT]
        part_bytes = min(attached.limits.part_bytes, PIECE_BYTES)
        total = len(slots) * attached.block_bytes
        for start in range(0, total, part_bytes):
            self._renewed(session, found.lease)
            data = self._copied_out(slots, attached.block_bytes, start, min(start + part_bytes, total))
            await context.write(pb.ReadPart(data=data))

    def _copied_out(self, slots: Any, block_bytes: int, start: int, stop: int) -> bytes:
        """The range [start, stop) of the blocks laid end to end, proved unchanged while it was copied."""
        pieces = []
        first, last = start // block_bytes, -(-stop // block_bytes)
        for slot, at in zip(slots[first:last], range(first * block_bytes, stop, block_bytes), strict=True):
            memory = self._host.pool_array(int(slot["pool"]), False)
            low, high = max(start - at, 0), min(stop - at, block_bytes)
            offset = int(slot["offset"])
            pieces.append(memory[offset + low : offset + high].data)
        data = b"".join(pieces)
        self._check_unchanged(slots[first:last])
        return data

    def _check_unchanged(self, slots: Any) -> None:
        for pool in np.unique(slots["pool"]):
            of_pool = slots[slots["pool"] == pool]
            now = self._host.header_reader(int(pool)).many(of_pool["header"].astype(np.int64))
            if not np.array_equal(now, of_pool["generation"]):
                raise UnavailableError("a block was reclaimed while it was read; read again")

    def _renewed(self, session: int, hold: int) -> None:
        if not all(self._host.renew(session, [hold])):
            raise ExpiredError(f"hold {hold} lapsed during the stream")

    # ------------------------------------------------------------------------------------------------------ Write

    async def Write(self, parts: Any, context: Any) -> pb.WriteReply:
        first: pb.WritePart | None = await next_message(context, FIRST_PART_S, "first part")
        if first is None:
            raise InvalidArgumentError("keys", "the stream ended before its first part")
        check_owner(self._host, first.session)
        return await self._sessions.run_payload(first.session, self._write(first, context))

    async def _write(self, first: pb.WritePart, context: Any) -> pb.WriteReply:
        attached = self._sessions.attached(first.session)
        wait_s = wait_from_wire(first.wait_s)
        keys = keys_from_wire(first.keys, first.key_bytes)
        ticket = self._host.reserve(
            first.session,
            keys,
            parent=first.parent or None,
            tier=_writable_tier(attached, tier_from_wire(first.tier)),
            device=None,
            request=first.request_id if first.HasField("request_id") else None,
        )
        await settled(ticket, wait_s, context)
        granted = ticket.reply()
        try:
            incoming = IncomingBlocks(granted, attached.block_bytes, lambda pool: self._host.pool_array(pool, True))
            await self._receive(first, incoming, attached, granted.reservation, context)
            outcomes = self._sealed(first.session, granted.reservation, incoming)
        except BaseException:  # whatever ends the stream before its time, nothing of it is published
            if granted.reservation:
                with contextlib.suppress(HybridKVError):  # it lapsed, or the session did
                    self._host.abort(first.session, granted.reservation, None)
            raise
        return pb.WriteReply(epoch=self._host.epoch, outcomes=packed(outcomes))

    async def _receive(
        self, first: pb.WritePart, incoming: IncomingBlocks, attached: Attached, reservation: int, context: Any
    ) -> None:
        part: pb.WritePart | None = first
        while part is not None:
            data = memoryview(part.data)
            for at in range(0, len(data), PIECE_BYTES):
                if reservation:
                    self._renewed(first.session, reservation)
                incoming.put(data[at : at + PIECE_BYTES])
                await asyncio.sleep(0)
            part = await next_message(context, attached.limits.reservation_s, "data")
        incoming.check_complete()

    def _sealed(self, session: int, reservation: int, incoming: IncomingBlocks) -> Any:
        """Publish; returns the outcomes of the reserve, with PRESENT for what another sealed meanwhile."""
        outcomes = incoming.outcomes.copy()
        if not reservation:
            return outcomes
        sealed = self._host.seal(session, reservation, incoming.new, incoming.checksums)
        if (sealed == SealOutcome.EXPIRED).any():
            raise ExpiredError(f"reservation {reservation} lapsed before the seal")
        outcomes[incoming.new[sealed == SealOutcome.ALREADY_SEALED]] = ReserveOutcome.PRESENT
        return outcomes


def _readable_tier(attached: Attached) -> Tier | None:
    """Any mapped tier, but the CPU tier where device memory is out of this process's reach."""
    return Tier.CPU if any(pool.kind == "cuda" for pool in attached.pools) else None


def _writable_tier(attached: Attached, asked: Tier | None) -> Tier | None:
    on_device = any(pool.kind == "cuda" for pool in attached.pools)
    if asked is Tier.GPU and on_device:
        raise InvalidArgumentError("tier", "payload streams reach no device memory; ask for the CPU tier")
    return Tier.CPU if asked is None and on_device else asked
