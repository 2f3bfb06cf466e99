"""What the host tells about itself: figures for stats and metrics, and health that says why."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridkv.migration.lanes import LaneWorker
from hybridkv.paging.figures import figures
from hybridkv.service.tenants import tenants_stats
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.disk import DiskState
from hybridkv.tiers.extents import ExtentState, SlotUse
from hybridkv.tiers.states import BlockState, Outcome, Tier

if TYPE_CHECKING:
    from hybridkv.service.host_base import HostBase

STUCK_AFTER_S = 30.0
FAILING_AFTER = 3
"""Failures in a row from which on a lane counts as unwell."""


def stats(host: "HostBase") -> dict[str, Any]:
    """The tree behind `Admin.Stats`, `hybridkv stats` and the metrics."""
    directory, demand = host.directory, host.migrator.demand
    with directory.lock:
        ledger = directory.state.ledger
        outcomes = {
            outcome.name.lower(): demand.acquires.outcomes[outcome]
            for outcome in (Outcome.HIT, Outcome.MISS, Outcome.RECOMPUTE)
        }
        return {
            "version": host.version,
            "epoch": host.epoch,
            "uptime_s": host.clock.now() - host.started_at,
            "config_version": host.config_version,
            "policies": {
                str(book.id): getattr(host.config, book.id.tier.name.lower()).policy for book in directory.books
            },
            "blocks": int(np.count_nonzero(directory.blocks.state == BlockState.SEALED)),
            "orphans": sum(len(rows) for rows in directory.blocks.orphans.values()),
            "namespaces": len(directory.state.spaces),
            "tiers": {str(book.id): _tier(host, book) for book in directory.books},
            "tenants": tenants_stats(host),
            "hits": {tier.name.lower(): demand.acquires.hits[tier] for tier in Tier},
            "outcomes": outcomes,
            "recompute": asdict(demand.acquires.advice.figures),
            "request_classes": {str(n): asdict(c) for n, c in sorted(directory.accesses.hinting.classes.items())},
            "chain_prefetch_reach": {
                directory.state.spaces[space].fingerprint.hex()[:16]: blocks
                for space, blocks in directory.state.speculation.reaches().items()
            },
            "moves": host.migrator.moves.rows(),
            "moves_remembered": len(host.migrator.moves.history),
            "memory_pressure": _pressure(host),
            "lanes": host.migrator.lanes.rows(),
            "transfers": len(directory.state.transfers),
            "sessions": host.session_count,
            "leases": sum(not lease.lapsed for lease in ledger.leases.values()),
            "reservations": sum(not hold.lapsed for hold in ledger.reservations.values()),
            "lapsed_holds": sum(lease.lapsed for lease in ledger.leases.values())
            + sum(hold.lapsed for hold in ledger.reservations.values()),
            "requests": sum(len(session.requests) for session in ledger.sessions.values()),
            "waiting_calls": demand.waiting,
            "paging": figures(host.paging, directory),
            "counters": dict(sorted(directory.state.counters.items())),
            "watch": host.feed.figures,
            "loop_errors": host.migrator.loop_errors,
            "disk_store": _disk_store(host),
            "takeover": _takeover(host),
            "page_lock_failures": list(host.memory.cpu.page_lock_failures),
            "health": {name: {"ok": ok, "reason": reason} for name, (ok, reason) in health(host).items()},
        }


def _tier(host: "HostBase", book: MappedBook | DiskBook) -> dict[str, Any]:
    blocks = host.directory.blocks
    here = int(np.count_nonzero(blocks.slot[book.index] != NO_SLOT))
    figures: dict[str, Any] = {
        "capacity_bytes": book.capacity_bytes,
        "used_bytes": book.used_bytes,
        "free_bytes": max(0, book.capacity_bytes - book.used_bytes),
        "blocks": here,
        "leased_blocks": int(np.count_nonzero(blocks.leases[book.index])),
    }
    if isinstance(book, MappedBook):
        by_use = {
            use.name.lower() + "_bytes": book.table.bytes_by_use[use] for use in SlotUse if use is not SlotUse.FREE
        }
        figures |= by_use | {
            "remainder_bytes": book.table.remainder_bytes,
            "free_bytes": book.table.free_bytes,
            "returned_bytes": len(book.table.extents_in(ExtentState.RETURNED)) * book.table.extent_bytes,
            "excess_bytes": book.table.excess_bytes,
        }
    return figures


def _pressure(host: "HostBase") -> dict[str, dict[str, Any]]:
    """Per mapped pool: the last judgement of the memory it lies in; without a mark (1.0) nothing is read."""
    found = {}
    for pool, signal in sorted(host.migrator.relief.signals.items()):
        tightest = signal.tightest
        found[str(host.directory.books[pool].id)] = {
            "under_pressure": signal.under_pressure,
            "return_bytes": signal.return_bytes,
            "source": tightest.source if tightest else None,
            "used_bytes": tightest.used_bytes if tightest else None,
            "limit_bytes": tightest.limit_bytes if tightest else None,
        }
    return found


def _pressure_health(host: "HostBase") -> tuple[bool, str]:
    short = [f"{pool}: {figures['source']}: {figures['used_bytes']} of {figures['limit_bytes']} bytes are used, "
             f"{figures['return_bytes']} are to go back" for pool, figures in _pressure(host).items()
             if figures["under_pressure"]]  # fmt: skip
    return not short, "; ".join(short)


def _takeover(host: "HostBase") -> dict[str, Any]:
    """What was taken over at the start, and what of it is still to be verified or still somebody's of before."""
    return {
        **asdict(host.memory.taken),
        "unverified_blocks": host.directory.state.unverified.count,
        "frozen_slots_now": host.memory.frozen.slots_count,
        "frozen_sessions_now": host.memory.frozen.sessions_count,
    }


def _disk_store(host: "HostBase") -> dict[str, Any] | None:
    if host.memory.store is None:
        return None
    usage = host.memory.store.usage()
    counters = {name: getattr(usage.counters, name) for name in usage.counters.__dataclass_fields__}
    return {
        "state": usage.state.value,
        "reason": usage.reason,
        "physical_bytes": usage.physical_bytes,
        "capacity_bytes": usage.capacity_bytes,
        "live_bytes": usage.live_bytes,
        "live_blocks": usage.live_blocks,
        "segments": usage.segments,
        "aside_bytes": usage.aside_bytes,
        **counters,
    }


def health(host: "HostBase") -> dict[str, tuple[bool, str]]:
    """Component → (works, why not), from live probes."""
    migrator, memory = host.migrator, host.memory
    found = {"loop": _loop_health(host)}
    unwell = [_lane_trouble(worker) for worker in migrator.lanes.workers]
    found["lanes"] = (not any(unwell), "; ".join(filter(None, unwell)))
    failures = memory.cpu.page_lock_failures
    found["page_lock"] = (not failures, "; ".join(failures))
    found["numa"] = (not memory.cpu.numa_failure, memory.cpu.numa_failure)
    found["shared_memory"] = _shared_memory_health(host)
    found["memory_pressure"] = _pressure_health(host)
    if memory.store is not None:
        on = memory.store.state is DiskState.ON
        found["disk"] = (on, "" if on else f"{memory.store.state.value}: {memory.store.reason}")
    return found


def _lane_trouble(worker: LaneWorker) -> str:
    """What is wrong with a lane, or ''."""
    if not worker.alive:
        return f"{worker.name} is dead"
    if worker.failures_in_a_row >= FAILING_AFTER:
        return f"{worker.name} failed {worker.failures_in_a_row} times in a row, last: {worker.last_failure}"
    return ""


def _loop_health(host: "HostBase") -> tuple[bool, str]:
    late_s = host.clock.now() - host.migrator.last_tick_at
    late = late_s > STUCK_AFTER_S + host.migrator.spec.interval_s
    return not late, f"the background pass is {late_s:.0f} s late" if late else ""


def _shared_memory_health(host: "HostBase") -> tuple[bool, str]:
    """Is there room for what the CPU tier may still grow by?"""
    path = Path(host.config.cpu.shm_dir)
    left = shutil.disk_usage(path).free
    need = host.config.cpu.capacity_bytes - host.memory.cpu.region.committed_bytes()
    if left >= need:
        return True, ""
    return False, f"cpu.shm_dir {path}: {left} bytes are free, the CPU tier may still need {need}"
