"""What a soak found, as rows of a report: figures of what was done, and targets for what must be so."""

from collections import Counter
from collections.abc import Iterator

from hybridkv.benchmarks.report import Better, Row
from hybridkv.benchmarks.soak import stage
from hybridkv.benchmarks.soak.ending import Ending
from hybridkv.benchmarks.soak.run import Course
from hybridkv.benchmarks.soak.tally import CALL_FREE, ERROR, OPERATION, VERIFIED_BLOCKS, VERIFIED_BYTES
from hybridkv.benchmarks.soak.trouble import Kind
from hybridkv.benchmarks.soak.watch import curve, growth

KILLS_PER_1E5 = 50.0
GROWTH_LIMIT = 1.05
LEAST_SPAN_S = 300.0
"""Over less time a process is still warming up, and its growth says nothing."""


def rows_of(course: Course, ending: Ending, tally: Counter[str]) -> list[Row]:
    """All figures; a row with a target that is not met is a failure."""
    return [*_done(course, tally), *_right(course, ending), *_bounded(course), *_seen(course, tally)]


def _done(course: Course, tally: Counter[str]) -> Iterator[Row]:
    operations = sum(count for name, count in tally.items() if name.startswith(OPERATION))
    kills = course.troubles[Kind.KILL_WORKER] + course.troubles[Kind.KILL_DAEMON]
    yield Row("duration", round(course.took_s, 1), "s")
    yield Row("operations", operations, "count")
    yield Row("kills in 10^5 operations", round(kills * 1e5 / max(1, operations), 1), "count", target=KILLS_PER_1E5)
    for kind in Kind:
        yield Row(kind.value, course.troubles[kind], "count")
    yield Row("blocks read and verified", tally[VERIFIED_BLOCKS], "count")
    yield Row("bytes verified", tally[VERIFIED_BYTES], "bytes")
    yield Row("blocks found by their translation, without a call", tally[CALL_FREE], "count")


def _right(course: Course, ending: Ending) -> Iterator[Row]:
    yield Row("checks of the accounting", course.samples.checks, "count")
    yield _none("violations at the end", len(ending.violations))
    yield Row("quiet after the last worker ended", round(ending.quiet_s, 2), "s")
    for name, count in ending.held.items():
        yield _none(f"{name} at the end", count)
    yield Row("blocks found at the end", ending.counts["found"], "count")
    yield Row("of them read at the end", ending.counts["read"], "count")
    yield _none("of them found, and not readable", ending.counts["phantom"])
    yield _none("of them with other bytes", ending.counts["wrong"])
    yield _none("regions, sockets and locks left", len(ending.files))
    yield _none("processes left", len(ending.processes))
    yield _none("tracebacks in the daemon's log", ending.tracebacks)


def _bounded(course: Course) -> Iterator[Row]:
    cap = float(stage.DISK_BYTES)
    yield Row("most bytes on disk", course.samples.disk_max_bytes, "bytes", cap, target=1.0, better=Better.LOWER)
    for age_s, nbytes in curve(course.samples):
        yield Row(f"daemon's own memory when it is {age_s:.0f} s old", nbytes, "bytes")
    grown = growth(course.samples)
    if grown is not None:
        target = GROWTH_LIMIT if grown.span_s >= LEAST_SPAN_S else None
        name = f"daemon's own memory at the end, beside {grown.span_s:.0f} s before"
        yield Row(name, grown.end_bytes, "bytes", grown.begin_bytes, target=target, better=Better.LOWER)


def _seen(course: Course, tally: Counter[str]) -> Iterator[Row]:
    """What came up on the way, for information."""
    for prefix, names in (("worker: ", tally), ("daemon: ", course.counters), ("moves: ", course.moves)):
        for name, count in sorted(names.items()):
            if count and (prefix != "worker: " or name.startswith((ERROR, OPERATION))):
                yield Row(prefix + name.removeprefix(OPERATION), count, "count")


def _none(name: str, count: float) -> Row:
    return Row(name, count, "count", target=0.0, better=Better.LOWER)
