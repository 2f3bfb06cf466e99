"""What the commands print: rich tables for people, JSON for scripts."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hybridkv.service.config import value_text

if TYPE_CHECKING:
    from hybridkv.service.admin_client import ConfigUpdated

_TIER_COLUMNS = {
    "used_bytes": "used",
    "capacity_bytes": "capacity",
    "blocks": "blocks",
    "leased_blocks": "leased",
    "reserved_bytes": "reserved",
    "quarantined_bytes": "quarantined",
}
_LANE_COLUMNS = {"queued": "queued", "bytes_in_flight": "in flight", "errors": "errors"}
_HOLDS = ("sessions", "leases", "reservations", "requests", "waiting_calls")
_REPLAY_COLUMNS = {
    "token_hit_rate": ".2%",
    "moves_per_hit": ".3f",
    "disk_writes_per_new_block": ".3f",
    "share_of_optimum": ".1%",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def output() -> Console:
    """The terminal; in a pipe or a file wide enough that no value is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=max(200, console.width))


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_stats(stats: Mapping[str, Any]) -> None:
    """The figures most asked for; `--json` has them all. A worker of a tenant is told its own only."""
    console = output()
    console.print(_headline(stats))
    if "tenant" in stats:
        console.print(tenants_table({stats["tenant"]: stats}))
        return
    console.print(_rows("tier", stats.get("tiers", {}), _TIER_COLUMNS))
    if tenants := stats.get("tenants"):
        console.print(tenants_table(tenants))
    console.print(_served(stats))
    if moves := stats.get("moves"):
        console.print(_moves(moves))
    console.print(_rows("lane", stats.get("lanes", {}), _LANE_COLUMNS))
    if upkeep := _upkeep(stats):
        console.print(upkeep)
    for component, reason in _unwell(stats.get("health", {})):
        console.print(f"[bold red]{component}[/]: {reason}")


def print_violations(violations: Sequence[str]) -> None:
    """One line each, or that there is none."""
    if not violations:
        print("all laws hold")
    for violation in violations:
        print(violation)


def print_config(values: Mapping[str, object], sources: Mapping[str, str]) -> None:
    """Key, value and source of every key."""
    table = _table("key", "value", "from")
    for key, value in values.items():
        table.add_row(key, value_text(key, value), sources[key])
    output().print(table)


def print_update(update: "ConfigUpdated") -> None:
    """What changed, and the versions."""
    for key, (before, after) in update.changed.items():
        print(f"{key} = {value_text(key, after)} (was {value_text(key, before)})")
    same = "nothing changed: " if not update.changed else ""
    print(f"{same}config version {update.version} (was {update.previous_version})")


def update_tree(update: "ConfigUpdated") -> dict[str, Any]:
    """For JSON."""
    changed = {key: {"before": before, "after": after} for key, (before, after) in update.changed.items()}
    return {"version": update.version, "previous_version": update.previous_version, "changed": changed}


def print_replay(figures: Mapping[str, Any]) -> None:
    """One row for each run; hits by tier, top tier first."""
    runs = figures["runs"]
    table = _table("run", "policy", "capacity in blocks", "hits", "by tier", "tokens", "moves per hit",
                   "disk writes per new block", "of the optimum")  # fmt: skip
    for column in table.columns:
        column.overflow = "fold"
    configs = _shortest([run["config"] for run in runs if run["config"]])
    for run in runs:
        tiers = run["tiers"].values()
        name = configs.get(run["config"], "one tier" if run["model"] is None else "three tiers")
        table.add_row(
            name if run["model"] is None else f"{name}, {run['model']}",
            run["policy"],
            " / ".join(f"{tier['capacity_blocks']:,}" for tier in tiers),
            f"{run['block_hit_rate']:.2%}",
            " / ".join(f"{tier['block_hit_rate']:.2%}" for tier in tiers),
            *(_decimal(run[field], text) for field, text in _REPLAY_COLUMNS.items()),
        )
    block_tokens = figures["block_tokens"] or "an unknown number of"
    output().print(f"{figures['trace']}: {figures['requests']:,} requests, {runs[0]['block_accesses']:,} block accesses, "
                   f"{figures['unique_blocks']:,} distinct blocks of {block_tokens} tokens", soft_wrap=True)  # fmt: skip
    output().print(table)
    for size in dict.fromkeys(run["block_bytes"] for run in runs if run["block_bytes"]):
        output().print(f"blocks of {size_text(size)} (--block-bytes)")


def _shortest(paths: Sequence[str]) -> dict[str, str]:
    """Path → its file's name, or the whole path where two paths have files of one name."""
    names = Counter(Path(path).name for path in dict.fromkeys(paths))
    return {path: Path(path).name if names[Path(path).name] == 1 else path for path in paths}


def _decimal(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def tenants_table(tenants: Mapping[str, Mapping[str, Any]]) -> Table:
    """What each tenant has in each tier, and how many leases and reservations; "of" what its quota allows."""
    table = _table("tenant", *next(iter(tenants.values()))["tiers"], "leases")
    for name, row in tenants.items():
        bytes_of = [_of_quota("bytes", tier["used_bytes"], tier["quota_bytes"]) for tier in row["tiers"].values()]
        table.add_row(name, *bytes_of, _of_quota("leases", row["leases"], row["leases_quota"]))
    return table


def _of_quota(field: str, used: int, quota: int | None) -> str:
    return _cell(field, used) if quota is None else f"{_cell(field, used)} of {_cell(field, quota)}"


def size_text(nbytes: float) -> str:
    """Three digits and a binary unit."""
    size, unit = float(nbytes), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{int(size)} {_UNITS[0]}" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"


def _headline(stats: Mapping[str, Any]) -> str:
    holds = ", ".join(f"{stats[name]} {name}" for name in _HOLDS if name in stats)
    return f"hybridkv {stats.get('version', '?')}, up {stats.get('uptime_s', 0):.0f} s: {holds.replace('_', ' ')}"


def _upkeep(stats: Mapping[str, Any]) -> str:
    """What went on after errors, what does not move, and how old the oldest holds are; '' where there is nothing to tell."""
    parts = [f"{name} failed {loop['errors']:,} times and went on" for name, loop in stats.get("loops", {}).items()
             if loop.get("errors")]  # fmt: skip
    if given_up := stats.get("setbacks", {}).get("given_up"):
        parts.append(f"{given_up:,} blocks cannot be moved")
    ages = {name.removesuffix("_s"): age for name, age in stats.get("ages", {}).items() if age >= 1.0}
    parts += [f"oldest {name} {age:.0f} s" for name, age in ages.items()]
    return "; ".join(parts)


def _served(stats: Mapping[str, Any]) -> str:
    """Hits by tier and misses, as shares of the keys that were acquired."""
    counts = {f"{tier} hits": count for tier, count in stats.get("hits", {}).items()}
    counts["misses"] = stats.get("outcomes", {}).get("miss", 0)
    total = sum(counts.values())
    shown = ", ".join(f"{name} {count:,} ({count / total:.1%})" for name, count in counts.items() if total)
    return f"keys acquired: {total:,}" + (f": {shown}" if shown else "")


def _rows(label: str, figures: Mapping[str, Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    table = _table(label, *columns.values())
    for name, row in figures.items():
        table.add_row(name, *(_cell(field, row.get(field)) for field in columns))
    return table


def _moves(moves: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("from", "to", "reason", "outcome", "count", "bytes")
    for move in moves:
        texts = (str(move.get(name) or "–") for name in ("from", "to", "reason", "outcome"))
        table.add_row(*texts, f"{move['count']:,}", size_text(move["bytes"]))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=None, header_style="bold")
    for name in others:
        table.add_column(name, justify="left" if name in ("to", "reason", "outcome", "value", "from") else "right")
    return table


def _cell(field: str, value: Any) -> str:
    if value is None:
        return "–"
    return size_text(value) if "bytes" in field else f"{value:,}"


def _unwell(health: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(name, str(state["reason"])) for name, state in health.items() if not state["ok"]]
