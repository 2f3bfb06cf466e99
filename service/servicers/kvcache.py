"""KVCache: the batched verbs of a session. Payload streams are in `payload.py`."""

# ruff: noqa: N802 (the names of the methods are the protocol's)

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.codec import (
    checksums_from_wire,
    events_from_wire,
    hints_from_wire,
    indices_from_wire,
    keys_from_wire,
    packed,
    tier_from_wire,
    wait_from_wire,
)
from hybridkv.service.servicers.payload import PayloadServicer
from hybridkv.service.servicers.waiting import DURABLE_WITHIN_S, settled
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import MIN_KEY_BYTES


class KVCacheServicer(PayloadServicer):
    """Thin over the facade, which knows sessions, widths and limits. No call holds a thread."""

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupReply:
        found = self._host.lookup(request.session, keys_from_wire(request.keys, request.key_bytes))
        return pb.LookupReply(epoch=self._host.epoch, states=packed(found.states), tiers=packed(found.tiers))

    async def Acquire(self, request: pb.AcquireRequest, context: Any) -> pb.AcquireReply:
        wait_s = wait_from_wire(request.wait_s)
        ticket = self._host.acquire(
            request.session,
            _keys_or_lease(request),
            tier=tier_from_wire(request.tier),
            device=request.device if request.HasField("device") else None,
            views=request.views,
            independent=request.independent,
            request=request.request_id if request.HasField("request_id") else None,
            lease=request.lease if request.HasField("lease") else None,
            recompute_s=request.recompute_s if request.HasField("recompute_s") else None,
            hints=hints_from_wire(request.hints),
        )
        await settled(ticket, wait_s, context)
        reply = ticket.reply()
        return pb.AcquireReply(
            epoch=self._host.epoch,
            lease=reply.lease,
            states=packed(reply.states),
            slots=packed(reply.slots),
            expires_in_s=reply.expires_in_s,
        )

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:
        alive = self._host.renew(request.session, list(request.holds), list(request.requests))
        expires_in_s = self._sessions.attached(request.session).limits.lease_s
        return pb.RenewReply(epoch=self._host.epoch, alive=alive, expires_in_s=expires_in_s)

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        self._host.release(request.session, request.lease, events_from_wire(request.events))
        return pb.ReleaseReply(epoch=self._host.epoch)

    async def Reserve(self, request: pb.ReserveRequest, context: Any) -> pb.ReserveReply:
        wait_s = wait_from_wire(request.wait_s)
        ticket = self._host.reserve(
            request.session,
            keys_from_wire(request.keys, request.key_bytes),
            parent=request.parent or None,
            tier=tier_from_wire(request.tier),
            device=request.device if request.HasField("device") else None,
            request=request.request_id if request.HasField("request_id") else None,
            hints=hints_from_wire(request.hints),
        )
        await settled(ticket, wait_s, context)
        reply = ticket.reply()
        return pb.ReserveReply(
            epoch=self._host.epoch,
            reservation=reply.reservation,
            outcomes=packed(reply.outcomes),
            slots=packed(reply.slots),
            expires_in_s=reply.expires_in_s,
        )

    async def Seal(self, request: pb.SealRequest, context: Any) -> pb.SealReply:
        checksums = checksums_from_wire(request.checksums) if request.checksums else None
        events = events_from_wire(request.events)
        outcomes = self._host.seal(request.session, request.reservation, _indices(request.indices), checksums, events)
        return pb.SealReply(epoch=self._host.epoch, outcomes=packed(outcomes))

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortReply:
        events = events_from_wire(request.events)
        self._host.abort(request.session, request.reservation, _indices(request.indices), events)
        return pb.AbortReply(epoch=self._host.epoch)

    async def Prefetch(self, request: pb.PrefetchRequest, context: Any) -> pb.PrefetchReply:
        started = self._host.prefetch(
            request.session,
            keys_from_wire(request.keys, request.key_bytes),
            tier=tier_from_wire(request.tier),
            device=request.device if request.HasField("device") else None,
            deadline_s=request.deadline_s if request.HasField("deadline_s") else None,
        )
        return pb.PrefetchReply(epoch=self._host.epoch, started=started)

    async def Touch(self, request: pb.TouchRequest, context: Any) -> pb.TouchReply:
        counts = indices_from_wire(request.counts, "counts") if request.counts else None
        touched = self._host.touch(request.session, keys_from_wire(request.keys, request.key_bytes), counts)
        return pb.TouchReply(epoch=self._host.epoch, touched=touched)

    async def Remove(self, request: pb.RemoveRequest, context: Any) -> pb.RemoveReply:
        removed = self._host.remove(request.session, keys_from_wire(request.keys, request.key_bytes))
        await settled(self._host.removals(), DURABLE_WITHIN_S, context)
        return pb.RemoveReply(epoch=self._host.epoch, removed=removed)

    async def EndRequest(self, request: pb.EndRequestRequest, context: Any) -> pb.EndRequestReply:
        self._host.end_request(request.session, request.request_id, hints_from_wire(request.hints))
        return pb.EndRequestReply(epoch=self._host.epoch)


def _keys_or_lease(request: pb.AcquireRequest) -> Keys:
    """No keys mean the lease's own: the call asks again for what it holds."""
    if request.keys or not request.HasField("lease"):
        return keys_from_wire(request.keys, request.key_bytes)
    return Keys(b"", request.key_bytes or MIN_KEY_BYTES)


def _indices(data: bytes) -> npt.NDArray[np.int64] | None:
    """None: all of the reservation."""
    return indices_from_wire(data) if data else None
