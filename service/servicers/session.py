"""Session: the stream whose life is the session's."""

# ruff: noqa: N802 (the names of the methods are the protocol's)

import asyncio
import os
from typing import Any

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.codec import fingerprint_from_wire, namespace_from_wire, tier_to_wire
from hybridkv.service.facade import Host
from hybridkv.service.replies import Attached
from hybridkv.service.servicers.gate import caller
from hybridkv.service.servicers.sessions import OpenStream, Sessions
from hybridkv.service.servicers.streams import next_message
from hybridkv.service.side.server import SideSocket
from hybridkv.service.versions import check_versions
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.version import __version__

FIRST_MESSAGE_S = 5.0
UNIX_PEER = "unix:"


class SessionServicer(pb_grpc.SessionServicer):
    """Attaches workers. `side` hands out the regions; its path is told to peers on the Unix socket only, since
    descriptors cannot travel to another host. None: nobody maps anything."""

    def __init__(self, host: Host, sessions: Sessions, side: SideSocket | None) -> None:
        self._host = host
        self._sessions = sessions
        self._side = side

    async def Attach(self, requests: Any, context: Any) -> None:
        with self._sessions.stream(context) as opened:
            first = await _first_message(context)
            attached = await self._attach(first)
            self._sessions.add(opened, attached)
            detached = False
            try:
                await opened.write(self._reply(attached, context))
                detached = await self._until_end(context, attached.session)
            finally:
                await self._end(opened, attached, detached)

    async def _attach(self, first: pb.AttachRequest) -> Attached:
        """On a thread: a layout's first session takes memory, which may last. A caller that leaves meanwhile leaves a
        session that nobody owns; it ends as soon as it exists."""
        if not first.HasField("space"):
            raise InvalidArgumentError("space", "is missing in the first message")
        check_versions(first.client_version, __version__)
        attaching = asyncio.ensure_future(
            asyncio.to_thread(
                self._host.attach,
                namespace_from_wire(first.space),
                fingerprint=fingerprint_from_wire(first.fingerprint),
                block_bytes=first.block_bytes or None,
                pid=_pid_of(first),
                owner=owner.name if (owner := caller()) is not None else None,
            )
        )
        try:
            return await asyncio.shield(attaching)
        except asyncio.CancelledError:
            attaching.add_done_callback(self._disown)
            raise

    def _disown(self, attaching: "asyncio.Future[Attached]") -> None:
        if not attaching.cancelled() and attaching.exception() is None:
            self._host.detach(attaching.result().session)

    async def _until_end(self, context: Any, session: int) -> bool:
        """Whether the stream ended by a `detach` message. Messages that say nothing known are of a later version, and pass."""
        while True:
            message: pb.AttachRequest | None = await next_message(context, None, "detach")
            if message is None:
                return False
            for former in message.unmapped:
                self._host.confirm_unmapped(session, former.epoch, former.session)
            if message.detach:
                return True

    async def _end(self, opened: OpenStream, attached: Attached, detached: bool) -> None:
        try:
            await self._sessions.end(opened)
        finally:
            if detached:
                self._host.detach(attached.session)
                if self._side is not None:
                    self._side.forget(attached.session)
            else:
                self._host.stream_broken(attached.session)

    def _reply(self, attached: Attached, context: Any) -> pb.AttachReply:
        offered = self._side if context.peer().startswith(UNIX_PEER) else None
        return pb.AttachReply(
            epoch=attached.epoch,
            session=attached.session,
            token=attached.token,
            fingerprint=attached.fingerprint,
            block_bytes=attached.block_bytes,
            key_bytes=attached.key_bytes,
            pools=[
                pb.Pool(
                    index=pool.index,
                    tier=tier_to_wire(pool.tier),
                    device=pool.device,
                    kind=pool.kind,
                    capacity_bytes=pool.capacity_bytes,
                    extent_bytes=pool.extent_bytes,
                )
                for pool in attached.pools
            ],
            limits=pb.Limits(
                keys_per_call_count=attached.limits.keys_per_call_count,
                message_bytes=attached.limits.message_bytes,
                part_bytes=attached.limits.part_bytes,
                lease_s=attached.limits.lease_s,
                reservation_s=attached.limits.reservation_s,
                grace_s=attached.limits.grace_s,
            ),
            side_socket=str(offered.path) if offered is not None else "",
            server_version=__version__,
        )


def _pid_of(first: pb.AttachRequest) -> int | None:
    """None when unknown. A worker that names our own pid is in another pid namespace (1, mostly): it is not us."""
    return None if first.pid in (0, os.getpid()) else first.pid


async def _first_message(context: Any) -> pb.AttachRequest:
    first: pb.AttachRequest | None = await next_message(context, FIRST_MESSAGE_S, "first message")
    if first is None:
        raise InvalidArgumentError("space", "the stream ended before its first message")
    return first
