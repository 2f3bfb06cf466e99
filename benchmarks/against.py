"""Is a run worse than an earlier one? Ratios are compared where both have one, for they hold on another machine too."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridkv.benchmarks.report import Better, Row
from hybridkv.tiers.errors import InvalidArgumentError

THRESHOLD = 0.2


@dataclass(frozen=True, slots=True)
class Regression:
    """A row that got worse. `worse` is the share by which it did: 0.5 means half the rate, or 1.5 times the time."""

    name: str
    before: float
    now: float
    unit: str
    worse: float


def read_rows(path: Path) -> dict[str, Mapping[str, Any]]:
    """The rows of an earlier report, by name. Raises InvalidArgumentError when the file is none."""
    try:
        rows = json.loads(path.read_text())["rows"]
        return {row["name"]: {"value": row["value"], "ratio": row["ratio"]} for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError("against", f"{path} is no report of a benchmark: {error}") from error


def regressions(rows: Sequence[Row], before: Mapping[str, Mapping[str, Any]], threshold: float) -> list[Regression]:
    """Rows worse than before by more than `threshold`, worst first. Rows that only one of the runs has do not count."""
    found = [regression for row in rows if row.name in before for regression in _compared(row, before[row.name])]
    return sorted((r for r in found if r.worse > threshold), key=lambda r: -r.worse)


def _compared(row: Row, before: Mapping[str, Any]) -> list[Regression]:
    by_ratio = row.ratio is not None and before["ratio"] is not None
    now, then = (row.ratio, before["ratio"]) if by_ratio else (row.value, before["value"])
    if now is None or then is None or then <= 0:
        return []
    worse = 1 - now / then if row.better is Better.HIGHER else now / then - 1
    return [Regression(row.name, then, now, "of the floor" if by_ratio else row.unit, worse)]


def print_regressions(found: Sequence[Regression], console: Console) -> None:
    if not found:
        console.print("no figure is worse than before")
        return
    table = Table("figure", "before", "now", "unit", "worse by", title="worse than before")
    for one in found:
        table.add_row(one.name, f"{one.before:.3g}", f"{one.now:.3g}", one.unit, f"{one.worse:.0%}")
    console.print(table)
