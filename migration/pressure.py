"""Is memory short? Readings of the host and of the cgroups above this process, and the pure rule that judges them.

Reading opens files under /proc and /sys: never call it under the directory's lock. The limit of a cgroup is the smaller
of memory.max and memory.high; its inactive file cache does not count as used, since the kernel drops it when asked.
Version 1 cgroups are not read: with them the host's figures alone decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridkv.migration.hysteresis import latched

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Use of one limit. `source` names it: "host", a cgroup's path, or a device."""

    source: str
    limit_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def used_fraction(self) -> float:
        return self.used_bytes / self.limit_bytes if self.limit_bytes > 0 else 1.0


@dataclass(frozen=True, slots=True)
class PressureMarks:
    """Used fractions: pressure begins above `high` and ends when every reading is at or below `low`. 1.0 is off."""

    high: float
    low: float


@dataclass(frozen=True, slots=True)
class PressureSignal:
    """The judgement: `return_bytes` is what would bring `tightest` down to the low mark (0 when not under pressure)."""

    under_pressure: bool
    return_bytes: int
    tightest: MemoryReading | None


def read_host_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> list[MemoryReading]:
    """The host's reading, and one for each cgroup v2 with a limit from this process up to the root; what is there."""
    host = _read_meminfo(proc / "meminfo")
    return ([host] if host else []) + _read_cgroups(proc / "self" / "cgroup", cgroup)


def judge(readings: Sequence[MemoryReading], marks: PressureMarks, before: bool) -> PressureSignal:
    """Pure. `before`: were we under pressure at the last judgement (hysteresis between the marks)."""
    tightest = min(readings, key=lambda reading: reading.free_bytes, default=None)
    excess = {
        reading: reading.used_bytes - int(marks.low * reading.limit_bytes)
        for reading in readings
        if latched(reading.used_fraction, high=marks.high, low=marks.low, before=before)
    }
    if not excess:
        return PressureSignal(False, 0, tightest)
    worst = max(excess, key=excess.__getitem__)
    return PressureSignal(True, excess[worst], worst)


def _read_meminfo(path: Path) -> MemoryReading | None:
    fields = _read_table(path, separator=":")
    total, available = fields.get("MemTotal"), fields.get("MemAvailable")
    if total is None or available is None:
        return None
    return MemoryReading("host", total * 1024, max(0, total - available) * 1024)


def _read_cgroups(membership: Path, root: Path) -> list[MemoryReading]:
    path = next((line[3:] for line in _read_lines(membership) if line.startswith("0::")), None)
    if path is None:
        return []
    # A process outside its cgroup namespace's root sees "/../..": what it can read begins at the mount.
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    folders = [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    readings = (_read_cgroup(folder, "/" + folder.relative_to(root).as_posix().lstrip(".")) for folder in folders)
    return [reading for reading in readings if reading is not None]


def _read_cgroup(folder: Path, name: str) -> MemoryReading | None:
    limits = [limit for file in ("memory.max", "memory.high") if (limit := _read_number(folder / file)) is not None]
    current = _read_number(folder / "memory.current")
    if not limits or current is None:
        return None
    cache = _read_table(folder / "memory.stat", separator=" ").get("inactive_file", 0)
    return MemoryReading(f"cgroup {name}", min(limits), max(0, current - cache))


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # absent or unreadable: this source says nothing, the others still do
        return []


def _read_number(path: Path) -> int | None:
    """The number in a one-line file; None where it is absent or says "max"."""
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _read_table(path: Path, separator: str) -> dict[str, int]:
    """Lines of "name<separator>number [unit]"."""
    pairs = (line.split(separator, 1) for line in _read_lines(path) if separator in line)
    return {name: int(words[0]) for name, rest in pairs if (words := rest.split()) and words[0].isdigit()}
