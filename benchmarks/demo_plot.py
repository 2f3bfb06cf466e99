"""The demo's picture: hits per tier and bytes per tier, over the requests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridkv.benchmarks.demo_replay import Sample

_COLOURS = {"gpu": "#1b6ca8", "cpu": "#3fa34d", "disk": "#c97b1b"}


def plot(samples: Sequence[Sample], path: Path) -> bool:
    """Write a PNG; False where matplotlib is not installed (the extra `plot`)."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    figure = Figure(figsize=(9, 6.5), layout="constrained")  # no pyplot: its own Agg canvas, no display needed
    above, below = figure.subplots(2, 1, sharex=True)
    requests = [sample.requests for sample in samples]
    _stack(above, requests, {tier: [sample.hits[tier] for sample in samples] for tier in _COLOURS})
    above.set(title="Blocks served, by the tier that held them", ylabel="blocks, from the start")
    names = list(samples[0].used_bytes) if samples else []
    _stack(below, requests, {name: [sample.used_bytes[name] / 1e6 for sample in samples] for name in names})
    below.set(title="Memory in use", ylabel="MB", xlabel="requests served")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True


def _stack(axes: Any, x: list[int], series: dict[str, list[Any]]) -> None:
    colours = [_COLOURS[name.rstrip("0123456789")] for name in series]
    axes.stackplot(x, *series.values(), labels=series, colors=colours, alpha=0.85)
    axes.legend(loc="upper left")
    axes.margins(x=0)
    axes.grid(alpha=0.3)
