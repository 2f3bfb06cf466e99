"""Rules about blocks and tiers: what a daemon's figures say about its config. Pure functions of a period and the config.

A rule speaks when its share is high and enough happened that the share means something; the marks are beside it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hybridkv.service.doctor.findings import Finding, Severity
from hybridkv.service.doctor.period import Period

Config = Mapping[str, Any]

ENOUGH = 100
"""Blocks or keys below which no share is judged."""

LOW_HIT_SHARE = 0.3
EVICTED_SHARE = 0.3
ON_THE_WAY_SHARE = 0.1
BACK_AND_FORTH_SHARE = 0.5
NO_ROOM_SHARE = 0.01
QUARANTINED_SHARE = 0.1
UNREAD_SHARE = 0.05


def tier_findings(period: Period, config: Config) -> list[Finding]:
    """All of this file."""
    found = [*_unwell(period)]
    for rule in (
        _loops,
        _setbacks,
        _slow_hits,
        _evictions,
        _on_the_way,
        _back_and_forth,
        _no_room,
        _quarantine,
        _unread_disk,
    ):
        found.extend(rule(period, config))
    return found


def _unwell(period: Period) -> Iterator[Finding]:
    advice = {
        "disk": ("free the disk, or give the tier another directory", ("disk.path", "disk.capacity_bytes")),
        "shared_memory": ("make the file system larger, or the tier smaller", ("cpu.capacity_bytes", "cpu.shm_dir")),
        "page_lock": ("raise the locked-memory limit (ulimit -l), or do without", ("cpu.page_lock",)),
        "memory_pressure": ("make the CPU tier smaller", ("cpu.capacity_bytes", "cpu.min_bytes")),
        "numa": ("name a node that is there", ("cpu.numa_node",)),
        "loops": ("restart the daemon: what hangs or is dead does not come back", ()),
        "event_loop": ("restart the daemon, with its log kept", ()),
        "directory": ("restart the daemon, with its log kept", ()),
        "holds": ("end the workers that hang; a process that is gone frees its slots at once", ("daemon.lease_s",)),
    }
    for part, state in period.now.get("health", {}).items():
        if not state["ok"]:
            text, keys = advice.get(part, ("read the daemon's log", ()))
            yield Finding(Severity.BAD, "health", part, str(state["reason"]), text, keys)


def _loops(period: Period, _config: Config) -> Iterator[Finding]:
    """What went on after an error is well, and somebody should read why."""
    for name, loop in period.now.get("loops", {}).items():
        failed = period.count("loops", name, "errors")
        if failed and name not in period.now.get("lanes", {}):  # lanes have a rule of their own
            yield Finding(
                Severity.ADVICE, "failing loop", name, f"it failed {failed:,.0f} times and went on, last: "
                f"{loop['last_failure'] or 'see the log'}", "read the daemon's log", (), {"errors": failed},
            )  # fmt: skip


def _setbacks(period: Period, _config: Config) -> Iterator[Finding]:
    given_up = period.now.get("setbacks", {}).get("given_up", 0)
    if given_up:
        yield Finding(
            Severity.BAD, "blocks that do not move", "lanes",
            f"{given_up:,} blocks could not be moved, whatever was tried; they are tried once a minute",
            "read the daemon's log; remove them, or restart", (), {"given_up": given_up},
        )  # fmt: skip


def _slow_hits(period: Period, _config: Config) -> Iterator[Finding]:
    hits = {tier: period.count("hits", tier) for tier in ("gpu", "cpu", "disk")}
    total = sum(hits.values())
    if total >= ENOUGH and hits["disk"] > LOW_HIT_SHARE * total:
        yield Finding(
            Severity.ADVICE, "frequent faults", "cpu",
            f"{hits['disk'] / total:.0%} of the keys that were found had to come from disk first",
            "make the CPU tier larger, or let blocks stay there longer; promote at fewer accesses",
            ("cpu.capacity_bytes", "cpu.idle_timeout_s", "migration.promote_at_accesses"),
            {"disk_hits": hits["disk"], "hits": total, "hits_per_s": total / period.seconds},
        )  # fmt: skip


def _evictions(period: Period, config: Config) -> Iterator[Finding]:
    sealed = period.count("counters", "sealed")
    for tier in ("gpu", "cpu", "disk"):
        evicted = period.moves(lambda m, t=tier: _is_of(m["from"], t) and m["outcome"] == "evicted")  # type: ignore[misc]
        if evicted.count < ENOUGH or evicted.count <= EVICTED_SHARE * sealed:
            continue
        keys = [f"{tier}.capacity_bytes", f"{tier}.policy"]
        advice = "make the tier larger, or choose a policy that keeps what is used again (rhq)"
        if tier != "disk" and not config.get("disk.path"):
            keys.insert(0, "disk.path")
            advice = "there is no disk tier that could take them: name its directory; or make this tier larger"
        yield Finding(
            Severity.ADVICE, "high eviction", tier,
            f"{evicted.count:,} blocks lost their last copy, {sealed:,.0f} were written in the same time", advice,
            tuple(keys),
            {"evicted": evicted.count, "sealed": sealed, "evicted_per_s": evicted.count / period.seconds},
        )  # fmt: skip


def _on_the_way(period: Period, _config: Config) -> Iterator[Finding]:
    """Room that is made while somebody waits for it, instead of ahead."""
    for tier in ("gpu", "cpu"):
        moves = period.moves(lambda m, t=tier: _is_of(m["from"], t))  # type: ignore[misc]
        waited = period.moves(lambda m, t=tier: _is_of(m["from"], t) and m["reason"] == "reclaim")  # type: ignore[misc]
        if waited.count >= ENOUGH and waited.count > ON_THE_WAY_SHARE * moves.count:
            yield Finding(
                Severity.ADVICE, "room made on the way", tier,
                f"{waited.count:,} of {moves.count:,} blocks left while somebody waited for their room",
                "lower the low watermark, so that room is ready before it is asked for",
                (f"{tier}.low_watermark", f"{tier}.high_watermark"),
                {"reclaimed": waited.count, "moved": moves.count},
            )  # fmt: skip


def _back_and_forth(period: Period, _config: Config) -> Iterator[Finding]:
    for upper, lower in (("gpu", "cpu"), ("cpu", "disk")):
        down = period.moves(lambda m, a=upper, b=lower: _is_of(m["from"], a) and _is_of(m["to"], b))  # type: ignore[misc]
        up = period.moves(lambda m, a=upper, b=lower: _is_of(m["from"], b) and _is_of(m["to"], a))  # type: ignore[misc]
        less, more = sorted((down.count, up.count))
        if less >= ENOUGH and less > BACK_AND_FORTH_SHARE * more:
            yield Finding(
                Severity.ADVICE, "back and forth", f"{upper}-{lower}",
                f"{down.count:,} blocks went down and {up.count:,} came up",
                "let moved blocks rest longer and idle ones stay longer, or make the upper tier larger",
                ("migration.cooldown_s", f"{upper}.idle_timeout_s", f"{upper}.capacity_bytes"),
                {"down": down.count, "up": up.count, "down_bytes": down.nbytes, "up_bytes": up.nbytes},
            )  # fmt: skip


def _no_room(period: Period, _config: Config) -> Iterator[Finding]:
    for name, verb in (("reserves_without_room", "reservations"), ("acquires_without_room", "acquires")):
        refused = period.count("counters", name)
        if refused >= 1 and refused > NO_ROOM_SHARE * max(1.0, period.count("counters", "sealed")):
            yield Finding(
                Severity.BAD, "no room", verb, f"{refused:,.0f} {verb} found no room and nothing that could go",
                "make the tier larger, or hold fewer blocks at a time: leases and open requests protect theirs",
                ("cpu.capacity_bytes", "gpu.capacity_bytes", "daemon.lease_s"), {name: refused},
            )  # fmt: skip


def _quarantine(period: Period, _config: Config) -> Iterator[Finding]:
    for name, tier in period.tiers.items():
        share = tier.get("quarantined_bytes", 0) / max(1, tier.get("capacity_bytes", 0))
        if share > QUARANTINED_SHARE:
            yield Finding(
                Severity.BAD, "quarantine", name,
                f"{share:.0%} of the tier waits for workers whose holds lapsed and who may still touch it",
                "end the workers that hang; a process that is gone frees its slots at once",
                ("daemon.lease_s", "daemon.reservation_s"), {"quarantined_bytes": tier["quarantined_bytes"]},
            )  # fmt: skip


def _unread_disk(period: Period, _config: Config) -> Iterator[Finding]:
    put, read = period.count("disk_store", "blocks_put"), period.count("disk_store", "blocks_read")
    if put >= 10 * ENOUGH and read < UNREAD_SHARE * put:
        yield Finding(
            Severity.ADVICE, "unread disk", "disk", f"{put:,.0f} blocks were written and {read:,.0f} read",
            "write only what was used more than once", ("disk.admit_min_accesses",),
            {"blocks_put": put, "blocks_read": read, "bytes_put": period.count("disk_store", "bytes_put")},
        )  # fmt: skip


def _is_of(pool: object, tier: str) -> bool:
    """Whether a pool's name is one of the tier's: gpu0 is of gpu."""
    return isinstance(pool, str) and pool.rstrip("0123456789") == tier
