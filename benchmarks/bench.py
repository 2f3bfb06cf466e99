"""`hybridkv bench NAME`: runs a benchmark, step by step, and reports it: tables, JSON, Markdown, plots, regressions."""

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hybridkv.benchmarks.against import THRESHOLD, print_regressions, read_rows, regressions
from hybridkv.benchmarks.harness import PAIRS
from hybridkv.benchmarks.machine import machine, machine_name
from hybridkv.benchmarks.panels import Panel, draw
from hybridkv.benchmarks.report import HEADINGS, Row, as_json, print_table

EXIT_OK, EXIT_WORSE = 0, 1
NAMES = {
    "compare": "hybridkv.benchmarks.compare_bench",
    "data": "hybridkv.benchmarks.data_bench",
    "directory": "hybridkv.benchmarks.directory_bench",
    "migration": "hybridkv.benchmarks.migration_bench",
    "paging": "hybridkv.benchmarks.paging_bench",
    "rpc": "hybridkv.benchmarks.rpc_bench",
    "serving": "hybridkv.benchmarks.serving_bench",
}
"""Benchmarks there are, and the module of each; it has a `BENCH`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a step measures on: an empty folder whose file system is the disk tier's, and how many pairs it takes."""

    folder: Path
    pairs: int = PAIRS


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a benchmark that can run alone."""

    name: str
    run: Callable[[Setting], list[Row]]


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark: its steps in order, and the pictures made of their rows."""

    name: str
    title: str
    steps: tuple[Step, ...]
    panels: tuple[Panel, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark that the command line names; EXIT_WORSE when `--against` finds it worse than before.

    Raises InvalidArgumentError for a file given to `--against` that is no report.
    """
    given = _parser().parse_args(arguments)
    console = Console(stderr=given.json)
    before = None if given.against is None else read_rows(given.against)
    bench: Bench = importlib.import_module(NAMES[given.name]).BENCH
    steps = [step for step in bench.steps if given.only is None or given.only in step.name]
    with TemporaryDirectory(prefix="hybridkv-bench-", dir=given.dir) as folder:
        on = machine(Path(folder))
        rows = run(steps, Setting(Path(folder), given.pairs), console)
    report = as_json(bench.name, rows, on)
    if given.json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        print_table(bench.title, rows, console)
    if given.out is not None:
        write_out(given.out, bench, rows, report, console)
    if before is None:
        return EXIT_OK
    worse = regressions(rows, before, given.threshold)
    print_regressions(worse, console)
    return EXIT_WORSE if worse else EXIT_OK


def run(steps: Sequence[Step], setting: Setting, console: Console) -> list[Row]:
    """The rows of all steps; each step has a folder of its own."""
    rows: list[Row] = []
    with _progress(len(steps), console) as begin:
        for number, step in enumerate(steps):
            begin(number, step.name)
            with TemporaryDirectory(dir=setting.folder) as folder:
                rows += step.run(Setting(Path(folder), setting.pairs))
        begin(len(steps), "done")
    return rows


def write_out(out: Path, bench: Bench, rows: Sequence[Row], report: dict[str, Any], console: Console) -> None:
    """`<bench>-<machine>.json`, `.md` and, where matplotlib is installed, `.png`."""
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{bench.name}-{machine_name()}"
    (out / f"{stem}.json").write_text(json.dumps(report, indent=2) + "\n")
    picture = f"{stem}.png" if draw(bench.panels, rows, out / f"{stem}.png") else None
    (out / f"{stem}.md").write_text(markdown(bench.title, report, rows, picture))
    console.print(f"written: {out / stem}.json, .md" + (", .png" if picture else ""))


def markdown(title: str, report: dict[str, Any], rows: Sequence[Row], picture: str | None) -> str:
    """The report as a page."""
    lines = [f"# {title}", ""]
    lines += [f"- {key}: {value}" for key, value in report["machine"].items()]
    lines += [f"- versions: {', '.join(f'{name} {number}' for name, number in report['versions'].items())}", ""]
    aimed = [row for row in rows if row.target is not None and not row.skipped]
    lines += [f"{sum(row.met is True for row in aimed)} of {len(aimed)} targets met.", ""]
    if picture:
        lines += [f"![{title}]({picture})", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", "|---|---:|---|---:|---:|---:|---|"]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    reasons = {row.skipped: None for row in rows if row.skipped}
    lines += ["", *(f"Skipped: {reason}" for reason in reasons)] if reasons else []
    return "\n".join(lines) + "\n"


@contextmanager
def _progress(total: int, console: Console) -> Iterator[Callable[[int, str], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, name: progress.update(task, completed=done, description=name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hybridkv bench", description="Figures beside their floors, from one run.")
    parser.add_argument("name", choices=sorted(NAMES), metavar="NAME", help=f"which: {', '.join(sorted(NAMES))}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON, Markdown and plots there, too")
    parser.add_argument("--against", type=Path, metavar="FILE", help="an earlier JSON; exit 1 when this run is worse")
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, metavar="SHARE", help="worse by more than this (default: 0.2)"
    )
    parser.add_argument("--only", metavar="TEXT", help="only the steps whose name has this in it")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="rounds of floor and subject (default: %(default)s)")
    parser.add_argument("--dir", type=Path, help="where the disk tier's files go while it runs (default: $TMPDIR)")
    return parser
