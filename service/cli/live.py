"""`hybridkv top`: a live view. Rates are differences of two readings of the figures that `hybridkv stats` shows."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hybridkv.service.cli.tables import size_text, tenants_table

Stats = Mapping[str, Any]

_BAR_WIDTH = 20


def watch(
    read: Callable[[], Stats],
    address: str,
    interval_s: float,
    *,
    once: bool = False,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show a frame each `interval_s` until interrupted; `once`: one frame. In place on a terminal, else one after the other
    as plain text."""
    console = console or Console()
    before = read()
    if once or not console.is_terminal:
        _print_frames(read, before, address, interval_s, console, sleep, once=once)
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        try:
            while True:
                sleep(interval_s)
                now = read()
                live.update(frame(before, now, address), refresh=True)
                before = now
        except KeyboardInterrupt:
            return


def _print_frames(
    read: Callable[[], Stats],
    before: Stats,
    address: str,
    interval_s: float,
    console: Console,
    sleep: Callable[[float], None],
    *,
    once: bool,
) -> None:
    try:
        while True:
            sleep(interval_s)
            now = read()
            console.print(frame(before, now, address))
            if once:
                return
            before = now
    except KeyboardInterrupt:
        return


def frame(before: Stats, now: Stats, address: str) -> RenderableType:
    """Everything that one look shows. `before` and `now`: two readings of one daemon; after its restart rates are 0."""
    if "tenant" in now:  # a worker is told its own tenant's figures only
        return Group(Text(_headline(now, address)), tenants_table({now["tenant"]: now}))
    seconds = _seconds(before, now)
    parts: list[RenderableType] = [
        Text(_headline(now, address)),
        Text(_served(before, now, seconds)),
        _tiers(now),
        _moves(before, now, seconds),
        _lanes(now),
    ]
    parts += [Text(f"{name}: {state['reason']}", style="bold red")
              for name, state in now.get("health", {}).items() if not state["ok"]]  # fmt: skip
    return Group(*parts)


def _seconds(before: Stats, now: Stats) -> float | None:
    """Between the readings; None when they are of two daemons."""
    passed = float(now.get("uptime_s", 0.0)) - float(before.get("uptime_s", 0.0))
    return passed if passed > 0 and now.get("epoch") == before.get("epoch") else None


def _headline(now: Stats, address: str) -> str:
    about = f"hybridkv {now.get('version', '?')} at {address}, up {now.get('uptime_s', 0):.0f} s"
    if "tenant" in now:
        return about
    holds = ", ".join(f"{now.get(name, 0)} {name.replace('_', ' ')}" for name in
                      ("sessions", "leases", "reservations", "requests", "waiting_calls", "transfers"))  # fmt: skip
    return f"{about}, config version {now.get('config_version', '?')}: {holds}"


def _served(before: Stats, now: Stats, seconds: float | None) -> str:
    hits = _rates(before.get("hits", {}), now.get("hits", {}), seconds)
    misses = _rates(before.get("outcomes", {}), now.get("outcomes", {}), seconds).get("miss", 0.0)
    total = sum(hits.values()) + misses
    share = f" ({sum(hits.values()) / total:.1%} hits)" if total else ""
    shown = ", ".join(f"{tier} {rate:,.0f}" for tier, rate in hits.items())
    return f"keys a second: hits {shown}; misses {misses:,.0f}{share}"


def _rates(before: Mapping[Any, float], now: Mapping[Any, float], seconds: float | None) -> dict[Any, float]:
    return {name: (count - before.get(name, 0)) / seconds if seconds else 0.0 for name, count in now.items()}


def _tiers(now: Stats) -> Table:
    table = _table("tier", "used", "", "capacity", "blocks", "leased", "reserved")
    for name, row in now.get("tiers", {}).items():
        share = row.get("used_bytes", 0) / row["capacity_bytes"] if row.get("capacity_bytes") else 0.0
        table.add_row(
            name, size_text(row.get("used_bytes", 0)), _bar(share), size_text(row.get("capacity_bytes", 0)),
            f"{row.get('blocks', 0):,}", f"{row.get('leased_blocks', 0):,}", size_text(row.get("reserved_bytes", 0)),
        )  # fmt: skip
    return table


def _bar(share: float) -> str:
    full = min(_BAR_WIDTH, round(share * _BAR_WIDTH))
    return f"{'█' * full}{'·' * (_BAR_WIDTH - full)} {share:4.0%}"


def _moves(before: Stats, now: Stats, seconds: float | None) -> Table:
    """Moves a second and bytes a second by reason, those that happened meanwhile."""
    counts, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for sign, stats in ((1, now), (-1, before)):
        for move in stats.get("moves", ()):
            label = (move["reason"], f"{move['from']} → {move['to']}, {move['outcome']}")
            counts[label] += sign * move["count"]
            sizes[label] += sign * move["bytes"]
    table = _table("moves by reason", "way", "a second", "bytes a second")
    for label, count in sorted(counts.items(), key=lambda item: -item[1]):
        if seconds and count > 0:
            table.add_row(*label, f"{count / seconds:,.1f}", size_text(sizes[label] / seconds))
    return table


def _lanes(now: Stats) -> Table:
    table = _table("lane", "queued", "in flight", "errors")
    for name, row in now.get("lanes", {}).items():
        alive = "" if row.get("alive", True) else " (dead)"
        table.add_row(
            name + alive, f"{row.get('queued', 0):,}", size_text(row.get("bytes_in_flight", 0)),
            f"{row.get('errors', 0):,}",
        )  # fmt: skip
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in ("tier", "lane", "", "moves by reason", "way") else "right")
    return table
