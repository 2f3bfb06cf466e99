"""Pictures of a report: what rows stand in which panel, and the drawing of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from hybridkv.benchmarks.report import Row

_COLOURS = ("#1b6ca8", "#3fa34d", "#c97b1b", "#8e3b9e", "#b33a3a", "#4a4a4a", "#2fa8a0", "#b8a000")
_COLUMNS = 2


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram. `series`: label → names of rows, one for each of `ticks`. Floors are drawn dashed."""

    title: str
    unit: str
    ticks: Sequence[str]
    series: Mapping[str, Sequence[str]]
    log: bool = False


def draw(panels: Sequence[Panel], rows: Sequence[Row], path: Path) -> bool:
    """Write a PNG with the panels that have figures; False where there is none, or no matplotlib (extra `plot`)."""
    by_name = {row.name: row for row in rows if row.value is not None}
    shown = [panel for panel in panels if any(name in by_name for names in panel.series.values() for name in names)]
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    if not shown:
        return False
    lines = -(-len(shown) // _COLUMNS)
    figure = Figure(figsize=(6.5 * _COLUMNS, 3.8 * lines), layout="constrained")  # no pyplot: no display is needed
    places = figure.subplots(lines, _COLUMNS, squeeze=False).flat
    for panel, axes in zip(shown, places, strict=False):
        _draw(axes, panel, by_name)
    for axes in places:
        axes.set_visible(False)
    figure.savefig(path, dpi=110)
    return True


def _draw(axes: Any, panel: Panel, by_name: Mapping[str, Row]) -> None:
    for colour, (label, names) in zip(cycle(_COLOURS), panel.series.items(), strict=False):
        known = [(at, by_name[name]) for at, name in enumerate(names) if name in by_name]
        axes.plot([at for at, _ in known], [row.value for _, row in known], "o-", color=colour, label=label)
        floors = [(at, row.floor) for at, row in known if row.floor is not None]
        axes.plot([at for at, _ in floors], [floor for _, floor in floors], "--", color=colour, alpha=0.5)
    axes.set_xticks(range(len(panel.ticks)), panel.ticks)
    axes.set(title=panel.title, ylabel=panel.unit)
    axes.set_yscale("log" if panel.log else "linear")
    if not panel.log:
        axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
