"""One examination: a daemon's figures where one answers, and the host in any case."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hybridkv.service.doctor.findings import Finding, any_bad, ordered
from hybridkv.service.doctor.host import HostFacts, Taken, host_findings
from hybridkv.service.doctor.lanes import lane_findings, paging_findings
from hybridkv.service.doctor.period import Period, Stats
from hybridkv.service.doctor.rules import tier_findings


@dataclass(frozen=True, slots=True)
class Examination:
    """`seconds` is how long a time the daemon's figures are of; None: none answers, `why_no_daemon` says what was tried."""

    address: str
    seconds: float | None
    why_no_daemon: str
    facts: HostFacts
    findings: tuple[Finding, ...]

    @property
    def bad(self) -> bool:
        return any_bad(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "address": self.address,
            "daemon": self.seconds is not None,
            "why_no_daemon": self.why_no_daemon,
            "period_s": self.seconds,
            "host": asdict(self.facts),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def examine(
    address: str,
    config: Mapping[str, Any],
    facts: HostFacts,
    *,
    now: Stats | None = None,
    before: Stats | None = None,
    why_no_daemon: str = "",
) -> Examination:
    """Pure. `config` is the daemon's where it answers; `now` None: none does. `before`: an earlier reading of its stats."""
    if now is None:
        return Examination(address, None, why_no_daemon, facts, tuple(ordered(host_findings(facts, config))))
    period = Period(now, before)
    found = [
        *tier_findings(period, config),
        *lane_findings(period, config),
        *paging_findings(period, config),
        *host_findings(facts, config, _taken(now)),
    ]
    return Examination(address, period.seconds, "", facts, tuple(ordered(found)))


def _taken(stats: Stats) -> Taken:
    """What the daemon has in memory and on disk by now. Its own committed extents are at least what is used."""
    tiers = stats.get("tiers", {})
    memory = sum(row.get("used_bytes", 0) for name, row in tiers.items() if name != "disk")
    return Taken(memory, int((stats.get("disk_store") or {}).get("physical_bytes", 0)))
