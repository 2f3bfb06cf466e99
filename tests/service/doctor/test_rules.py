"""The doctor's rules, each with figures that call for it and figures that do not; every key it names is one there is."""

from collections.abc import Callable
from typing import Any

import pytest

from hybridkv.service.config import Config, config_values
from hybridkv.service.doctor.findings import Finding, Severity, any_bad, ordered
from hybridkv.service.doctor.lanes import lane_findings, paging_findings
from hybridkv.service.doctor.period import Period
from hybridkv.service.doctor.rules import tier_findings

CONFIG = config_values(Config())
Rules = Callable[[Period, dict[str, Any]], list[Finding]]


def move(a: str, b: str | None, count: int, reason: str = "watermark", outcome: str = "done") -> dict[str, Any]:
    return {"from": a, "to": b, "reason": reason, "outcome": outcome, "count": count, "bytes": count * 4096}


WELL: dict[str, Any] = {
    "epoch": 1,
    "uptime_s": 100.0,
    "hits": {"gpu": 500, "cpu": 400, "disk": 100},
    "counters": {"sealed": 10_000},
    "moves": [move("gpu0", "cpu", 1000), move("cpu", None, 150, outcome="evicted")],
    "tiers": {"cpu": {"capacity_bytes": 1 << 30, "quarantined_bytes": 0}},
    "lanes": {"gpu0->cpu": {"queued": 10, "bytes_per_s": 1e9, "errors": 0}},
    "health": {"disk": {"ok": True, "reason": ""}},
    "disk_store": {"blocks_put": 2000, "blocks_read": 900},
    "paging": {
        "minor_faults": 900, "major_faults": 100, "tlb": {"hits": 99_000, "misses": 1000, "invalidations": 20},
        "pools": {"gpu0": {"written_bytes": 100, "waste_bytes": 5, "sticky_bytes": 10, "sticky_limit_bytes": 100}},
        "prefetched_blocks": 500, "prefetches_cancelled": 10,
    },
}  # fmt: skip

ILL: list[tuple[Rules, str, str, Severity, dict[str, Any]]] = [
    (tier_findings, "health", "disk", Severity.BAD, {"health": {"disk": {"ok": False, "reason": "no space left"}}}),
    (tier_findings, "failing loop", "migrator", Severity.ADVICE,
     {"loops": {"migrator": {"errors": 2, "last_failure": "KeyError: 7"}, "gpu0->cpu": {"errors": 1}}}),
    (tier_findings, "blocks that do not move", "lanes", Severity.BAD, {"setbacks": {"given_up": 1}}),
    (tier_findings, "frequent faults", "cpu", Severity.ADVICE, {"hits": {"gpu": 0, "cpu": 100, "disk": 100}}),
    (tier_findings, "high eviction", "cpu", Severity.ADVICE,
     {"moves": [move("cpu", None, 4000, outcome="evicted")]}),
    (tier_findings, "high eviction", "gpu", Severity.ADVICE,
     {"moves": [move("gpu1", None, 4000, outcome="evicted")]}),
    (tier_findings, "room made on the way", "gpu", Severity.ADVICE,
     {"moves": [move("gpu0", "cpu", 500), move("gpu0", "cpu", 300, "reclaim")]}),
    (tier_findings, "back and forth", "cpu-disk", Severity.ADVICE,
     {"moves": [move("cpu", "disk", 500), move("disk", "cpu", 400)]}),
    (tier_findings, "no room", "reservations", Severity.BAD,
     {"counters": {"sealed": 700, "reserves_without_room": 8}}),
    (tier_findings, "quarantine", "cpu", Severity.BAD,
     {"tiers": {"cpu": {"capacity_bytes": 100, "quarantined_bytes": 20}}}),
    (tier_findings, "unread disk", "disk", Severity.ADVICE, {"disk_store": {"blocks_put": 9000, "blocks_read": 3}}),
    (lane_findings, "slow migration", "cpu->disk", Severity.ADVICE,
     {"lanes": {"cpu->disk": {"queued": 1000, "bytes_per_s": 1e6, "errors": 0}}}),
    (lane_findings, "failing lane", "cpu->disk", Severity.BAD,
     {"lanes": {"cpu->disk": {"queued": 0, "bytes_per_s": 1e9, "errors": 3}}}),
    (paging_findings, "frequent faults", "pages", Severity.ADVICE,
     {"paging": {"minor_faults": 100, "major_faults": 900, "major_fault_s": 9.0}}),
    (paging_findings, "no room", "pages", Severity.BAD, {"paging": {"faults_without_room": 1}}),
    (paging_findings, "low TLB hit rate", "pages", Severity.ADVICE, {"paging": {"tlb": {"hits": 500, "misses": 900}}}),
    (paging_findings, "internal waste", "gpu0", Severity.ADVICE,
     {"paging": {"pools": {"gpu0": {"written_bytes": 100, "waste_bytes": 40}}}}),
    (paging_findings, "sticky pages", "gpu0", Severity.ADVICE,
     {"paging": {"pools": {"gpu0": {"sticky_bytes": 90, "sticky_limit_bytes": 100}}}}),
    (paging_findings, "cancelled prefetch", "pages", Severity.ADVICE,
     {"paging": {"prefetched_blocks": 200, "prefetches_cancelled": 150}}),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "rule", "where", "severity", "change"), ILL, ids=lambda value: str(value)[:24])
def test_a_rule_speaks_where_it_should(
    rules: Rules, rule: str, where: str, severity: Severity, change: dict[str, Any]
) -> None:
    found = rules(Period(WELL | change), CONFIG)
    assert [(finding.rule, finding.where, finding.severity) for finding in found] == [(rule, where, severity)]
    (finding,) = found
    assert finding.advice
    assert set(finding.keys) <= set(CONFIG)


@pytest.mark.parametrize("stats", [WELL, {}, {"paging": {}}, {"epoch": 1, "uptime_s": 0.0, "paging": None}])
def test_nothing_is_said_where_nothing_is_wrong(stats: dict[str, Any]) -> None:
    for rules in (tier_findings, lane_findings, paging_findings):
        assert rules(Period(stats), CONFIG) == []


def test_evictions_without_a_disk_tier_ask_for_one() -> None:
    ill = WELL | {"moves": [move("cpu", None, 4000, outcome="evicted")]}
    assert tier_findings(Period(ill), CONFIG)[0].keys[0] == "disk.path"
    assert "disk.path" not in tier_findings(Period(ill), CONFIG | {"disk.path": "/d"})[0].keys


def test_a_lane_at_its_cap_is_told_from_one_that_is_slow() -> None:
    lanes = {"cpu->disk": {"queued": 10**6, "bytes_per_s": 0.95e9, "errors": 0}}
    (capped,) = lane_findings(Period(WELL | {"lanes": lanes}), CONFIG)
    assert capped.keys == ("migration.background_bytes_per_s",)
    (slow,) = lane_findings(Period(WELL | {"lanes": lanes}), CONFIG | {"migration.background_bytes_per_s": 0})
    assert "migration.batch_bytes" in slow.keys


def test_a_period_is_what_happened_between_two_readings() -> None:
    before = WELL | {"hits": {"gpu": 0, "cpu": 0, "disk": 900}}
    now = WELL | {"uptime_s": 110.0, "hits": {"gpu": 0, "cpu": 900, "disk": 905}}
    assert Period(now, before).seconds == pytest.approx(10.0)
    assert tier_findings(Period(now, before), CONFIG) == []
    assert [finding.rule for finding in tier_findings(Period(now), CONFIG)] == ["frequent faults"]
    assert Period(now, before | {"epoch": 7}).seconds == pytest.approx(110.0)
    assert Period(now, before).moves(lambda _: True).count == 0


def test_what_is_bad_comes_first() -> None:
    advice = Finding(Severity.ADVICE, "a", "", "", "")
    bad = Finding(Severity.BAD, "b", "", "", "")
    assert ordered([advice, bad, advice]) == [bad, advice, advice]
    assert any_bad([advice, bad])
    assert not any_bad([advice])
