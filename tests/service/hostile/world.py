"""A daemon under fire: hostile calls on one side, a worker who minds its own business on the other."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.codec import namespace_to_wire
from hybridkv.service.config import load_config
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.namespace import Namespace
from tests.service.conftest import make_space
from tests.service.hostile.mutator import Mutator
from tests.service.wire import TIMEOUT_S, Stream, Wire, key, payload, read, some_keys, wired, write

CALL_S = 0.2
"""Deadline of a hostile call: one that may wait must not hold the test up."""

BUGS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
OWN = range(100, 108)
"""The neighbour's blocks."""

METHODS = [
    (f"{service.name}.{method.name}", service, method)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
DISTURBING = {"Admin.Clear", "Admin.UpdateConfig", "Admin.Drain"}
"""Whoever may call these may disturb everybody: that is what they are for."""


def hostile_config(folder: Path, more: Mapping[str, object] | None = None) -> Any:
    return load_config(
        overrides={
            "daemon.socket": f"unix://{folder}/kv.sock",
            "daemon.grace_s": 0.2,
            "daemon.lease_s": 60.0,
            "daemon.reservation_s": 1.0,
            "cpu.shm_dir": str(folder),
            "cpu.capacity_bytes": "1MiB",
            "gpu.devices": ["host:0"],
            "gpu.capacity_bytes": "512KiB",
            "disk.path": str(folder / "disk"),
            "disk.capacity_bytes": "16MiB",
            "limits.keys_per_call_count": 512,
            "migration.interval_s": 0.05,
            "migration.host_pressure_high": 1.0,
            **(more or {}),
        },
        env={},
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Neighbour:
    """A worker that reads and writes in peace."""

    def __init__(self, wire: Wire, space: Namespace, *, patient: bool) -> None:
        """`patient`: it puts up with MISS, for somebody who may clear and configure is at work."""
        self.wire, self.patient = wire, patient
        self.stream = wire.attach(space)
        assert set(write(wire, self.stream.session, *OWN)) <= {1, 2}
        held = wire.kv.Acquire(
            pb.AcquireRequest(session=self.stream.session, wait_s=1.0, **some_keys(*OWN)), timeout=TIMEOUT_S
        )
        assert set(held.states) == {1}
        self.lease = held.lease
        self.rounds = 0

    def round(self) -> None:
        """What it has is there and right; what it writes is either refused for want of room, or there and right."""
        session, self.rounds = self.stream.session, self.rounds + 1
        renewal = pb.RenewRequest(session=session, holds=[self.lease])
        alive = list(self.wire.kv.Renew(renewal, timeout=TIMEOUT_S).alive)
        states, data = read(self.wire, session, *OWN, wait_s=1.0, independent=True)
        hits = [number for number, state in zip(OWN, states, strict=True) if state == 1]
        assert data == b"".join(map(payload, hits)), "the neighbour's bytes are not its own"
        if not self.patient:
            assert alive == [True], "the neighbour's lease was ended by somebody"
            assert len(hits) == len(OWN), "the neighbour's leased blocks are gone"
        new = 1000 + self.rounds
        try:
            outcomes = write(self.wire, session, new)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return
            raise
        states, data = read(self.wire, session, new, wait_s=1.0)
        assert data == (payload(new) if states == [1] else b""), f"{states} after {outcomes}"


class Attacker:
    """Calls anything with anything. `codes`: how calls ended."""

    def __init__(self, wire: Wire, space: Namespace, random: Random, excluded: set[str]) -> None:
        self.wire, self.space = wire, space
        self.mutator = Mutator(random)
        self.methods = [method for method in METHODS if method[0] not in excluded]
        self.codes: Counter[tuple[str, str]] = Counter()
        self.streams: list[Stream] = []
        self.attach()

    def attach(self) -> None:
        """Two sessions of its own: without them it gets no further than the door."""
        known = self.mutator
        self.streams = [self.wire.attach(self.space) for _ in range(2)]
        known.known["session"] = [self.streams[number].session for number in (0, 0, 0, 0, 1)]
        known.note("key_bytes", 16, 16, 16, 16)
        known.note("keys", *(some_keys(*range(n, n + 5))["keys"] for n in range(4)), key(1), b"")
        known.note("key", key(1))
        known.note("parent", key(0), b"")
        known.note("fingerprint", self.space.fingerprint, b"")
        known.note("space", namespace_to_wire(self.space))
        known.note("tier", 0, 1, 2)
        known.note("data", bytes(4096), bytes(5 * 4096), b"")
        known.note("tokens", 16, 160, 1000)
        known.note("block", b"\0\0\0\0", b"\0\0\0\0\1\0\0\0")
        known.note("indice", b"", b"\0\0\0\0")
        known.note("wait_s", 0.0, 0.01)

    def call(self) -> None:
        """One call; a status that stands for a bug of ours fails."""
        random = self.mutator.random
        name, service, method = random.choice(self.methods)
        path = f"/{service.full_name}/{method.name}"
        count = random.choice((0, 1, 1, 2, 4)) if method.client_streaming else 1
        sent = [self._request(method) for _ in range(count)]
        try:
            if method.client_streaming:
                call: Any = self.wire.channel.stream_stream(path, bytes, bytes)(iter(sent), timeout=CALL_S)
            else:
                call = self.wire.channel.unary_stream(path, bytes, bytes)(sent[0], timeout=CALL_S)
            for number, raw in enumerate(call):
                self._learn(method, raw)
                if number == 2 and random.random() < 0.5:
                    call.cancel()
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
            if code in BUGS:
                raise AssertionError(f"{name}: {error.details()}, after {[raw[:200] for raw in sent]}") from error
        self.codes[name, code.name] += 1

    def _request(self, method: Any) -> bytes:
        if method.name == "Attach" and self.mutator.random.random() < 0.5:
            return pb.AttachRequest(space=namespace_to_wire(self.space), pid=1).SerializeToString()
        return self.mutator.raw(method.input_type)

    def _learn(self, method: Any, raw: bytes) -> None:
        try:
            self.mutator.learn(GetMessageClass(method.output_type).FromString(raw))
        except DecodeError as error:
            raise AssertionError(f"{method.full_name} answered what is no {method.output_type.name}") from error

    def leave(self) -> None:
        for stream in self.streams:
            stream.detach()


@contextmanager
def under_fire(
    daemon: DaemonThread, random: Random, *, disturbing: bool, salt: str
) -> Iterator[tuple[Attacker, Neighbour]]:
    """An attacker and a neighbour; at the end the accounting is sound and the attacker left nothing."""
    with wired(daemon.address) as hostile, wired(daemon.address) as peaceful:
        neighbour = Neighbour(peaceful, make_space(salt=f"neighbour {salt}"), patient=disturbing)
        excluded = set() if disturbing else DISTURBING
        attacker = Attacker(hostile, make_space(salt=f"attacker {salt}"), random, excluded)
        yield attacker, neighbour
        neighbour.round()
        attacker.leave()
        neighbour.stream.detach()
    assert daemon.host.check() == []
