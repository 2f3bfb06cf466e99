"""What is sampled while a soak runs: bytes on disk, the daemon's own memory, and whether its accounting holds."""

import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_S = 0.5
CHECK_EVERY = 4
"""Samples between two checks of the accounting."""


def private_bytes(pid: int) -> int:
    """Memory that is the process's own: no file, no shared memory, so neither a tier's region nor what LMDB maps."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/{pid}/status has no RssAnon")
    return int(found[1]) << 10


@dataclass(slots=True)
class Samples:
    """`memory`: (seconds since the start, private bytes, which start of the daemon), oldest first."""

    memory: list[tuple[float, int, int]] = field(default_factory=list)
    disk_max_bytes: int = 0
    checks: int = 0


@dataclass(frozen=True, slots=True)
class Growth:
    """The daemon's own memory in the second half: medians over its first and its last fifth, of one and the same process."""

    begin_bytes: float
    end_bytes: float
    span_s: float


def curve(samples: Samples, points: int = 8) -> list[tuple[float, int]]:
    """(age in seconds, private bytes) of the process that lives at the end, at a few times of its life."""
    if not samples.memory:
        return []
    own = [(at_s, nbytes) for at_s, nbytes, start in samples.memory if start == samples.memory[-1][2]]
    chosen = sorted({round(i * (len(own) - 1) / (points - 1)) for i in range(points)})
    return [(own[i][0] - own[0][0], own[i][1]) for i in chosen]


def growth(samples: Samples) -> Growth | None:
    """Of the process that lives at the end, over the second half of all samples; None when it did not live through it."""
    if not samples.memory:
        return None
    last_start, half_s = samples.memory[-1][2], samples.memory[-1][0] / 2
    half = [(at_s, nbytes) for at_s, nbytes, start in samples.memory if at_s >= half_s and start == last_start]
    late = sum(at_s >= half_s for at_s, _, _ in samples.memory)
    if len(half) < 10 or len(half) < late:
        return None
    fifth = len(half) // 5
    begin, end = ([nbytes for _, nbytes in part] for part in (half[:fifth], half[-fifth:]))
    return Growth(statistics.median(begin), statistics.median(end), half[-1][0] - half[0][0])
