"""The Attach stream: open for the session's life, on a thread of its own."""

import queue
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.client.forking import gate
from hybridkv.service.client.proofs import Metadata, beside
from hybridkv.service.client.raising import raised_by
from hybridkv.service.client.transport import LostError
from hybridkv.service.codec import namespace_to_wire, tier_from_wire
from hybridkv.service.replies import Attached, LimitsInfo, PoolInfo
from hybridkv.service.versions import check_versions
from hybridkv.tiers.errors import DeadlineExceededError, HybridKVError
from hybridkv.tiers.namespace import Namespace
from hybridkv.version import __version__

DETACH_S = 1.0
"""How long a clean end waits for the daemon to have ended the session's holds."""

Answer = queue.SimpleQueue["pb.AttachReply | HybridKVError"]


def attach_request(space: Namespace) -> pb.AttachRequest:
    """The first message. It names no pid: we do not know ours in the daemon's namespace; the side socket tells it."""
    return pb.AttachRequest(
        space=namespace_to_wire(space),
        fingerprint=space.fingerprint,
        block_bytes=space.layout.block_bytes,
        client_version=__version__,
    )


def unmapped_request(formers: Iterable[tuple[int, int]]) -> pb.AttachRequest:
    """A later message: (epoch, session) of sessions of before whose memory this process maps no more."""
    return pb.AttachRequest(unmapped=[pb.Former(epoch=epoch, session=session) for epoch, session in formers])


def check_server(reply: pb.AttachReply) -> None:
    """Raises FailedPreconditionError when the daemon is of a version that this client does not work with. A daemon that is
    older than the rule does not look."""
    if reply.server_version:
        check_versions(__version__, reply.server_version)


class AttachStream:
    """One open stream. `lost` once it has ended, whoever ended it; `draining` once the daemon announced its stop."""

    def __init__(
        self, channel: grpc.Channel, request: pb.AttachRequest, timeout_s: float, metadata: Metadata = ()
    ) -> None:
        """Attach. Raises what the daemon refused with, LostError or DeadlineExceededError; then nothing stays open."""
        self._outgoing: queue.SimpleQueue[pb.AttachRequest | None] = queue.SimpleQueue()
        self._outgoing.put(request)
        self._ended = threading.Event()
        self.draining = False
        with gate.passing():
            stub = pb_grpc.SessionStub(channel)  # type: ignore[no-untyped-call]
            self._call = stub.Attach(_messages(self._outgoing), metadata=metadata)
        answer: Answer = queue.SimpleQueue()
        threading.Thread(target=self._follow, args=(answer,), name="hybridkv-attach", daemon=True).start()
        try:
            first = answer.get(timeout=timeout_s)
        except queue.Empty:
            self._cancel()
            raise DeadlineExceededError(f"attach: no answer within {timeout_s:.3g} s") from None
        if isinstance(first, HybridKVError):
            self._cancel()
            raise first
        self.reply: pb.AttachReply = first
        try:
            check_server(first)
        except HybridKVError:
            self._cancel()
            raise

    @property
    def lost(self) -> bool:
        return self._ended.is_set()

    def tell_unmapped(self, epoch: int, session: int) -> None:
        """That session of before is mapped here no more. Never blocks; from any thread."""
        self._outgoing.put(unmapped_request([(epoch, session)]))

    def close(self, *, detach: bool) -> None:
        """End the stream; with `detach` wait shortly until the daemon has ended what the session held."""
        if detach and not self.lost:
            self._outgoing.put(pb.AttachRequest(detach=True))
            self._ended.wait(DETACH_S)
        self._cancel()

    def _cancel(self) -> None:
        self._outgoing.put(None)
        with gate.passing():
            self._call.cancel()

    def _follow(self, answer: Answer) -> None:
        """The stream's thread: the first reply or error goes to `answer`, the stream's end to `_ended`."""
        try:
            for reply in self._call:
                if reply.draining:
                    self.draining = True
                else:
                    answer.put(reply)
            answer.put(LostError("the daemon ended the Attach stream"))
        except grpc.RpcError as error:
            answer.put(raised_by(error))
        finally:
            self._ended.set()


def _messages(outgoing: "queue.SimpleQueue[pb.AttachRequest | None]") -> Iterator[pb.AttachRequest]:
    while (message := outgoing.get()) is not None:
        yield message


def side_socket(address: str, told: str) -> Path | None:
    """The side socket lies beside the socket we came by: in a container its folder has another name."""
    path = beside(address)
    return path.with_name(Path(told).name) if told and path is not None else None


def attached_by(reply: pb.AttachReply) -> Attached:
    """What the daemon granted."""
    limits = reply.limits
    return Attached(
        session=reply.session,
        token=reply.token,
        epoch=reply.epoch,
        fingerprint=reply.fingerprint,
        block_bytes=reply.block_bytes,
        key_bytes=reply.key_bytes,
        pools=tuple(_pool(pool) for pool in reply.pools),
        limits=LimitsInfo(
            keys_per_call_count=limits.keys_per_call_count,
            message_bytes=limits.message_bytes,
            part_bytes=limits.part_bytes,
            lease_s=limits.lease_s,
            reservation_s=limits.reservation_s,
            grace_s=limits.grace_s,
        ),
    )


def _pool(pool: pb.Pool) -> PoolInfo:
    tier = tier_from_wire(pool.tier)
    assert tier is not None, "a pool has a tier"
    return PoolInfo(pool.index, tier, pool.device, pool.kind, pool.capacity_bytes, pool.extent_bytes)
