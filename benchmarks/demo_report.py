"""What the demo found, as figures, as a verdict, and as tables for people."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridkv.benchmarks.demo_faults import Finding
from hybridkv.benchmarks.demo_replay import Replay
from hybridkv.benchmarks.demo_setup import CPU_SHARE, DISK_SHARE, GPU_SHARE, Sizes
from hybridkv.benchmarks.demo_space import BLOCK_BYTES

TIERS = ("gpu", "cpu", "disk")
SHARES = dict(zip(TIERS, (GPU_SHARE, CPU_SHARE, DISK_SHARE), strict=True))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What makes the demo a success."""

    min_served: int = 1000
    """Verified blocks, from each tier."""
    min_share: float = 0.90
    """Of the hits of a cache without limits."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What the hits saved: served × (time to derive a block − time to serve it), seconds of one worker's time.

    To derive a block is to fill its 64 KiB with the bytes that follow from its key: a generator's work, far cheaper than
    a model's prefill, so this may well be negative. To serve one is its share of acquire (with the wait until it is
    where it was asked for) and release. Both are wall time, with all processes at work on the machine's cores.
    """

    served: int
    derive_s: float
    serve_s: float

    @property
    def total_s(self) -> float:
        return self.served * (self.derive_s - self.serve_s)


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the demo."""

    sizes: Sizes
    workers: int
    infinite: int
    replay: Replay
    findings: Sequence[Finding]
    thresholds: Thresholds
    wall_s: float

    def saved(self) -> Saved:
        counts, served = self.replay.counts, self.replay.served
        return Saved(served, _ratio(counts["derive_s"], counts["derived"]), _ratio(counts["serve_s"], served))

    def verdict(self) -> list[Finding]:
        """Everything that must hold."""
        replay, least = self.replay, self.thresholds.min_served
        share = _ratio(replay.served, self.infinite)
        daemon_hits = sum(replay.stats["hits"].values())
        found = [
            Finding(f"{t} served ≥ {least:,} blocks", replay.hits[t] >= least, f"{replay.hits[t]:,}") for t in TIERS
        ]
        found += [
            Finding(
                f"hits ≥ {self.thresholds.min_share:.0%} of a cache without limits",
                share >= self.thresholds.min_share,
                f"{replay.served:,} of {self.infinite:,} ({share:.1%})",
            ),
            Finding(
                "every byte read was verified", replay.counts["wrong"] == 0, f"{replay.counts['wrong']} blocks differ"
            ),
            Finding(
                "the daemon counts as many hits as the workers verified",
                daemon_hits >= replay.served,
                f"{daemon_hits:,}, those asked for a second time counted twice",
            ),
        ]
        return [*found, *self.findings]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.verdict())

    def as_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        saved = self.saved()
        return {
            "ok": self.ok,
            "wall_s": self.wall_s,
            "workers": self.workers,
            "block_bytes": BLOCK_BYTES,
            "sizes": self.sizes.as_json(),
            "replay": {
                "requests": self.replay.requests,
                "wall_s": self.replay.wall_s,
                "hits": dict(self.replay.hits),
                "counts": dict(self.replay.counts),
                "served": self.replay.served,
                "infinite": self.infinite,
                "verified_bytes": self.replay.served * BLOCK_BYTES,
                "daemon_hits": self.replay.stats["hits"],
            },
            "moves": self.replay.stats["moves"],
            "saved": {**asdict(saved), "total_s": saved.total_s},
            "verdict": [asdict(finding) for finding in self.verdict()],
        }

    def print(self, console: Console) -> None:
        """Tables for people."""
        console.print(_hits(self))
        console.print(_moves(self.replay.stats["moves"]))
        console.print(_summary(self))
        console.print(_verdict(self.verdict()))


def _hits(report: Report) -> Table:
    replay, sizes = report.replay, report.sizes
    room = {"gpu": sizes.gpu_blocks, "cpu": sizes.cpu_blocks, "disk": sizes.disk_blocks}
    table = _table("hits by tier", "blocks in it", "of the unique", "hits", "of all accesses")
    asked = replay.counts["asked"]
    for tier in TIERS:
        table.add_row(
            tier,
            f"{room[tier]:,}",
            f"{_ratio(room[tier], sizes.unique_blocks):.1%} ({SHARES[tier]:.0%} asked)",
            f"{replay.hits[tier]:,}",
            f"{_ratio(replay.hits[tier], asked):.1%}",
        )
    table.add_section()
    table.add_row("all", "", "", f"{replay.served:,}", f"{_ratio(replay.served, asked):.1%}")
    table.add_row("no limits", "", "", f"{report.infinite:,}", f"{_ratio(report.infinite, asked):.1%}")
    return table


def _moves(moves: Sequence[dict[str, Any]]) -> Table:
    table = _table("moves", "reason", "outcome", "blocks", "MB")
    for move in moves:
        where = f"{move['from']} → {move['to']}" if move["to"] != "none" else f"{move['from']}: dropped"
        figures = (f"{move['count']:,}", f"{move['bytes'] / 1e6:,.0f}")
        table.add_row(where, move["reason"], move["outcome"], *figures)
    return table


def _summary(report: Report) -> Table:
    counts, saved = report.replay.counts, report.saved()
    table = _table("figures", "")
    rows = {
        "requests": f"{report.replay.requests:,} by {report.workers} workers in {report.replay.wall_s:.1f} s",
        "bytes read and verified": f"{report.replay.served * BLOCK_BYTES / 1e9:.2f} GB",
        "blocks read in the CPU tier, the GPU tier being full of leased ones": f"{counts['read_in_cpu']:,}",
        "blocks derived": f"{counts['derived']:,}, of which {counts['sealed']:,} sealed",
        "time to derive a block, measured": f"{saved.derive_s * 1e6:,.0f} µs",
        "time to serve a block, measured": f"{saved.serve_s * 1e6:,.0f} µs",
        "time that hits saved: served × (derive − serve)": (
            f"{saved.served:,} × ({saved.derive_s * 1e6:,.0f} − {saved.serve_s * 1e6:,.0f}) µs = {saved.total_s:,.1f} s"
        ),
    }
    if saved.total_s < 0:
        rows["hits pay where deriving a block takes longer than"] = f"{saved.serve_s * 1e6:,.0f} µs"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _verdict(findings: Sequence[Finding]) -> Table:
    table = _table("must hold", "", "")
    for finding in findings:
        table.add_row(finding.what, "[green]yes[/]" if finding.ok else "[bold red]NO[/]", finding.detail)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        right = column in ("blocks in it", "of the unique", "hits", "of all accesses", "blocks", "MB")
        table.add_column(column, justify="right" if right else "left")
    return table


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
