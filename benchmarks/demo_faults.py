"""The demo's second part: a worker is killed in the middle of a write, then the daemon, and nothing is lost or leaked."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import hybridkv
from hybridkv.benchmarks.demo_crew import Crew
from hybridkv.benchmarks.demo_daemon import DemoDaemon
from hybridkv.benchmarks.demo_space import demo_space
from hybridkv.benchmarks.workload import Request
from hybridkv.service.admin_client import AdminClient
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.keys import Keys, chain
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, Tier

TORN_BLOCKS = 16
CALL_S = 30.0
SETTLE_S = 30.0
HIGH_WATERMARK = 0.95
"""The lowest of the tiers' defaults, which the demo's daemon runs with."""

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must be so after a fault, whether it was, and the figures."""

    what: str
    ok: bool
    detail: str


def kill_worker(crew: Crew, address: str) -> list[Finding]:
    """SIGKILL the crew's first worker while it holds reserved slots, half of each filled."""
    torn = chain(demo_space(), range(1 << 31, (1 << 31) + TORN_BLOCKS * demo_space().layout.block_tokens))
    victim = crew.workers[0]
    reserved = victim.ask("write_half", [key.hex() for key in torn])["reserved"]
    with AdminClient(address) as admin:
        before = admin.stats()
        crew.kill(victim)
        began = time.monotonic()
        settled = _until(admin, lambda stats: stats["sessions"] < before["sessions"] and not leaks(stats))
        took_s = time.monotonic() - began
        findings = [
            Finding("the worker died holding slots", before["reservations"] > 0, f"{reserved} blocks half written"),
            Finding("its slots are free again", settled is not None, f"after {took_s:.1f} s"),
            _lawful(admin, "the daemon's accounting holds"),
        ]
    with hybridkv.connect(address, demo_space(), timeout_s=CALL_S) as kv:
        findings.append(_unfindable(kv.lookup(torn).states.tolist()))
    return findings


def _unfindable(states: Iterable[int]) -> Finding:
    there = sum(state != Outcome.MISS for state in states)
    return Finding("half-written blocks are a MISS", there == 0, f"{there} of {TORN_BLOCKS} can be found")


def kill_daemon(crew: Crew, daemon: DemoDaemon, requests: Sequence[Request]) -> list[Finding]:
    """SIGKILL the daemon, start it on the same disk, and let the surviving workers read what lay there."""
    address = daemon.places.address
    space = demo_space()
    keys = _keys_of(requests, space)
    with AdminClient(address) as admin:
        _until(admin, _quiet)
    with hybridkv.connect(address, space, timeout_s=CALL_S) as kv:
        found = kv.lookup(keys)
        daemon.kill()  # at once, while what was found is still so
    there = (found.states == Outcome.HIT) & (found.tiers == Tier.DISK)
    on_disk = [key for key, lies in zip(keys, there.tolist(), strict=True) if lies]
    ready_s = daemon.start()
    with AdminClient(address) as admin:
        kept = _kept(address, on_disk)
        answers = _read_by(crew, kept)
        crew.end()
        settled = _until(admin, lambda stats: stats["sessions"] == 0 and not leaks(stats))
        findings = _served(len(on_disk), len(kept), answers, ready_s)
        left = "" if settled is not None else ", ".join(leaks(admin.stats()))
        findings.append(Finding("no lease, reservation or quarantined slot is left", not left, left or "none left"))
        findings.append(_lawful(admin, "the restarted daemon's accounting holds"))
    return findings


def stop_daemon(daemon: DemoDaemon) -> list[Finding]:
    """SIGTERM: it ends by itself and leaves no shared memory behind, not even that of the one that was killed."""
    code = daemon.stop()
    left = [path.name for path in daemon.places.shm.rglob("*") if path.is_file() and path.stat().st_size]
    return [
        Finding("the daemon stops when asked", code == 0, f"exit code {code}"),
        Finding("no shared memory is left behind", not left, ", ".join(left) or "none left"),
    ]


def leaks(stats: dict[str, Any]) -> list[str]:
    """What is still held, by name and figure."""
    held = {name: stats[name] for name in ("leases", "reservations", "lapsed_holds", "requests", "transfers")}
    for name, tier in stats["tiers"].items():
        held |= {f"{name} {use}": tier.get(use, 0) for use in ("reserved_bytes", "incoming_bytes", "quarantined_bytes")}
    return [f"{name} {figure}" for name, figure in held.items() if figure]


def _served(listed: int, kept: int, answers: list[dict[str, int]], ready_s: float) -> list[Finding]:
    names = ("read", "pending", "wrong", "epoch_changes")
    read, pending, wrong, changes = (sum(answer[name] for answer in answers) for name in names)
    survived = f"{kept} of the {listed} that lay only there, {ready_s:.1f} s after the start"
    return [
        Finding("the blocks on disk survive", kept == listed > 0, survived),
        Finding("all of them are served", read == kept, f"{read} of {kept}, {pending} still pending"),
        Finding("every byte of them is right", wrong == 0, f"{wrong} blocks differ"),
        Finding("workers found the new daemon", changes == len(answers), f"{changes} of {len(answers)} re-attached"),
    ]


def _kept(address: str, keys: list[bytes]) -> list[bytes]:
    """Those of `keys` that the daemon knows."""
    with hybridkv.connect(address, demo_space(), timeout_s=CALL_S) as kv:
        found = kv.lookup(Keys.of(keys, kv.space.key_bytes))
    return [key for key, state in zip(keys, found.states.tolist(), strict=True) if state == Outcome.HIT]


def _read_by(crew: Crew, keys: list[bytes]) -> list[dict[str, int]]:
    """The workers read the blocks at the same time, each its share."""
    shares = [[key.hex() for key in keys[i :: len(crew.workers)]] for i in range(len(crew.workers))]
    for worker, share in zip(crew.workers, shares, strict=True):
        worker.tell("read", share)
    return [worker.answer() for worker in crew.workers]


def _keys_of(requests: Sequence[Request], space: Namespace) -> Keys:
    """Every block of the workload, once."""
    chains = (chain(space, request.tokens(space.layout.block_tokens)) for request in requests)
    return Keys.of(dict.fromkeys(key for found in chains for key in found))


def _quiet(stats: dict[str, Any]) -> bool:
    """Nothing moves and no tier is above its watermark: what lies on disk now will lie there in a moment."""
    moving = stats["transfers"] or any(lane["queued"] for lane in stats["lanes"].values())
    return not moving and all(t["used_bytes"] <= HIGH_WATERMARK * t["capacity_bytes"] for t in stats["tiers"].values())


def _until(admin: AdminClient, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """Figures for which `wanted` holds; None when it took too long."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        stats = admin.stats()
        if wanted(stats):
            return stats
        time.sleep(_POLL_S)
    return None


def _lawful(admin: AdminClient, what: str) -> Finding:
    try:
        broken = admin.check()
    except HybridKVError as error:
        return Finding(what, False, str(error))
    return Finding(what, not broken, "; ".join(broken[:3]) or "check is clean")
