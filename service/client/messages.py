"""The messages of a session's calls, made and read: what the sync and the asyncio transport have in common."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.client.memory import Events
from hybridkv.service.client.transport import Indices, States
from hybridkv.service.codec import (
    checksums_to_wire,
    events_to_wire,
    hints_to_wire,
    indices_to_wire,
    keys_to_wire,
    slots_from_wire,
    states_from_wire,
    tier_to_wire,
)
from hybridkv.service.replies import AcquireReply, LookupReply, ReserveReply
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Tier


def lookup(session: int, keys: Keys) -> pb.LookupRequest:
    packed, width = keys_to_wire(keys)
    return pb.LookupRequest(session=session, keys=packed, key_bytes=width)


def looked_up(reply: pb.LookupReply, count: int) -> LookupReply:
    return LookupReply(states_from_wire(reply.states, count), states_from_wire(reply.tiers, count, "tiers"))


def acquire(
    session: int,
    keys: Keys,
    *,
    tier: Tier | None,
    device: int | None,
    wait_s: float,
    views: bool,
    independent: bool,
    request: int | None,
    lease: int | None,
    recompute_s: float | None = None,
    hints: Hints = NO_HINTS,
) -> pb.AcquireRequest:
    """With `lease` the keys are those it was taken for, which the daemon knows."""
    packed, width = keys_to_wire(keys)
    return pb.AcquireRequest(
        session=session,
        keys=b"" if lease else packed,
        key_bytes=width,
        tier=tier_to_wire(tier),
        device=device,
        wait_s=wait_s,
        views=views,
        independent=independent,
        request_id=request,
        lease=lease,
        recompute_s=None if lease else recompute_s,
        hints=hints_to_wire(hints),
    )


def acquired(reply: pb.AcquireReply, count: int) -> AcquireReply:
    """Its arrays are read-only views of the message."""
    states, slots = states_from_wire(reply.states, count), slots_from_wire(reply.slots, count)
    return AcquireReply(reply.lease, states, slots, reply.expires_in_s)


def renew(session: int, holds: list[int], requests: list[int]) -> pb.RenewRequest:
    return pb.RenewRequest(session=session, holds=holds, requests=requests)


def release(session: int, lease: int, events: Events = ()) -> pb.ReleaseRequest:
    return pb.ReleaseRequest(session=session, lease=lease, events=events_to_wire(events))


def reserve(
    session: int,
    keys: Keys,
    *,
    parent: bytes | None,
    tier: Tier | None,
    device: int | None,
    wait_s: float,
    request: int | None,
    hints: Hints = NO_HINTS,
) -> pb.ReserveRequest:
    packed, width = keys_to_wire(keys)
    return pb.ReserveRequest(
        session=session,
        keys=packed,
        key_bytes=width,
        parent=parent or b"",
        tier=tier_to_wire(tier),
        device=device,
        wait_s=wait_s,
        request_id=request,
        hints=hints_to_wire(hints),
    )


def reserved(reply: pb.ReserveReply, count: int) -> ReserveReply:
    outcomes = states_from_wire(reply.outcomes, count, "outcomes")
    return ReserveReply(reply.reservation, outcomes, slots_from_wire(reply.slots, count), reply.expires_in_s)


def seal(
    session: int,
    reservation: int,
    indices: Indices,
    checksums: npt.NDArray[np.uint64] | None,
    events: Events = (),
) -> pb.SealRequest:
    return pb.SealRequest(
        session=session,
        reservation=reservation,
        indices=indices_to_wire(indices),
        checksums=b"" if checksums is None else checksums_to_wire(checksums),
        events=events_to_wire(events),
    )


def sealed(reply: pb.SealReply, count: int) -> States:
    return states_from_wire(reply.outcomes, count, "outcomes")


def abort(session: int, reservation: int, indices: Indices | None, events: Events = ()) -> pb.AbortRequest:
    """`indices` None: all of the reservation."""
    packed = b"" if indices is None else indices_to_wire(indices)
    return pb.AbortRequest(session=session, reservation=reservation, indices=packed, events=events_to_wire(events))


def prefetch(
    session: int, keys: Keys, *, tier: Tier | None, device: int | None, deadline_s: float | None
) -> pb.PrefetchRequest:
    packed, width = keys_to_wire(keys)
    return pb.PrefetchRequest(
        session=session, keys=packed, key_bytes=width, tier=tier_to_wire(tier), device=device, deadline_s=deadline_s
    )


def touch(session: int, keys: Keys, counts: Indices | None) -> pb.TouchRequest:
    packed, width = keys_to_wire(keys)
    told = b"" if counts is None else indices_to_wire(counts)
    return pb.TouchRequest(session=session, keys=packed, key_bytes=width, counts=told)


def remove(session: int, keys: Keys) -> pb.RemoveRequest:
    packed, width = keys_to_wire(keys)
    return pb.RemoveRequest(session=session, keys=packed, key_bytes=width)


def end_request(session: int, request: int, hints: Hints) -> pb.EndRequestRequest:
    return pb.EndRequestRequest(session=session, request_id=request, hints=hints_to_wire(hints))


def figures(reply: pb.StatsReply) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(reply.json)
    return tree
