"""`hybridkv demo`: a daemon, four workers and a real workload on this machine, then two faults; says what it found.

The trace is handed to the workers request by request, see `demo_crew.Crew.serve`; what a worker does with one is in
`demo_request.py`, the faults in `demo_faults.py`, and what counts as success in `demo_report.py`.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hybridkv.benchmarks.demo_crew import Crew
from hybridkv.benchmarks.demo_daemon import DemoDaemon
from hybridkv.benchmarks.demo_faults import Finding, kill_daemon, kill_worker, stop_daemon
from hybridkv.benchmarks.demo_plot import plot
from hybridkv.benchmarks.demo_replay import Replay, replay
from hybridkv.benchmarks.demo_report import Report, Thresholds
from hybridkv.benchmarks.demo_setup import make_places, sizes_for
from hybridkv.benchmarks.workload import TAU_BENCH, Request, infinite_hits, load_trace, unique_count
from hybridkv.service.admin_client import AdminClient

EXIT_OK, EXIT_FOUND_WANTING = 0, 1


@dataclass(frozen=True, slots=True)
class Options:
    """What to run. `requests`: how many of the trace; `out`: where the picture goes."""

    requests: int = 500
    workers: int = 4
    out: Path = Path("demo-out")
    thresholds: Thresholds = field(default_factory=Thresholds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo as the command line says; 0 when everything held that must hold, else 1."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.requests < 1 or given.workers < 2:
        parser.error("--requests must be at least 1, --workers at least 2: one is killed, another reads afterwards")
    console = Console(stderr=given.json)
    options = Options(given.requests, given.workers, given.out, Thresholds(min_served=given.min_served))
    with _ended_by_sigterm():
        report = run(options, console)
    if given.json:
        json.dump(report.as_json(), sys.stdout, indent=2)
        print()
    else:
        report.print(console)
    return EXIT_OK if report.ok else EXIT_FOUND_WANTING


def run(options: Options, console: Console) -> Report:
    """Replay and faults. Raises UnavailableError, with what they said, when the daemon or a worker fails to work."""
    began = time.monotonic()
    requests = load_trace(TAU_BENCH, options.requests)
    sizes = sizes_for(unique_count(requests))
    with ExitStack() as cleanup:
        places = make_places(sizes)
        cleanup.callback(places.remove)
        daemon = DemoDaemon(places, sizes)
        cleanup.callback(daemon.close)
        console.print(f"daemon on {places.address}, ready after {daemon.start():.1f} s; disk tier in {places.disk}")
        found, findings = _work(options, requests, daemon, console)
    infinite = infinite_hits(requests)
    wall_s = time.monotonic() - began
    picture = options.out / "demo.png"
    if plot(found.samples, picture):
        console.print(f"plot: {picture}")
    else:
        console.print("no plot: matplotlib is not installed (pip install 'hybridkv\\[plot]')")
    return Report(sizes, options.workers, infinite, found, findings, options.thresholds, wall_s)


def _work(
    options: Options, requests: Sequence[Request], daemon: DemoDaemon, console: Console
) -> tuple[Replay, list[Finding]]:
    """What needs the processes: the replay, then the faults."""
    address, logs = daemon.places.address, daemon.places.work
    with Crew(options.workers, address, TAU_BENCH, options.requests, logs) as crew:
        with AdminClient(address) as admin, _progress(len(requests), console) as on_request:
            found = replay(crew, requests, admin, on_request)
        with console.status("killing a worker in the middle of a write"):
            findings = kill_worker(crew, address)
        with console.status("killing the daemon and starting it again on its disk"):
            findings += kill_daemon(crew, daemon, requests)
        with console.status("stopping the daemon"):
            findings += stop_daemon(daemon)
    return found, findings


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, with its processes and files."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(total: int, console: Console) -> Iterator[Callable[[Replay], None]]:
    """A bar over the requests, with the hits so far."""
    hits = TextColumn("hits: gpu {task.fields[gpu]:,}  cpu {task.fields[cpu]:,}  disk {task.fields[disk]:,}")
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), hits)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("requests", total=total, gpu=0, cpu=0, disk=0)

        def advance(found: Replay) -> None:
            fields: dict[str, Any] = dict(found.hits)
            progress.update(task, completed=found.requests, **fields)

        yield advance


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hybridkv demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=500, help="how many of the trace's 500 (default: all)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: 4)")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder of the plot (default: ./demo-out)")
    parser.add_argument(
        "--min-served",
        type=int,
        default=Thresholds().min_served,
        metavar="BLOCKS",
        help="fail unless each tier served so many (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser
