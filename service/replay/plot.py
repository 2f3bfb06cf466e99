"""The picture of a replay: what each run served from which tier beside the optimum, and how that came about over time."""

import importlib.util
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from hybridkv.service.replay.runs import ONE_TIER, Replay, Run
from hybridkv.tiers.errors import InvalidArgumentError

_TIER_COLOURS = {"gpu": "#1b6ca8", "cpu": "#3fa34d", "disk": "#c97b1b", ONE_TIER: "#1b6ca8"}
_LINE_COLOURS = ("#1b6ca8", "#c97b1b", "#3fa34d", "#8e3b9e", "#b33a3a", "#4a4a4a", "#2fa8a0", "#b8a000")


def check_plot(path: Path) -> None:
    """Before the work begins: can it be drawn, and written there? Raises InvalidArgumentError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgumentError("plot", "needs matplotlib, which is not installed (pip install 'hybridkv[plot]')")
    if not path.parent.is_dir():
        raise InvalidArgumentError("plot", f"{path.parent} is no folder")


def draw(replay: Replay, path: Path) -> None:
    """Write the PNG."""
    from matplotlib.figure import Figure  # no pyplot: no display is needed

    figure = Figure(figsize=(13, 4.8), layout="constrained")
    served, over_time = figure.subplots(1, 2)
    _draw_served(served, replay)
    _draw_over_time(over_time, replay)
    figure.savefig(path, format="png", dpi=110)


def _draw_served(axes: Any, replay: Replay) -> None:
    accesses = replay.trace.block_accesses
    places = np.arange(len(replay.runs))
    for name, colour in _TIER_COLOURS.items():
        heights = [_share(run, name, accesses) for run in replay.runs]
        below = [_below(run, name, accesses) for run in replay.runs]
        if any(heights):
            axes.bar(places, heights, 0.6, bottom=below, color=colour, label=name)
    for place, run in enumerate(replay.runs):
        best = replay.optimum_of(run) / accesses
        axes.hlines(best, place - 0.4, place + 0.4, color="#222222", linestyles="dashed",
                    label="optimum" if place == 0 else None)  # fmt: skip
    axes.set_xticks(places, [run.label for run in replay.runs], rotation=20 if len(places) > 3 else 0)
    axes.set(title="Blocks served, by tier", ylabel="share of block accesses")
    axes.set_ylim(0, None)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3, axis="y")


def _share(run: Run, tier: str, accesses: int) -> float:
    return run.tiers[tier].hit_blocks / accesses if tier in run.tiers else 0.0


def _below(run: Run, tier: str, accesses: int) -> float:
    """What the tiers above serve: they are drawn first."""
    names = list(run.tiers)
    above = names[: names.index(tier)] if tier in names else []
    return sum(run.tiers[name].hit_blocks for name in above) / accesses


def _draw_over_time(axes: Any, replay: Replay) -> None:
    hours = np.array([request.at_s for request in replay.trace.requests]) / 3600
    asked = np.cumsum([len(request.chain) for request in replay.trace.requests])
    for colour, run in zip(cycle(_LINE_COLOURS), replay.runs, strict=False):
        axes.plot(hours, np.cumsum(run.hits_by_request) / asked, color=colour, label=run.label)
    axes.set(title="Served so far", xlabel="hours of the trace", ylabel="share of block accesses")
    axes.set_ylim(0, None)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
