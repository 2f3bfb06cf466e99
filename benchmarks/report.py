"""What every benchmark here reports: figures beside their floors, with the machine and the versions named."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridkv.benchmarks.machine import machine, versions

HEADINGS = ("figure", "value", "unit", "floor", "ratio", "target", "met")


class Better(StrEnum):
    """Which way a figure gets better: rates go up, times go down."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `floor` is what the machine itself does, measured in the same run and in the same unit.

    `target` bounds `ratio`, or `value` where there is no floor: from below where higher is better, else from above;
    None: the figure is for information. `skipped` says why there is no value; such a row meets no target.
    """

    name: str
    value: float | None
    unit: str
    floor: float | None = None
    target: float | None = None
    better: Better = Better.HIGHER
    skipped: str | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor and self.value is not None else None

    @property
    def met(self) -> bool | None:
        """None without a target."""
        if self.skipped is not None:
            return False
        if self.target is None:
            return None
        figure = self.value if self.ratio is None else self.ratio
        if figure is None:
            return False
        return figure >= self.target if self.better is Better.HIGHER else figure <= self.target

    def as_json(self) -> dict[str, Any]:
        """The one form every benchmark's rows have; "better" where that is lower, "skipped" where there is a reason."""
        row = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "floor": self.floor,
            "ratio": self.ratio,
            "target": self.target,
            "met": self.met,
        }
        if self.better is Better.LOWER:
            row["better"] = self.better.value
        if self.skipped is not None:
            row["skipped"] = self.skipped
        return row

    def cells(self) -> list[str]:
        """As text, under `HEADINGS`."""
        bound = "" if self.target is None else f"{'≥' if self.better is Better.HIGHER else '≤'} {_figure(self.target)}"
        met = "skipped" if self.skipped else {None: "", True: "yes", False: "NO"}[self.met]
        return [self.name, _figure(self.value), self.unit, _figure(self.floor), _figure(self.ratio), bound, met]


def skipped(name: str, unit: str, reason: str, target: float | None = None) -> Row:
    """A figure that could not be taken here."""
    return Row(name, None, unit, None, target, skipped=reason)


def print_table(title: str, rows: Sequence[Row], console: Console | None = None) -> None:
    """The rows as a table on standard output."""
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("figure", "unit") else "right")
    for row in rows:
        table.add_row(*row.cells())
    (console or Console()).print(table)


def as_json(benchmark: str, rows: Sequence[Row], on: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The whole report as one object; `on` is what is said about the machine (None: what `machine()` finds)."""
    return {
        "benchmark": benchmark,
        "machine": dict(machine() if on is None else on),
        "versions": versions(),
        "rows": [row.as_json() for row in rows],
    }


def write_json(path: Path, benchmark: str, rows: Sequence[Row], extra: Mapping[str, Any] | None = None) -> None:
    """The whole report as a file of JSON; `extra` adds to what is said about the machine."""
    report = as_json(benchmark, rows, machine() | dict(extra or {}))
    path.write_text(json.dumps(report, indent=2) + "\n")


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"
