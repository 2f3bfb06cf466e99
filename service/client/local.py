"""The transport to a host in this process: calls of the facade, mappings of its memory."""

import os
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.devices import LocalDevices
from hybridkv.service.client.local_sequences import LocalSequenceCalls
from hybridkv.service.client.memory import Events, Memory
from hybridkv.service.client.regions import WorkerRegions
from hybridkv.service.client.transport import Indices, LostError, States
from hybridkv.service.facade import Host, Ticket
from hybridkv.service.replies import AcquireReply, Attached, LookupReply, ReserveReply
from hybridkv.service.side.client import ReceivedRegion
from hybridkv.service.side.protocol import RegionInfo
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Tier

T = TypeVar("T")

LET_GO_S = 5.0


class LocalTransport:
    """One session of a host in this process. See `Transport`."""

    payload = None
    unmapped_reason = ""
    draining = False

    def __init__(self, host: Host, space: Namespace) -> None:
        self._host = host
        self.attached = host.attach(
            space, fingerprint=space.fingerprint, block_bytes=space.layout.block_bytes, pid=os.getpid(), in_process=True
        )
        devices = _devices(host)
        self.memory = Memory(
            _mapped(host, self.attached, devices.pools), self.attached.pools, self.attached.block_bytes, devices
        )
        self._session = self.attached.session
        self._closed = False
        self.sequences = LocalSequenceCalls(host, self._open)

    @property
    def lost(self) -> bool:
        return self._closed

    def lookup(self, keys: Keys, *, timeout_s: float) -> LookupReply:
        return self._host.lookup(self._open(), keys)

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
        ticket = self._host.acquire(
            self._open(),
            keys[:0] if lease else keys,
            tier=tier,
            device=device,
            views=views,
            independent=independent,
            request=request,
            lease=lease,
            recompute_s=recompute_s,
            hints=hints,
        )
        return _settled(ticket, wait_s)

    def renew(self, holds: list[int], requests: list[int], *, timeout_s: float) -> list[bool]:
        return self._host.renew(self._open(), holds, requests)

    def release(self, lease: int, *, events: Events = (), timeout_s: float) -> None:
        self._host.release(self._open(), lease, events)

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
        session = self._open()
        ticket = self._host.reserve(
            session, keys, parent=parent, tier=tier, device=device, request=request, hints=hints
        )
        return _settled(ticket, wait_s)

    def seal(
        self,
        reservation: int,
        indices: Indices,
        checksums: npt.NDArray[np.uint64] | None,
        *,
        events: Events = (),
        timeout_s: float,
    ) -> States:
        return self._host.seal(self._open(), reservation, indices, checksums, events)

    def abort(self, reservation: int, indices: Indices | None, *, events: Events = (), timeout_s: float) -> None:
        self._host.abort(self._open(), reservation, indices, events)

    def prefetch(
        self, keys: Keys, *, tier: Tier | None, device: int | None, deadline_s: float | None = None, timeout_s: float
    ) -> int:
        return self._host.prefetch(self._open(), keys, tier=tier, device=device, deadline_s=deadline_s)

    def touch(self, keys: Keys, counts: Indices | None = None, *, timeout_s: float) -> int:
        return self._host.touch(self._open(), keys, counts)

    def remove(self, keys: Keys, *, timeout_s: float) -> int:
        removed = self._host.remove(self._open(), keys)
        self._host.removals().wait(timeout_s)
        return removed

    def end_request(self, request: int, *, hints: Hints = NO_HINTS, timeout_s: float) -> None:
        self._host.end_request(self._open(), request, hints)

    def stats(self, *, timeout_s: float) -> dict[str, Any]:
        return self._host.stats()

    def tell_unmapped(self, epoch: int, session: int) -> None:
        """A host in this process keeps nothing for sessions of before: none of them outlived their host."""

    def close(self, *, detach: bool) -> None:
        if not self._closed:
            self._closed = True
            if detach and self.memory.let_go(LET_GO_S):
                self._host.detach(self._session)
            elif detach:
                self._host.stream_broken(self._session)
            self.memory.close()

    def _open(self) -> int:
        """The session's number. Raises LostError once closed."""
        if self._closed:
            raise LostError("the session has ended")
        return self._session


def _devices(host: Host) -> LocalDevices:
    """CUDA pools: their memory cannot be imported by the process that has it."""
    pools = host.memory.device_pools.items()
    return LocalDevices({index: pool for index, pool in pools if pool.device.kind == "cuda"})


def _mapped(host: Host, attached: Attached, on_device: tuple[int, ...]) -> WorkerRegions:
    """Mappings of our own, as any worker has them: the one for reading lets nobody write."""
    offered = (
        ReceivedRegion(RegionInfo(offer.name, offer.pool, offer.kind, offer.nbytes, offer.extra), os.dup(offer.fd))
        for offer in host.regions(attached.session, attached.token)
        if offer.fd is not None
    )
    return WorkerRegions(offered, on_device)


def _settled(ticket: Ticket[T], wait_s: float) -> T:
    """The ticket's reply when nothing is pending, or as it is after `wait_s`."""
    try:
        if not ticket.done and wait_s > 0:
            ticket.wait(wait_s)
        return ticket.reply()
    except BaseException:
        ticket.abandon()
        raise


class LocalDial:
    """Attaches to a host in this process; not in a forked child, where the host's threads and memory are not."""

    def __init__(self, host: Host, space: Namespace) -> None:
        self._host = host
        self._space = space
        self._pid = os.getpid()

    def __call__(self, timeout_s: float) -> LocalTransport:
        if os.getpid() != self._pid:
            raise FailedPreconditionError("an in-process host does not outlive a fork; open another in the child")
        return LocalTransport(self._host, self._space)
