"""On what a benchmark ran: the machine as far as figures depend on it, and the versions of what they depend on."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hybridkv.version import __version__

PACKAGES = ("numpy", "torch", "lmdb", "grpcio", "xxhash")
_NOISE = re.compile(r"\(r\)|\(tm\)|cpu|processor|core|@.*|[^a-z0-9]+")


def machine(disk: Path | None = None) -> dict[str, Any]:
    """Processor, memory, kernel, how busy it was at the start, and the file system under `disk`."""
    found: dict[str, Any] = {
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "load_1min": round(os.getloadavg()[0], 2),
    }
    if disk is not None:
        found["file_system"] = file_system(disk)
    return found


def versions() -> dict[str, str]:
    """Versions of this package, Python, and of what the figures depend on."""
    found = {"hybridkv": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine_name() -> str:
    """The machine in a few letters that may stand in a file name: "amd-epyc-2c"."""
    words = _NOISE.sub("-", cpu_model().lower()).strip("-")
    return f"{words or 'unknown'}-{os.cpu_count()}c"


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def file_system(path: Path) -> str:
    """Type of the file system that `path` lies on: "ext4"."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    real = path.resolve()
    over = [(len(at), kind) for _, at, kind, *_ in mounts if real.is_relative_to(at)]
    return max(over)[1] if over else "unknown"
