"""A bare client for the service's tests: stubs on one channel, and an attached session. No client library between."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.codec import namespace_to_wire
from hybridkv.service.status import error_from
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.namespace import Namespace

TIMEOUT_S = 10.0

ROOM_S = 5.0
"""How long a write waits for room: an extent that was never used has to be taken first."""


class Wire:
    """One channel and the stubs on it."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.session = pb_grpc.SessionStub(self.channel)  # type: ignore[no-untyped-call]
        self.kv = pb_grpc.KVCacheStub(self.channel)  # type: ignore[no-untyped-call]
        self.admin = pb_grpc.AdminStub(self.channel)  # type: ignore[no-untyped-call]

    def attach(self, space: Namespace, **fields: Any) -> "Stream":
        return Stream(self, pb.AttachRequest(space=namespace_to_wire(space), **fields))

    def error(self, method: Any, request: Any) -> HybridKVError:
        """The error that a call must end with."""
        try:
            reply = method(request, timeout=TIMEOUT_S)
            if hasattr(reply, "__next__"):
                list(reply)
        except grpc.RpcError as error:
            return error_from(error)
        raise AssertionError(f"answered {reply}")


class Stream:
    """An open Attach stream; `reply` is the first answer."""

    def __init__(self, wire: Wire, first: pb.AttachRequest) -> None:
        self._requests: queue.Queue[pb.AttachRequest | None] = queue.Queue()
        self._requests.put(first)
        self.call = wire.session.Attach(iter(self._requests.get, None))
        self.reply: pb.AttachReply = next(self.call)
        self.session: int = self.reply.session

    def detach(self) -> None:
        self._requests.put(pb.AttachRequest(detach=True))
        self.drained()

    def half_close(self) -> None:
        self._requests.put(None)
        self.drained()

    def drained(self) -> list[pb.AttachReply]:
        """What else the stream carries, to its end."""
        return list(self.call)

    def cancel(self) -> None:
        self.call.cancel()
        self._requests.put(None)


@contextmanager
def wired(address: str) -> Iterator[Wire]:
    wire = Wire(address)
    try:
        yield wire
    finally:
        wire.channel.close()


def key(number: int, width: int = 16) -> bytes:
    return number.to_bytes(width, "little")


def some_keys(*numbers: int) -> dict[str, Any]:
    """`keys` and `key_bytes` of a request."""
    return {"keys": b"".join(map(key, numbers)), "key_bytes": 16}


def payload(number: int, block_bytes: int = 4096) -> bytes:
    """A block's bytes, unlike any other's."""
    return np.random.default_rng(number).bytes(block_bytes)


def parts(session: int, numbers: list[int], data: bytes, size: int = 5000, **fields: Any) -> Iterator[pb.WritePart]:
    """A Write stream whose parts fall across blocks."""
    yield pb.WritePart(session=session, wait_s=ROOM_S, **some_keys(*numbers), **fields)
    for at in range(0, len(data), size):
        yield pb.WritePart(data=data[at : at + size])


def write(wire: Wire, session: int, *numbers: int) -> list[int]:
    """Store the blocks of `numbers`; returns the outcomes."""
    data = b"".join(map(payload, numbers))
    return list(wire.kv.Write(parts(session, list(numbers), data), timeout=TIMEOUT_S).outcomes)


def read(wire: Wire, session: int, *numbers: int, **fields: Any) -> tuple[list[int], bytes]:
    """States and payload."""
    got = list(wire.kv.Read(pb.ReadRequest(session=session, **some_keys(*numbers), **fields), timeout=TIMEOUT_S))
    return list(got[0].states), b"".join(part.data for part in got[1:])
