"""Health of the host, from live probes: what works, and why what does not."""

import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridkv.tiers.directory.holds import Lease, Reservation
from hybridkv.tiers.disk import DiskState
from hybridkv.tiers.loops import Pulse

if TYPE_CHECKING:
    from hybridkv.service.host_base import HostBase

Health = dict[str, tuple[bool, str]]
"""Component → (works, why not)."""

FAILING_AFTER = 3
"""Failures in a row from which on a loop counts as unwell."""

LOCKED_FOR_S = 5.0
"""How long a probe waits for the directory's lock. Nothing holds it for so long but what hangs."""

HAUNTED_FOR_S = 600.0
"""Slots that wait longer for a process that lapsed and lives are told of: somebody should look after it."""


def health(host: "HostBase") -> Health:
    """Every component of the host. Waits for the directory's lock at most `LOCKED_FOR_S`."""
    migrator, memory = host.migrator, host.memory
    lanes = [worker.pulse for worker in migrator.lanes.workers]
    found = {
        "loops": dead_or_stuck(migrator.pulses),
        "loop": trouble_of([migrator.pulse]),
        "lanes": trouble_of(lanes),
        "carver": trouble_of([migrator.carver.pulse]),
        "page_lock": _well("; ".join(memory.cpu.page_lock_failures)),
        "numa": _well(memory.cpu.numa_failure),
        "shared_memory": _shared_memory(host),
        "memory_pressure": _pressure_health(host),
        **_behind_the_lock(host),
    }
    if memory.store is not None:
        on = memory.store.state is DiskState.ON
        found["disk"] = _well("" if on else f"{memory.store.state.value}: {memory.store.reason}")
    return found


def _well(trouble: str) -> tuple[bool, str]:
    return not trouble, trouble


def dead_or_stuck(pulses: Iterable[Pulse]) -> tuple[bool, str]:
    """Are all of them alive, and is none in one round for too long?"""
    return _well("; ".join(filter(None, (pulse.trouble for pulse in pulses))))


def trouble_of(pulses: Iterable[Pulse]) -> tuple[bool, str]:
    """The same, and does none fail again and again?"""
    return _well("; ".join(filter(None, map(_trouble_of, pulses))))


def _trouble_of(pulse: Pulse) -> str:
    if trouble := pulse.trouble:
        return trouble
    if pulse.failures_in_a_row >= FAILING_AFTER:
        return f"{pulse.name} failed {pulse.failures_in_a_row} times in a row, last: {pulse.last_failure}"
    return ""


# ------------------------------------------------------------------------------------------------------ the directory


def _behind_the_lock(host: "HostBase") -> Health:
    """What the directory says; or that it says nothing."""
    lock = host.directory.lock
    if not lock.acquire(timeout=LOCKED_FOR_S):
        reason = f"the directory's lock has been held for {LOCKED_FOR_S:g} s"
        return {"directory": (False, reason)}
    try:
        return {"directory": (True, ""), "holds": _holds(ages(host))}
    finally:
        lock.release()


def ages(host: "HostBase") -> dict[str, float]:
    """Seconds since the oldest of each kind was begun: leases, reservations (but those of sequences, which end with them),
    and slots whose holder lapsed, or was a daemon's before this one, and may still touch them; 0.0 where there is none. Under
    the directory's lock."""
    now, ledger = host.clock.now(), host.directory.state.ledger
    leases, reservations = ledger.leases.values(), ledger.reservations.values()
    held: dict[str, Iterable[Lease | Reservation]] = {
        "lease_s": (lease for lease in leases if not lease.lapsed),
        "reservation_s": (hold for hold in reservations if not hold.lapsed and hold.expires_at < math.inf),
    }
    every: list[Lease | Reservation] = [*leases, *reservations]
    haunting_since = [hold.lapsed_at for hold in every if hold.haunts]
    if (frozen_at := host.memory.frozen.oldest_at) is not None:
        haunting_since.append(frozen_at)
    return {
        **{name: max((now - hold.begun_at for hold in holds), default=0.0) for name, holds in held.items()},
        "quarantined_s": max((now - since for since in haunting_since), default=0.0),
    }


def _holds(found: dict[str, float]) -> tuple[bool, str]:
    old_s = found["quarantined_s"]
    if old_s <= HAUNTED_FOR_S:
        return True, ""
    return False, f"slots have waited for {old_s:.0f} s for a worker whose hold lapsed and whose process lives"


# ------------------------------------------------------------------------------------------------------ memory


def pressure(host: "HostBase") -> dict[str, dict[str, Any]]:
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
             f"{figures['return_bytes']} are to go back" for pool, figures in pressure(host).items()
             if figures["under_pressure"]]  # fmt: skip
    return not short, "; ".join(short)


def _shared_memory(host: "HostBase") -> tuple[bool, str]:
    """Is there room for what the CPU tier may still grow by?"""
    path = Path(host.config.cpu.shm_dir)
    try:
        left = shutil.disk_usage(path).free
    except OSError as error:
        return False, f"cpu.shm_dir {path}: {error.strerror}"
    need = host.config.cpu.capacity_bytes - host.memory.cpu.region.committed_bytes()
    if left >= need:
        return True, ""
    return False, f"cpu.shm_dir {path}: {left} bytes are free, the CPU tier may still need {need}"
