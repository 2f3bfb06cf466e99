"""The transport over gRPC: a Unix socket, or TCP. Regions come over the side socket where there is one."""

import contextlib
import os
import time
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.client import messages
from hybridkv.service.client.attaching import AttachStream, attach_request, attached_by
from hybridkv.service.client.calls import Calls
from hybridkv.service.client.forking import supported as fork_supported
from hybridkv.service.client.mapping import map_memory
from hybridkv.service.client.memory import Events, Memory
from hybridkv.service.client.proofs import Metadata, Proofs
from hybridkv.service.client.rpc_sequences import RpcSequenceCalls
from hybridkv.service.client.streams import PayloadStreams
from hybridkv.service.client.transport import Indices, LostError, States
from hybridkv.service.replies import AcquireReply, LookupReply, ReserveReply
from hybridkv.tiers.errors import FailedPreconditionError, NotFoundError, UnauthenticatedError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Tier

MAX_REPLY_BYTES = 64 << 20
"""Replies are bounded by what we ask; this only bounds what a broken daemon can make us hold."""

LET_GO_S = 5.0
"""How long a close waits for what the process's own streams still do with the daemon's device memory."""

CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: its end is this session's
    ("grpc.enable_retries", 0),  # a call that may have been carried out is not repeated behind our back
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.max_send_message_length", -1),  # the daemon says what is too much
]


class RpcDial:
    """Connects to one address and attaches; in a forked child too, where gRPC was told to expect that."""

    def __init__(self, address: str, space: Namespace, proofs: Proofs) -> None:
        self._address = address
        self._space = space
        self._proofs = proofs
        self._pid = os.getpid()

    def __call__(self, timeout_s: float) -> "RpcTransport":
        """Raises LostError when nobody answers, and what attach is refused with."""
        if os.getpid() != self._pid and not fork_supported:
            raise FailedPreconditionError(
                "gRPC was imported before hybridkv, without GRPC_ENABLE_FORK_SUPPORT=1: a forked child cannot use it"
            )
        deadline = time.monotonic() + timeout_s
        try:
            return self._attached(self._proofs.metadata(), timeout_s)
        except UnauthenticatedError as refusal:
            left_s = max(0.001, deadline - time.monotonic())
            metadata = self._proofs.of_user(self._address, refusal, left_s)
        return self._attached(metadata, max(0.001, deadline - time.monotonic()))

    def _attached(self, metadata: Metadata, timeout_s: float) -> "RpcTransport":
        channel = self._channel()
        try:
            return RpcTransport(self._address, channel, self._space, timeout_s, metadata)
        except BaseException:
            channel.close()
            raise

    def _channel(self) -> grpc.Channel:
        if self._proofs.credentials is None:
            return grpc.insecure_channel(self._address, CHANNEL_OPTIONS)
        return grpc.secure_channel(self._address, self._proofs.credentials, CHANNEL_OPTIONS)


class RpcTransport:
    """One session of a daemon in another process. See `Transport`."""

    def __init__(
        self, address: str, channel: grpc.Channel, space: Namespace, timeout_s: float, metadata: Metadata = ()
    ) -> None:
        """`metadata`: goes with each call, and says who calls."""
        deadline = time.monotonic() + timeout_s
        self._channel = channel
        self._stream = AttachStream(channel, attach_request(space), timeout_s, metadata)
        self.attached = attached_by(self._stream.reply)
        self.unmapped_reason = ""
        self.memory: Memory | None = self._map(address, deadline)
        self._stub = pb_grpc.KVCacheStub(channel)  # type: ignore[no-untyped-call]
        self._admin = pb_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        self._calls = Calls(self.attached.epoch, self._stream, metadata)
        self.payload = PayloadStreams(self._stub, self._calls, self.attached)
        self._session = self.attached.session
        self.sequences = RpcSequenceCalls(channel, self._calls, self._session)

    @property
    def lost(self) -> bool:
        return self._calls.lost

    @property
    def draining(self) -> bool:
        return self._stream.draining

    def _map(self, address: str, deadline: float) -> Memory | None:
        """The regions, or None and the reason: the session then uses payload streams."""
        memory, self.unmapped_reason = map_memory(address, self._stream.reply.side_socket, self.attached, deadline)
        return memory

    # ------------------------------------------------------------------------------------------------------- verbs

    def lookup(self, keys: Keys, *, timeout_s: float) -> LookupReply:
        reply = self._of_session(self._stub.Lookup, messages.lookup(self._session, keys), timeout_s)
        return messages.looked_up(reply, len(keys))

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
        message = messages.acquire(
            self._session,
            keys,
            tier=tier,
            device=device,
            wait_s=wait_s,
            views=views,
            independent=independent,
            request=request,
            lease=lease,
            recompute_s=recompute_s,
            hints=hints,
        )
        call = self._calls if lease else self._of_session
        return messages.acquired(call(self._stub.Acquire, message, timeout_s, wait_s=wait_s), len(keys))

    def renew(self, holds: list[int], requests: list[int], *, timeout_s: float) -> list[bool]:
        request = messages.renew(self._session, holds, requests)
        reply: pb.RenewReply = self._of_session(self._stub.Renew, request, timeout_s)
        return list(reply.alive)

    def release(self, lease: int, *, events: Events = (), timeout_s: float) -> None:
        self._calls(self._stub.Release, messages.release(self._session, lease, events), timeout_s)

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
        message = messages.reserve(
            self._session,
            keys,
            parent=parent,
            tier=tier,
            device=device,
            wait_s=wait_s,
            request=request,
            hints=hints,
        )
        return messages.reserved(self._of_session(self._stub.Reserve, message, timeout_s, wait_s=wait_s), len(keys))

    def seal(
        self,
        reservation: int,
        indices: Indices,
        checksums: npt.NDArray[np.uint64] | None,
        *,
        events: Events = (),
        timeout_s: float,
    ) -> States:
        request = messages.seal(self._session, reservation, indices, checksums, events)
        return messages.sealed(self._calls(self._stub.Seal, request, timeout_s), len(indices))

    def abort(self, reservation: int, indices: Indices | None, *, events: Events = (), timeout_s: float) -> None:
        self._calls(self._stub.Abort, messages.abort(self._session, reservation, indices, events), timeout_s)

    def prefetch(
        self, keys: Keys, *, tier: Tier | None, device: int | None, deadline_s: float | None = None, timeout_s: float
    ) -> int:
        request = messages.prefetch(self._session, keys, tier=tier, device=device, deadline_s=deadline_s)
        reply: pb.PrefetchReply = self._of_session(self._stub.Prefetch, request, timeout_s)
        return reply.started

    def touch(self, keys: Keys, counts: Indices | None = None, *, timeout_s: float) -> int:
        request = messages.touch(self._session, keys, counts)
        reply: pb.TouchReply = self._of_session(self._stub.Touch, request, timeout_s)
        return reply.touched

    def remove(self, keys: Keys, *, timeout_s: float) -> int:
        reply: pb.RemoveReply = self._of_session(self._stub.Remove, messages.remove(self._session, keys), timeout_s)
        return reply.removed

    def end_request(self, request: int, *, hints: Hints = NO_HINTS, timeout_s: float) -> None:
        self._calls(self._stub.EndRequest, messages.end_request(self._session, request, hints), timeout_s)

    def stats(self, *, timeout_s: float) -> dict[str, Any]:
        return messages.figures(self._calls(self._admin.Stats, pb.StatsRequest(), timeout_s))

    def tell_unmapped(self, epoch: int, session: int) -> None:
        """See `Transport`."""
        self._stream.tell_unmapped(epoch, session)

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
