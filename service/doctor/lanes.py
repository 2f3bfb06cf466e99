"""Rules about lanes and pages: slow migration, page faults, translations. Pure functions of a period and the config."""

from collections.abc import Iterator, Mapping
from typing import Any

from hybridkv.service.doctor.findings import Finding, Severity
from hybridkv.service.doctor.period import Period

Config = Mapping[str, Any]

QUEUE_S = 1.0
ENOUGH_FAULTS = 100
MAJOR_SHARE = 0.2
TLB_HIT_SHARE = 0.9
WASTE_SHARE = 0.2
STICKY_SHARE = 0.8
CANCELLED_PREFETCH_SHARE = 0.5


def lane_findings(period: Period, config: Config) -> list[Finding]:
    """Slow and failing lanes."""
    return [*_slow_lanes(period, config), *_failing_lanes(period)]


def paging_findings(period: Period, _config: Config) -> list[Finding]:
    """Faults, translations and pages of sequences; none where no sequence was opened."""
    if not isinstance(period.now.get("paging"), Mapping):
        return []
    return [*_faults(period), *_no_pages(period), *_tlb(period), *_waste(period), *_sticky(period), *_prefetch(period)]


def _slow_lanes(period: Period, config: Config) -> Iterator[Finding]:
    moved = period.moves(lambda move: move["to"] not in (None, "", "none"))
    mean_bytes = moved.nbytes / moved.count if moved.count else 0.0
    for name, lane in period.now.get("lanes", {}).items():
        speed = lane.get("bytes_per_s") or 0.0
        queued = lane.get("queued", 0)
        wait_s = queued * mean_bytes / speed if speed else 0.0
        if wait_s <= QUEUE_S:
            continue
        cap = config.get("migration.background_bytes_per_s") or 0
        capped = bool(cap) and speed >= 0.8 * cap
        yield Finding(
            Severity.ADVICE, "slow migration", name,
            f"{queued:,} transfers wait, {wait_s:.1f} s of work at {speed / 1e6:,.0f} MB/s"
            + (": the cap on background copies" if capped else ""),
            "raise the cap on background copies" if capped else "larger batches and more bytes in flight; fewer moves by "
            "wider watermarks or a longer idle timeout",
            ("migration.background_bytes_per_s",) if capped else (
                "migration.batch_bytes", "migration.inflight_bytes", "cpu.low_watermark", "cpu.idle_timeout_s"),
            {"queued": queued, "bytes_per_s": speed, "wait_s": wait_s},
        )  # fmt: skip


def _failing_lanes(period: Period) -> Iterator[Finding]:
    for name in period.now.get("lanes", {}):
        errors = period.count("lanes", name, "errors")
        if errors > 0:
            yield Finding(
                Severity.BAD, "failing lane", name, f"{errors:,.0f} transfers failed",
                "read the daemon's log: it names the first failure of each kind", (), {"errors": errors},
            )  # fmt: skip


def _faults(period: Period) -> Iterator[Finding]:
    major, minor = period.count("paging", "major_faults"), period.count("paging", "minor_faults")
    if major >= ENOUGH_FAULTS and major > MAJOR_SHARE * (major + minor):
        waited_s = period.count("paging", "major_fault_s")
        yield Finding(
            Severity.ADVICE, "frequent faults", "pages",
            f"{major:,.0f} of {major + minor:,.0f} page faults waited for a copy, {waited_s / major * 1e3:.1f} ms each",
            "make the pool larger, let sequences idle longer before they leave it, or tell the window ahead of decode",
            ("gpu.capacity_bytes", "gpu.idle_timeout_s", "cpu.capacity_bytes"),
            {"major_faults": major, "minor_faults": minor, "faults_per_s": (major + minor) / period.seconds},
        )  # fmt: skip


def _no_pages(period: Period) -> Iterator[Finding]:
    refused = period.count("paging", "faults_without_room")
    if refused > 0:
        yield Finding(
            Severity.BAD, "no room", "pages", f"{refused:,.0f} page faults found no room and nothing that could go",
            "suspend or close sequences, unpin sticky pages, or make the pool larger",
            ("gpu.capacity_bytes", "cpu.capacity_bytes"), {"faults_without_room": refused},
        )  # fmt: skip


def _tlb(period: Period) -> Iterator[Finding]:
    hits, misses = period.count("paging", "tlb", "hits"), period.count("paging", "tlb", "misses")
    if hits + misses >= 10 * ENOUGH_FAULTS and hits < TLB_HIT_SHARE * (hits + misses):
        gone = period.count("paging", "tlb", "invalidations")
        moved = gone > misses / 2
        yield Finding(
            Severity.ADVICE, "low TLB hit rate", "pages",
            f"{hits / (hits + misses):.0%} of translations were known to the client"
            + (f"; {gone:,.0f} were lost because their blocks had moved" if moved else ""),
            "blocks move under their readers: let them stay longer" if moved
            else "larger pages need fewer translations (adjust_page_size)",
            ("gpu.idle_timeout_s", "gpu.capacity_bytes") if moved else ("paging.page_blocks",),
            {"hits": hits, "misses": misses, "invalidations": gone},
        )  # fmt: skip


def _waste(period: Period) -> Iterator[Finding]:
    for name, pool in _pools(period):
        written, waste = pool.get("written_bytes", 0), pool.get("waste_bytes", 0)
        if written and waste > WASTE_SHARE * written:
            yield Finding(
                Severity.ADVICE, "internal waste", name,
                f"{waste / written:.0%} of the bytes in pages that sequences write hold no token",
                "smaller pages (adjust_page_size; `hybridkv bench paging` shows the waste of each size)",
                ("paging.page_blocks",), {"written_bytes": written, "waste_bytes": waste},
            )  # fmt: skip


def _sticky(period: Period) -> Iterator[Finding]:
    for name, pool in _pools(period):
        sticky, limit = pool.get("sticky_bytes", 0), pool.get("sticky_limit_bytes", 0)
        if limit and sticky > STICKY_SHARE * limit:
            yield Finding(
                Severity.ADVICE, "sticky pages", name, f"sticky pages take {sticky / limit:.0%} of what they may",
                "make fewer pages sticky: what is sticky is never evicted", ("paging.sticky_limit",),
                {"sticky_bytes": sticky, "sticky_limit_bytes": limit},
            )  # fmt: skip


def _prefetch(period: Period) -> Iterator[Finding]:
    asked, cancelled = period.count("paging", "prefetched_blocks"), period.count("paging", "prefetches_cancelled")
    if asked >= ENOUGH_FAULTS and cancelled > CANCELLED_PREFETCH_SHARE * asked:
        yield Finding(
            Severity.ADVICE, "cancelled prefetch", "pages",
            f"{cancelled:,.0f} of {asked:,.0f} blocks fetched ahead were given up before they came",
            "fetch less far ahead (Window.ahead_tokens), or make the lanes faster", (),
            {"prefetched": asked, "cancelled": cancelled},
        )  # fmt: skip


def _pools(period: Period) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from period.now["paging"].get("pools", {}).items()
