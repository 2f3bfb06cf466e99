"""How a worker of the demo serves one request, as an engine would: what is cached is read, the rest is derived."""

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hybridkv.benchmarks.content import Content
from hybridkv.service.client import KV, Lease, Request, Reservation
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import ReserveOutcome, SealOutcome, Tier

ACQUIRE_WAIT_S = 10.0
RESERVE_WAIT_S = 5.0
PIECE_BLOCKS = 64
"""Blocks that are reserved, filled and sealed at a time: others find the first while the last are being derived."""


@dataclass(slots=True)
class Tally:
    """What became of one request's blocks: asked = found and read (`hits`, `late`) + `derived`."""

    request: int = 0
    asked: int = 0
    hits: dict[str, int] = field(default_factory=lambda: {tier.name.lower(): 0 for tier in Tier})
    """Blocks read and verified, by the highest tier that held them when the request asked."""
    late: int = 0
    """Blocks read and verified that nobody had yet when the request asked."""
    read_in_cpu: int = 0
    """Of hits and late: read in the CPU tier, because the GPU tier was full of other requests' blocks."""
    wrong: int = 0
    """Blocks whose bytes were not those of their key."""
    unserved: int = 0
    """Blocks that were there when the request asked, and could not be had."""
    derived: int = 0
    sealed: int = 0
    private: int = 0
    """Of derived: kept for itself, because another was writing them, or had by then, or there was no room."""
    serve_s: float = 0.0
    """Time spent to have the hits in place: acquire, with the wait for blocks on their way up, and release."""
    derive_s: float = 0.0
    """Time spent to derive blocks, without reserving and sealing them."""
    verify_s: float = 0.0
    total_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class RequestRunner:
    """Serves requests over one handle, one after another."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._content = Content(kv.space.layout.block_bytes)
        self._spare = np.empty(kv.space.layout.block_bytes, np.uint8)

    def run(self, number: int, keys: Keys) -> Tally:
        """Serve one request. Its leases last until its end, as those of an engine that computes with the blocks."""
        tally = Tally(request=number, asked=len(keys))
        began = time.perf_counter()
        found = self._kv.lookup(keys)  # only for the count: an engine would acquire at once
        with self._kv.request() as request, ExitStack() as leases:
            served = self._read(request, keys, found.prefix, leases, tally)
            self._count(tally, served, found.prefix, found.tiers)
            self._derive(request, keys, served, tally)
            releasing = time.perf_counter()
            leases.close()
            tally.serve_s += time.perf_counter() - releasing
        tally.total_s = time.perf_counter() - began
        return tally

    # ------------------------------------------------------------------------------------------------------ reading

    def _read(self, request: Request, keys: Keys, known: int, leases: ExitStack, tally: Tally) -> int:
        """Read and verify the longest prefix that can be had: in the GPU tier, and what that has no room for, below."""
        served = self._read_in(request, keys, "gpu", leases, tally)
        if served < known:
            tally.read_in_cpu = self._read_in(request, keys[served:], None, leases, tally)
        return served + tally.read_in_cpu

    def _read_in(self, request: Request, keys: Keys, tier: str | None, leases: ExitStack, tally: Tally) -> int:
        began = time.perf_counter()
        try:
            lease = leases.enter_context(request.acquire(keys, tier=tier, timeout_s=ACQUIRE_WAIT_S))
        except ResourceExhaustedError:
            return 0
        finally:
            tally.serve_s += time.perf_counter() - began
        self._verify(lease, keys, tally)
        return lease.prefix

    def _verify(self, lease: Lease, keys: Keys, tally: Tally) -> None:
        began = time.perf_counter()
        for i in range(lease.prefix):
            tally.wrong += not self._content.verify(keys[i], lease.array(i))
        tally.verify_s += time.perf_counter() - began

    def _count(self, tally: Tally, served: int, known: int, tiers: Any) -> None:
        for tier, count in zip(*np.unique(tiers[: min(served, known)], return_counts=True), strict=True):
            tally.hits[Tier(tier).name.lower()] = int(count)
        tally.late = max(0, served - known)
        tally.unserved = max(0, known - served)

    # ------------------------------------------------------------------------------------------------------ writing

    def _derive(self, request: Request, keys: Keys, start: int, tally: Tally) -> None:
        """Derive what could not be read, and leave it to the others."""
        tally.derived = len(keys) - start
        while start < len(keys):
            piece = keys[start : start + PIECE_BLOCKS]
            start += self._write(request, piece, keys[start - 1] if start else None, tally)

    def _write(self, request: Request, piece: Keys, parent: bytes | None, tally: Tally) -> int:
        """Derive the head of `piece` that finds room, in the GPU tier or below; all of it, privately, if none does."""
        for tier in ("gpu", "cpu"):
            try:
                slots = request.reserve(piece, parent=parent, tier=tier, timeout_s=RESERVE_WAIT_S)
            except ResourceExhaustedError:
                continue
            with slots:
                if head := self._fill(slots, piece, tally):
                    return head
        for key in piece:
            self._fill_one(key, self._spare, tally)
        tally.private += len(piece)
        return len(piece)

    def _fill(self, slots: Reservation, piece: Keys, tally: Tally) -> int:
        """Derive and seal up to the first key that found no room: how many."""
        refused = np.flatnonzero(slots.outcomes == ReserveOutcome.NO_ROOM)
        head = int(refused[0]) if len(refused) else len(piece)
        ours = set(slots.new)
        for i in range(head):
            self._fill_one(piece[i], slots.array(i) if i in ours else self._spare, tally)
        outcomes = slots.seal([i for i in slots.new if i < head])
        sealed = int(np.count_nonzero(outcomes == SealOutcome.SEALED))
        tally.sealed += sealed
        tally.private += head - sealed
        return head

    def _fill_one(self, key: bytes, out: Any, tally: Tally) -> None:
        began = time.perf_counter()
        self._content.fill(key, out)
        tally.derive_s += time.perf_counter() - began
