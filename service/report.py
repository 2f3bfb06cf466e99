"""What the host tells about itself: figures for stats and metrics."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridkv.paging.figures import figures
from hybridkv.service.probes import ages, health, pressure
from hybridkv.service.tenants import tenants_stats
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import DiskBook, MappedBook
from hybridkv.tiers.extents import ExtentState, SlotUse
from hybridkv.tiers.states import BlockState, Outcome, Tier

if TYPE_CHECKING:
    from hybridkv.service.host_base import HostBase


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
            "memory_pressure": pressure(host),
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
            "loops": {pulse.name: pulse.figures for pulse in host.migrator.pulses},
            "setbacks": directory.state.setbacks.figures(host.clock.now()),
            "ages": ages(host),
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
