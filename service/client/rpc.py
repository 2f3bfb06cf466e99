"""The transport over gRPC: a Unix socket, or TCP. Regions come over the side socket where there is one."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.client.attaching import AttachStream, attach_request, attached_by, side_socket
from hybridkv.service.client.calls import Calls
from hybridkv.service.client.devices import Handles, WorkerDevices
from hybridkv.service.client.forking import supported as fork_supported
from hybridkv.service.client.memory import Events, Memory
from hybridkv.service.client.regions import WorkerRegions, handles_by_pool
from hybridkv.service.client.streams import PayloadStreams
from hybridkv.service.client.transport import Indices, LostError, States
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
from hybridkv.service.side.client import fetch_regions
from hybridkv.tiers.errors import FailedPreconditionError, HybridKVError, NotFoundError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Tier

MAX_REPLY_BYTES = 64 << 20
"""Replies are bounded by what we ask; this only bounds what a broken daemon can make us hold."""

HANDLES_S = 5.0
LET_GO_S = 5.0
"""How long a close waits for what the process's own streams still do with the daemon's device memory."""

_CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: its end is this session's
    ("grpc.enable_retries", 0),  # a call that may have been carried out is not repeated behind our back
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.max_send_message_length", -1),  # the daemon says what is too much
]


class RpcDial:
    """Connects to one address and attaches; in a forked child too, where gRPC was told to expect that."""

    def __init__(self, address: str, space: Namespace, credentials: grpc.ChannelCredentials | None) -> None:
        self._address = address
        self._space = space
        self._credentials = credentials
        self._pid = os.getpid()

    def __call__(self, timeout_s: float) -> "RpcTransport":
        """Raises LostError when nobody answers, and what attach is refused with."""
        if os.getpid() != self._pid and not fork_supported:
            raise FailedPreconditionError(
                "gRPC was imported before hybridkv, without GRPC_ENABLE_FORK_SUPPORT=1: a forked child cannot use it"
            )
        channel = self._channel()
        try:
            return RpcTransport(self._address, channel, self._space, timeout_s)
        except BaseException:
            channel.close()
            raise

    def _channel(self) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(self._address, _CHANNEL_OPTIONS)
        return grpc.secure_channel(self._address, self._credentials, _CHANNEL_OPTIONS)


class RpcTransport:
    """One session of a daemon in another process. See `Transport`."""

    def __init__(self, address: str, channel: grpc.Channel, space: Namespace, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._channel = channel
        self._stream = AttachStream(channel, attach_request(space), timeout_s)
        self.attached = attached_by(self._stream.reply)
        self.unmapped_reason = ""
        self.memory: Memory | None = self._map(address, deadline)
        self._stub = pb_grpc.KVCacheStub(channel)  # type: ignore[no-untyped-call]
        self._admin = pb_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        self._calls = Calls(self.attached.epoch, self._stream)
        self.payload = PayloadStreams(self._stub, self._calls, self.attached)
        self._session = self.attached.session

    @property
    def lost(self) -> bool:
        return self._calls.lost

    @property
    def draining(self) -> bool:
        return self._stream.draining

    def _map(self, address: str, deadline: float) -> Memory | None:
        """The regions, or None and the reason: the session then uses payload streams."""
        path = side_socket(address, self._stream.reply.side_socket)
        if path is None:
            self.unmapped_reason = "the daemon offers no side socket on this connection"
            return None
        left_s = max(0.001, deadline - time.monotonic())
        try:
            regions = WorkerRegions(fetch_regions(path, self.attached.session, self.attached.token, left_s))
        except HybridKVError as error:
            self.unmapped_reason = str(error)
            return None
        if not any(pool.tier is Tier.CPU and pool.index in regions.pools for pool in self.attached.pools):
            regions.close()
            self.unmapped_reason = "the daemon handed over no region of its CPU tier"
            return None
        devices = WorkerDevices(regions.handles, lambda: self._handles(path)) if regions.handles else None
        return Memory(regions, self.attached.pools, self.attached.block_bytes, devices)

    def _handles(self, path: Path) -> Handles:
        """All device memory there is by now. The descriptors that come along are known already."""
        received = fetch_regions(path, self.attached.session, self.attached.token, HANDLES_S)
        for region in received:
            region.close()
        return handles_by_pool(received)

    # ------------------------------------------------------------------------------------------------------- verbs

    def lookup(self, keys: Keys, *, timeout_s: float) -> LookupReply:
        packed, width = keys_to_wire(keys)
        request = pb.LookupRequest(session=self._session, keys=packed, key_bytes=width)
        reply: pb.LookupReply = self._of_session(self._stub.Lookup, request, timeout_s)
        return LookupReply(states_from_wire(reply.states, len(keys)), states_from_wire(reply.tiers, len(keys), "tiers"))

    def acquire(
        self,
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
        timeout_s: float,
    ) -> AcquireReply:
        packed, width = keys_to_wire(keys)
        message = pb.AcquireRequest(
            session=self._session,
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
        call = self._calls if lease else self._of_session
        reply: pb.AcquireReply = call(self._stub.Acquire, message, timeout_s, wait_s=wait_s)
        states, slots = states_from_wire(reply.states, len(keys)), slots_from_wire(reply.slots, len(keys))
        return AcquireReply(reply.lease, states, slots, reply.expires_in_s)

    def renew(self, holds: list[int], requests: list[int], *, timeout_s: float) -> list[bool]:
        request = pb.RenewRequest(session=self._session, holds=holds, requests=requests)
        reply: pb.RenewReply = self._of_session(self._stub.Renew, request, timeout_s)
        return list(reply.alive)

    def release(self, lease: int, *, events: Events = (), timeout_s: float) -> None:
        request = pb.ReleaseRequest(session=self._session, lease=lease, events=events_to_wire(events))
        self._calls(self._stub.Release, request, timeout_s)

    def reserve(
        self,
        keys: Keys,
        *,
        parent: bytes | None,
        tier: Tier | None,
        device: int | None,
        wait_s: float,
        request: int | None,
        hints: Hints = NO_HINTS,
        timeout_s: float,
    ) -> ReserveReply:
        packed, width = keys_to_wire(keys)
        message = pb.ReserveRequest(
            session=self._session,
            keys=packed,
            key_bytes=width,
            parent=parent or b"",
            tier=tier_to_wire(tier),
            device=device,
            wait_s=wait_s,
            request_id=request,
            hints=hints_to_wire(hints),
        )
        reply: pb.ReserveReply = self._of_session(self._stub.Reserve, message, timeout_s, wait_s=wait_s)
        outcomes = states_from_wire(reply.outcomes, len(keys), "outcomes")
        return ReserveReply(reply.reservation, outcomes, slots_from_wire(reply.slots, len(keys)), reply.expires_in_s)

    def seal(
        self,
        reservation: int,
        indices: Indices,
        checksums: npt.NDArray[np.uint64] | None,
        *,
        events: Events = (),
        timeout_s: float,
    ) -> States:
        request = pb.SealRequest(
            session=self._session,
            reservation=reservation,
            indices=indices_to_wire(indices),
            checksums=b"" if checksums is None else checksums_to_wire(checksums),
            events=events_to_wire(events),
        )
        reply: pb.SealReply = self._calls(self._stub.Seal, request, timeout_s)
        return states_from_wire(reply.outcomes, len(indices), "outcomes")

    def abort(self, reservation: int, indices: Indices | None, *, events: Events = (), timeout_s: float) -> None:
        packed = b"" if indices is None else indices_to_wire(indices)
        request = pb.AbortRequest(
            session=self._session, reservation=reservation, indices=packed, events=events_to_wire(events)
        )
        self._calls(self._stub.Abort, request, timeout_s)

    def prefetch(
        self, keys: Keys, *, tier: Tier | None, device: int | None, deadline_s: float | None = None, timeout_s: float
    ) -> int:
        packed, width = keys_to_wire(keys)
        request = pb.PrefetchRequest(
            session=self._session,
            keys=packed,
            key_bytes=width,
            tier=tier_to_wire(tier),
            device=device,
            deadline_s=deadline_s,
        )
        reply: pb.PrefetchReply = self._of_session(self._stub.Prefetch, request, timeout_s)
        return reply.started

    def touch(self, keys: Keys, *, timeout_s: float) -> int:
        packed, width = keys_to_wire(keys)
        request = pb.TouchRequest(session=self._session, keys=packed, key_bytes=width)
        reply: pb.TouchReply = self._of_session(self._stub.Touch, request, timeout_s)
        return reply.touched

    def remove(self, keys: Keys, *, timeout_s: float) -> int:
        packed, width = keys_to_wire(keys)
        request = pb.RemoveRequest(session=self._session, keys=packed, key_bytes=width)
        reply: pb.RemoveReply = self._of_session(self._stub.Remove, request, timeout_s)
        return reply.removed

    def end_request(self, request: int, *, hints: Hints = NO_HINTS, timeout_s: float) -> None:
        message = pb.EndRequestRequest(session=self._session, request_id=request, hints=hints_to_wire(hints))
        self._calls(self._stub.EndRequest, message, timeout_s)

    def stats(self, *, timeout_s: float) -> dict[str, Any]:
        reply: pb.StatsReply = self._calls(self._admin.Stats, pb.StatsRequest(), timeout_s)
        tree: dict[str, Any] = json.loads(reply.json)
        return tree

    def close(self, *, detach: bool) -> None:
        """A goodbye says that nothing of ours touches a slot: while a view or a kernel might, the stream just ends, and
        what this session held waits for the end of the process."""
        detach = detach and (self.memory is None or self.memory.let_go(LET_GO_S))
        with contextlib.suppress(ValueError):  # the channel was closed meanwhile
            self._stream.close(detach=detach)
        self._channel.close()
        if self.memory is not None:
            self.memory.close()

    def _of_session(self, method: Any, request: Any, timeout_s: float, *, wait_s: float = 0.0) -> Any:
        """A call in which the only thing that may be unknown to the daemon is the session."""
        try:
            return self._calls(method, request, timeout_s, wait_s=wait_s)
        except NotFoundError as error:
            raise LostError(str(error)) from error
