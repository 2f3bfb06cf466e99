"""Admin: figures, config and its changes, explain, check, clear and drain; Watch and Snapshot are in `watch.py`."""

# ruff: noqa: N802 (the names of the methods are the protocol's)

import asyncio
import json
import math
from collections.abc import Callable, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.codec import fingerprint_from_wire
from hybridkv.service.config import config_values
from hybridkv.service.facade import Host
from hybridkv.service.servicers.gate import caller
from hybridkv.service.servicers.waiting import DURABLE_WITHIN_S, settled
from hybridkv.service.servicers.watch import Watchers
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.namespace import FINGERPRINT_BYTES, MAX_KEY_BYTES

T = TypeVar("T")

MAX_DRAIN_S = 3600.0
THREADS = 3
"""One for the drain, of which there is one at a time, and two for the walks over the directory."""


class AdminServicer(pb_grpc.AdminServicer):
    """Walks over the whole directory run on threads of their own, so that the workers' calls are served meanwhile.

    `sources` tells per config key where its value came from, and is kept up to date; `stats` is the tree that Stats sends.
    """

    def __init__(
        self, host: Host, stats: Callable[[], dict[str, Any]], sources: MutableMapping[str, str], watchers: Watchers
    ) -> None:
        self._host = host
        self._watchers = watchers
        self._stats = stats
        self._sources = sources
        self._draining = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS, "hybridkv-admin")

    def close(self) -> None:
        """Start nothing more. Walks under way run to their end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsReply:
        identity = caller()
        if identity is None or identity.operator:
            stats = await self._on_thread(self._stats)
        else:
            stats = await self._on_thread(lambda: self._host.tenant_stats(identity.name))
        return pb.StatsReply(epoch=self._host.epoch, json=json.dumps(stats))

    async def GetConfig(self, request: pb.GetConfigRequest, context: Any) -> pb.GetConfigReply:
        values = [
            pb.ConfigValue(key=key, json_value=json.dumps(value), source=self._sources.get(key, "default"))
            for key, value in config_values(self._host.config).items()
        ]
        return pb.GetConfigReply(epoch=self._host.epoch, values=values, version=self._host.config_version)

    async def UpdateConfig(self, request: pb.UpdateConfigRequest, context: Any) -> pb.UpdateConfigReply:
        changes = _changes_from_wire(request.changes)
        expected = request.expected_version if request.HasField("expected_version") else None
        update = await self._on_thread(
            lambda: self._host.update_config(changes, expected_version=expected, sources=self._sources)
        )
        self._sources.update({change.key: f"update to version {update.version}" for change in update.changed})
        return pb.UpdateConfigReply(
            epoch=self._host.epoch,
            version=update.version,
            previous_version=update.previous_version,
            changed=[
                pb.ConfigChange(
                    key=change.key, json_before=json.dumps(change.before), json_after=json.dumps(change.after)
                )
                for change in update.changed
            ],
        )

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainReply:
        if not request.key or len(request.key) > MAX_KEY_BYTES:
            raise InvalidArgumentError("key", f"{len(request.key)} bytes; 1 to {MAX_KEY_BYTES}")
        if len(request.fingerprint_prefix) > FINGERPRINT_BYTES:
            raise InvalidArgumentError(
                "fingerprint_prefix", f"{len(request.fingerprint_prefix)} bytes; at most {FINGERPRINT_BYTES}"
            )
        prefix = _own_prefix(request.fingerprint_prefix)
        accounts = [] if prefix is None else await self._on_thread(lambda: self._host.explain(request.key, prefix))
        return pb.ExplainReply(epoch=self._host.epoch, json=json.dumps(accounts))

    async def Check(self, request: pb.CheckRequest, context: Any) -> pb.CheckReply:
        return pb.CheckReply(epoch=self._host.epoch, violations=await self._on_thread(self._host.check))

    async def Clear(self, request: pb.ClearRequest, context: Any) -> pb.ClearReply:
        fingerprint = _own_fingerprint(fingerprint_from_wire(request.fingerprint))
        removed = await self._on_thread(lambda: self._host.clear(fingerprint))
        await settled(self._host.removals(), DURABLE_WITHIN_S, context)
        return pb.ClearReply(epoch=self._host.epoch, removed=removed)

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainReply:
        timeout_s = request.timeout_s
        if not math.isfinite(timeout_s) or not 0.0 <= timeout_s <= MAX_DRAIN_S:
            raise InvalidArgumentError("timeout_s", f"{timeout_s} is not in 0..{MAX_DRAIN_S:g} seconds")
        async with self._draining:
            report = await self._on_thread(lambda: self._host.drain(timeout_s))
        return pb.DrainReply(epoch=self._host.epoch, written=report.written, left=report.left)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> None:
        await self._watchers.watch(request, context)

    async def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> None:
        await self._watchers.snapshot(request, context, self._on_thread)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _own_prefix(prefix: bytes) -> bytes | None:
    """Which namespaces the caller may ask about: an operator all, a worker its own, whose fingerprint may be given as the
    worker computes it or (the beginning of it) as the daemon has it. None: no such namespace is its own."""
    identity = caller()
    if identity is None or identity.operator:
        return prefix
    if len(prefix) == FINGERPRINT_BYTES and not prefix.startswith(identity.tag):
        return identity.own(prefix)
    longer, shorter = sorted((prefix, identity.tag), key=len, reverse=True)
    return longer if longer.startswith(shorter) else None


def _own_fingerprint(fingerprint: bytes | None) -> bytes | None:
    """Of whom to clear: a worker's own namespace, or all of its own."""
    identity = caller()
    if identity is None or identity.operator:
        return fingerprint
    return identity.tag if fingerprint is None else identity.own(fingerprint)


def _changes_from_wire(assignments: Iterable[pb.ConfigAssignment]) -> dict[str, object]:
    changes: dict[str, object] = {}
    for one in assignments:
        if one.key in changes:
            raise InvalidArgumentError(one.key, "is given twice")
        try:
            changes[one.key] = json.loads(one.json_value)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(one.key, f"json_value is no JSON: {error}") from error
    return changes
