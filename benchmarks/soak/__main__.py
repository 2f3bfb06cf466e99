"""`python -m hybridkv.benchmarks.soak --minutes N`: runs a soak and reports it."""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hybridkv.benchmarks.bench import Bench, write_out
from hybridkv.benchmarks.demo_setup import Places, fresh_places
from hybridkv.benchmarks.machine import machine
from hybridkv.benchmarks.report import Row, as_json, print_table
from hybridkv.benchmarks.soak import stage
from hybridkv.benchmarks.soak.crew import SoakError
from hybridkv.benchmarks.soak.ending import end
from hybridkv.benchmarks.soak.report import rows_of
from hybridkv.benchmarks.soak.run import Plan, Soak
from hybridkv.benchmarks.soak.tally import added_up
from hybridkv.tiers.errors import HybridKVError

EXIT_OK, EXIT_WRONG = 0, 1
_TITLE = "Soak: random work, random kills"
_SAY_EVERY_S = 15.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one soak; EXIT_WRONG when it found something, with what and how to repeat it on stderr."""
    given = _parser().parse_args(arguments)
    plan = Plan(given.minutes * 60.0, given.seed, given.workers)
    console = Console(stderr=True)
    console.print(f"soak: {given.minutes:g} minutes, seed {plan.seed}, {plan.workers} workers")
    places = fresh_places("soak", 2 * (stage.GPU_BYTES + stage.CPU_BYTES))
    on = machine(places.disk) | {"seed": plan.seed, "minutes": given.minutes, "workers": plan.workers}
    try:
        rows = soaked(plan, places, console)
    except (SoakError, HybridKVError) as error:
        console.print(f"FAILED: {error}", markup=False, highlight=False)
        return _failed(given, places, console)
    report = as_json("soak", rows, on)
    if given.json:
        json.dump(report, sys.stdout, indent=2)
    else:
        print_table(_TITLE, rows, console)
    if given.out is not None:
        write_out(given.out, Bench("soak", _TITLE, ()), rows, report, console)
    if wrong := [row for row in rows if row.met is False]:
        console.print("FAILED: " + "; ".join(f"{row.name}: {row.value}" for row in wrong), markup=False)
        return _failed(given, places, console)
    places.remove()
    return EXIT_OK


def soaked(plan: Plan, places: Places, console: Console) -> list[Row]:
    """Run it. Raises SoakError, and what a daemon that cannot be reached raises."""
    said_s = 0.0

    def say(at_s: float) -> None:
        nonlocal said_s
        if at_s >= said_s + _SAY_EVERY_S:
            said_s = at_s
            seen = ", ".join(f"{count} {kind}" for kind, count in sorted(soak.course.troubles.items()))
            console.print(f"{at_s:.0f} s: {seen}")

    with Soak(plan, places) as soak:
        soak.run(say)
        ending = end(soak)
    for path in ending.files + ending.processes + ending.violations:
        console.print(f"left: {path}", markup=False)
    return rows_of(soak.course, ending, added_up(soak.tallies))


def _failed(given: argparse.Namespace, places: Places, console: Console) -> int:
    console.print(f"logs of daemon and workers: {places.work}; the disk tier: {places.disk}", markup=False)
    console.print(
        "the same choices again (the processes interleave anew each time): "
        f"make soak minutes={given.minutes:g} seed={given.seed} workers={given.workers}",
        markup=False,
    )
    return EXIT_WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soak", description="Workers and a daemon under random work and random kills."
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="default: another each time")
    parser.add_argument("--workers", type=int, default=6, help="worker processes (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON and Markdown there, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
