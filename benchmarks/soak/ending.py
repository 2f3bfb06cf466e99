"""The end of a soak: nothing is held, nothing moves, everything that is found can be read, and nothing is left behind."""

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hybridkv
from hybridkv.benchmarks.content import Content
from hybridkv.benchmarks.demo_setup import Places
from hybridkv.benchmarks.soak.crew import SoakError
from hybridkv.benchmarks.soak.run import Soak
from hybridkv.benchmarks.soak.universe import BLOCK_BYTES, CHAINS, keys_of, space_of
from hybridkv.service.client import KV
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome

QUIET_S = 20.0
_POLL_S = 0.1
_READ_S = 10.0


@dataclass(slots=True)
class Ending:
    """What was left when all was over. `held`: every hold by its kind, which must be none. `found`, `read`, `phantom`, `wrong`:
    blocks that a lookup found, that could be read then, that could not although they are still found, that have other bytes."""

    quiet_s: float = 0.0
    held: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    tracebacks: int = 0


def holds(stats: dict[str, Any]) -> dict[str, int]:
    """Everything that somebody holds or that is under way, by its kind."""
    found = {
        name: stats[name] for name in ("sessions", "leases", "reservations", "requests", "lapsed_holds", "transfers")
    }
    found |= {"waiting_calls": stats["waiting_calls"], "sequences": stats["paging"]["sequences"]["open"]}
    for pool, figures in stats["tiers"].items():
        found[f"leased blocks, {pool}"] = figures["leased_blocks"]
        for use in ("reserved", "incoming", "quarantined"):
            if f"{use}_bytes" in figures:
                found[f"{use} bytes, {pool}"] = figures[f"{use}_bytes"]
    return found


def end(soak: Soak) -> Ending:
    """End a soak that ran, and look at what is left. Raises SoakError when a worker or the daemon does not end well."""
    ending = Ending()
    soak.end_crew()
    began = time.monotonic()
    ending.held = holds(soak.admin.stats())
    while any(ending.held.values()) and time.monotonic() < began + QUIET_S:
        time.sleep(_POLL_S)
        ending.held = holds(soak.admin.stats())
    ending.quiet_s = time.monotonic() - began
    ending.violations = soak.admin.check()
    for space in range(len(BLOCK_BYTES)):
        with hybridkv.connect(soak.places.address, space_of(space), timeout_s=_READ_S) as kv:
            _read_all(kv, space, ending.counts)
    ending.violations += soak.admin.check()
    soak.bank()
    if code := soak.daemon.stop():
        raise SoakError(f"the daemon stopped with {code}:\n{soak.daemon.said()}")
    ending.files = left_behind(soak.places)
    ending.processes = still_running(soak.places)
    ending.tracebacks = (soak.places.work / "daemon.log").read_text(errors="replace").count("Traceback (most recent")
    return ending


def _read_all(kv: KV, space: int, counts: Counter[str]) -> None:
    content = Content(kv.space.layout.block_bytes)
    for number in range(CHAINS[space]):
        keys = keys_of(space, number)
        found = kv.lookup(keys).states == Outcome.HIT
        wanted = keys.at(np.flatnonzero(found))
        if not len(wanted):
            continue
        out = np.empty((len(wanted), content.block_bytes), np.uint8)
        hits = kv.read(wanted, out, timeout_s=_READ_S) == Outcome.HIT
        counts["found"] += len(wanted)
        counts["read"] += int(hits.sum())
        counts["wrong"] += sum(not content.verify(wanted[i], out[i]) for i in np.flatnonzero(hits).tolist())
        counts["phantom"] += _phantoms(kv, wanted.at(np.flatnonzero(~hits)))


def _phantoms(kv: KV, keys: Keys) -> int:
    """Of blocks that were found and could not be read: those that are found again and cannot be read again. The others made
    room in between."""
    if not len(keys):
        return 0
    again = kv.lookup(keys).states == Outcome.HIT
    out = np.empty((len(keys), kv.space.layout.block_bytes), np.uint8)
    return int(np.count_nonzero(again & (kv.read(keys, out, timeout_s=_READ_S) != Outcome.HIT)))


def left_behind(places: Places) -> list[str]:
    """Sockets, locks and regions that nobody uses any more. The log, the tallies and the disk tier stay, and so may what the
    last daemon keeps of its CPU tier for the next one: one folder."""
    sockets = [path for path in places.work.rglob("*") if path.is_socket() or path.suffix == ".lock"]
    regions = [path for path in places.shm.rglob("gpu*") if path.is_file()]
    return [str(path) for path in (*sockets, *regions, *sorted(places.shm.iterdir())[1:])]


def still_running(places: Places) -> list[str]:
    """Processes whose command line names the soak's folders."""
    running = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(places.work) in command:
            running.append(command)
    return running
