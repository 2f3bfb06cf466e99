"""A small synchronous client of a daemon's Admin service: what the command line and operators' scripts use."""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import Any, Self

import grpc

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.client.proofs import PathLike, proofs
from hybridkv.service.status import error_from
from hybridkv.service.watching import (
    Snapshot,
    WatchEvent,
    WatchKind,
    events_from_wire,
    kind_to_wire,
    snapshot_from_wire,
)
from hybridkv.tiers.errors import UnauthenticatedError

DEADLINE_S = 5.0
CHECK_DEADLINE_S = 60.0
DRAIN_MARGIN_S = 5.0
MESSAGE_BYTES = 64 << 20  # figures of a daemon with many namespaces; what it sends is bounded by its own limit


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of the daemon's config. `source`: "default", "file …", "environment …" or "flag"."""

    key: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class ConfigUpdated:
    """Versions after and before, and for each key that changed its values (before, after)."""

    version: int
    previous_version: int
    changed: dict[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Drained:
    """Blocks written to disk by a drain, and blocks that are left in volatile tiers only."""

    written: int
    left: int


class AdminClient:
    """One connection to a daemon. Every method has a deadline and raises errors of `tiers/errors.py`. Thread-safe."""

    def __init__(
        self,
        address: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        token_file: PathLike | None = None,
    ) -> None:
        """`address`: "unix:///path", or host:port (with `credentials` for TLS). `token`, `token_file`: as of `connect`; a
        daemon with tenants lets only operators do everything. Connects at the first call."""
        self.address = address
        self._proofs = proofs(token=token, token_file=token_file, credentials=credentials)
        self._metadata = self._proofs.metadata()
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self._stub = pb_grpc.AdminStub(self._channel)  # type: ignore[no-untyped-call]

    def stats(self) -> dict[str, Any]:
        """The tree of figures; `docs/guide.md` lists its keys."""
        stats: dict[str, Any] = json.loads(self._call(self._stub.Stats, pb.StatsRequest()).json)
        return stats

    def config(self) -> list[ConfigEntry]:
        """Every key the daemon runs with, in the order of the file."""
        reply = self._call(self._stub.GetConfig, pb.GetConfigRequest())
        return [ConfigEntry(value.key, json.loads(value.json_value), value.source) for value in reply.values]

    def config_version(self) -> int:
        """Which config is in force: 1 at the daemon's start, one more with each change."""
        return int(self._call(self._stub.GetConfig, pb.GetConfigRequest()).version)

    def update_config(self, changes: Mapping[str, object], expected_version: int | None = None) -> ConfigUpdated:
        """Change keys of the running daemon: all of `changes` (JSON values, or text as in the environment), or none.

        Raises InvalidArgumentError naming every bad key, FailedPreconditionError naming every key that needs a restart.
        """
        request = pb.UpdateConfigRequest(
            changes=[pb.ConfigAssignment(key=key, json_value=json.dumps(value)) for key, value in changes.items()],
            expected_version=expected_version,
        )
        reply = self._call(self._stub.UpdateConfig, request, CHECK_DEADLINE_S)
        changed = {one.key: (json.loads(one.json_before), json.loads(one.json_after)) for one in reply.changed}
        return ConfigUpdated(reply.version, reply.previous_version, changed)

    def explain(self, key: bytes, fingerprint_prefix: bytes = b"") -> list[dict[str, Any]]:
        """What is known of a block, one account for each namespace that has or had it; `docs/guide.md` lists the keys."""
        request = pb.ExplainRequest(key=key, fingerprint_prefix=fingerprint_prefix)
        accounts: list[dict[str, Any]] = json.loads(self._call(self._stub.Explain, request).json)
        return accounts

    def check(self) -> list[str]:
        """What breaks the laws; empty when the accounting is sound."""
        return list(self._call(self._stub.Check, pb.CheckRequest(), CHECK_DEADLINE_S).violations)

    def clear(self, fingerprint: bytes | None = None) -> int:
        """Remove the blocks of one namespace, or of all; returns how many went."""
        request = pb.ClearRequest(fingerprint=fingerprint or b"")
        return int(self._call(self._stub.Clear, request, CHECK_DEADLINE_S).removed)

    def drain(self, timeout_s: float) -> Drained:
        """Bring to disk what is only in volatile tiers."""
        request = pb.DrainRequest(timeout_s=timeout_s)
        reply = self._call(self._stub.Drain, request, timeout_s + DRAIN_MARGIN_S)
        return Drained(reply.written, reply.left)

    def watch(
        self,
        *,
        fingerprints: Sequence[bytes] = (),
        kinds: Sequence[WatchKind] = (),
        from_sequence: int | None = None,
        epoch: int = 0,
    ) -> Generator[WatchEvent]:
        """Events of some namespaces and kinds (empty: all), from now on, or from one that is still remembered: first EPOCH,
        then whatever happens, until the generator is closed or the daemon ends the stream. The stream is open when this
        returns. `docs/watch.md` tells what the events mean."""
        asked = map(kind_to_wire, kinds)
        request = pb.WatchRequest(fingerprints=fingerprints, kinds=asked, from_sequence=from_sequence, epoch=epoch)
        call, first = self._opened(self._stub.Watch, request, None)
        return self._events(call, first)

    def _events(self, call: Any, first: pb.WatchReply) -> Generator[WatchEvent]:
        try:
            yield from events_from_wire(first)
            for reply in self._streamed(call):
                yield from events_from_wire(reply)
        finally:
            call.cancel()

    def snapshot(self, fingerprint: bytes | None = None) -> Snapshot:
        """Every block that can be found, of one namespace or of all, as of one event."""
        request = pb.SnapshotRequest(fingerprint=fingerprint or b"")
        call, first = self._opened(self._stub.Snapshot, request, CHECK_DEADLINE_S)
        return snapshot_from_wire(chain((first,), self._streamed(call)))

    def _opened(self, method: Any, request: Any, deadline_s: float | None) -> tuple[Any, Any]:
        """A stream and its first message: by then it is known whether the daemon takes the caller's proof."""
        try:
            call = method(request, timeout=deadline_s, metadata=self._metadata or None)
            return call, next(self._streamed(call))
        except UnauthenticatedError as refusal:
            self._metadata = self._proofs.of_user(self.address, refusal, DEADLINE_S)
        call = method(request, timeout=deadline_s, metadata=self._metadata or None)
        return call, next(self._streamed(call))

    def _streamed(self, call: Any) -> Iterator[Any]:
        try:
            yield from call
        except grpc.RpcError as error:
            raise error_from(error) from error

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _call(self, method: Any, request: Any, deadline_s: float = DEADLINE_S) -> Any:
        try:
            return self._answered(method, request, deadline_s)
        except UnauthenticatedError as refusal:
            self._metadata = self._proofs.of_user(self.address, refusal, deadline_s)
        return self._answered(method, request, deadline_s)

    def _answered(self, method: Any, request: Any, deadline_s: float) -> Any:
        try:
            return method(request, timeout=deadline_s, metadata=self._metadata or None)
        except grpc.RpcError as error:
            raise error_from(error) from error
