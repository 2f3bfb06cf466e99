"""The host as far as a daemon depends on it: what was read of it, and the rules over that. Reading is apart from judging."""

import os
import platform
import resource
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridkv.migration.pressure import CGROUP, PROC, MemoryReading, read_host_memory
from hybridkv.service.doctor.findings import Finding, Severity
from hybridkv.tiers.device import memcopy

Config = Mapping[str, Any]

NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre"})
MEMORY_FILESYSTEMS = frozenset({"tmpfs", "hugetlbfs", "ramfs"})
MIN_FILES = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, or the nearest one above it that exists; None for what could not be read."""

    path: str
    file_system: str | None
    free_bytes: int | None
    writable: bool


@dataclass(frozen=True, slots=True)
class HostFacts:
    """`locked_bytes` None: no limit. `cpus`: what the cgroup grants, None: no quota. `disk` None: no disk tier.
    `compiled_copies`: this installation has the compiled copy loop."""

    machine: str
    shared_memory: Place
    disk: Place | None
    locked_bytes: int | None
    may_lock_more: bool
    files: int
    memory: tuple[MemoryReading, ...]
    cpus: float | None
    compiled_copies: bool = True


@dataclass(frozen=True, slots=True)
class Taken:
    """What a running daemon has already: it does not need it again."""

    memory_bytes: int = 0
    disk_bytes: int = 0


def read_host(config: Config, proc: Path = PROC, cgroup: Path = CGROUP) -> HostFacts:
    """Reads files and limits of this host; changes nothing."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    mounts = _mounts(proc)
    return HostFacts(
        machine=platform.machine(),
        shared_memory=_place(str(config["cpu.shm_dir"]), mounts),
        disk=_place(str(config["disk.path"]), mounts) if config.get("disk.path") else None,
        locked_bytes=None if soft == resource.RLIM_INFINITY else soft,
        may_lock_more=_may_lock(proc),
        files=files,
        memory=tuple(read_host_memory(proc, cgroup)),
        cpus=_cpus(cgroup),
        compiled_copies=memcopy.is_compiled(),
    )


def host_findings(facts: HostFacts, config: Config, taken: Taken = Taken()) -> list[Finding]:
    """All rules over the host. Pure."""
    return [
        *_shared_memory(facts, config, taken),
        *_memory(facts, config, taken),
        *_locked(facts, config),
        *_disk(facts, config, taken),
        *_limits(facts),
    ]


def _shared_memory(facts: HostFacts, config: Config, taken: Taken) -> Iterator[Finding]:
    place, need = facts.shared_memory, _memory_need(config, taken)
    if not place.writable:
        yield Finding(
            Severity.BAD, "shared memory", place.path, "is no directory that this user may write to",
            "name another directory on shared memory", ("cpu.shm_dir",),
        )  # fmt: skip
        return
    if place.free_bytes is not None and place.free_bytes < need:
        yield Finding(
            Severity.BAD, "shared memory", place.path,
            f"{place.free_bytes:,} bytes are free, the tiers in memory may still need {need:,}",
            "make it larger (mount -o remount,size=…; --shm-size for a container), or the tiers smaller",
            ("cpu.capacity_bytes", "gpu.capacity_bytes", "cpu.shm_dir"),
            {"free_bytes": place.free_bytes, "needed_bytes": need},
        )  # fmt: skip
    if place.file_system is not None and place.file_system not in MEMORY_FILESYSTEMS:
        yield Finding(
            Severity.ADVICE, "shared memory", place.path, f"is on {place.file_system}, not on memory",
            "blocks would be written back to a disk: name a directory on tmpfs", ("cpu.shm_dir",),
        )  # fmt: skip


def _memory(facts: HostFacts, config: Config, taken: Taken) -> Iterator[Finding]:
    need = _memory_need(config, taken)
    for reading in facts.memory:
        if reading.free_bytes < need:
            name = "cgroup memory" if reading.source.startswith("cgroup") else "memory"
            yield Finding(
                Severity.BAD, name, reading.source,
                f"{reading.free_bytes:,} of {reading.limit_bytes:,} bytes are free, the tiers may still need {need:,}",
                "make the tiers smaller, or raise the limit; below it the kernel ends processes",
                ("cpu.capacity_bytes", "migration.host_pressure_high", "cpu.min_bytes"),
                {"free_bytes": reading.free_bytes, "limit_bytes": reading.limit_bytes, "needed_bytes": need},
            )  # fmt: skip


def _locked(facts: HostFacts, config: Config) -> Iterator[Finding]:
    mode = config.get("cpu.page_lock", "auto")
    cuda = any(str(device).startswith("cuda") for device in config.get("gpu.devices", ()))
    if mode == "off" or not (cuda or mode == "on") or facts.locked_bytes is None or facts.may_lock_more:
        return
    need = int(config["cpu.capacity_bytes"])
    if facts.locked_bytes < need:
        yield Finding(
            Severity.BAD if mode == "on" else Severity.ADVICE, "locked memory", "RLIMIT_MEMLOCK",
            f"{facts.locked_bytes:,} bytes may be locked, the CPU tier is {need:,}",
            "raise the limit (ulimit -l, LimitMEMLOCK=infinity), or do without page-locking: copies to a GPU are slower then",
            ("cpu.page_lock", "cpu.capacity_bytes"), {"limit_bytes": facts.locked_bytes, "needed_bytes": need},
        )  # fmt: skip


def _disk(facts: HostFacts, config: Config, taken: Taken) -> Iterator[Finding]:
    place = facts.disk
    if place is None:
        return
    need = max(0, int(config["disk.capacity_bytes"]) - taken.disk_bytes)
    if not place.writable:
        yield Finding(
            Severity.BAD, "disk", place.path, "is no directory that this user may write to or make",
            "name another directory", ("disk.path",),
        )  # fmt: skip
        return
    if place.free_bytes is not None and place.free_bytes < need:
        yield Finding(
            Severity.BAD, "disk", place.path, f"{place.free_bytes:,} bytes are free, the tier may still need {need:,}",
            "make the tier smaller, or name a directory with more room: a full disk turns the tier off",
            ("disk.capacity_bytes", "disk.path"), {"free_bytes": place.free_bytes, "needed_bytes": need},
        )  # fmt: skip
    if place.file_system in NETWORK_FILESYSTEMS:
        yield Finding(
            Severity.BAD, "disk", place.path, f"is on {place.file_system}: LMDB needs a local file system",
            "name a directory on a local disk", ("disk.path",),
        )  # fmt: skip
    if place.file_system in MEMORY_FILESYSTEMS:
        yield Finding(
            Severity.ADVICE, "disk", place.path, f"is on {place.file_system}: it takes memory and ends with the host",
            "name a directory on a disk, or make the CPU tier larger instead", ("disk.path",),
        )  # fmt: skip


def _limits(facts: HostFacts) -> Iterator[Finding]:
    if facts.machine not in ("x86_64", "AMD64"):
        yield Finding(
            Severity.ADVICE, "processor", facts.machine, "call-free reads need x86-64", "reads make a call each here"
        )
    if not facts.compiled_copies:
        yield Finding(
            Severity.ADVICE, "installation", "hybridkv.tiers.device", "the copy loop was not compiled when it was installed",
            "install a C compiler and Python's headers, then hybridkv again (make clean setup, or pip install "
            "--force-reinstall --no-cache-dir): a system call copies batches here, at 0.7 to 0.9 of the rate",
        )  # fmt: skip
    if facts.files < MIN_FILES:
        yield Finding(
            Severity.ADVICE, "open files", "RLIMIT_NOFILE", f"{facts.files} files may be open",
            f"raise the limit to {MIN_FILES} (ulimit -n): workers and segments take some each", (),
            {"limit": facts.files},
        )  # fmt: skip
    if facts.cpus is not None and facts.cpus < 2:
        yield Finding(
            Severity.ADVICE, "cgroup cpu", "cpu.max", f"{facts.cpus:.2g} processors are granted",
            "copies and calls share them: grant two, or lower the cap on background copies",
            ("migration.background_bytes_per_s",), {"cpus": facts.cpus},
        )  # fmt: skip


def _memory_need(config: Config, taken: Taken) -> int:
    """Bytes of shared memory the tiers may still grow by: pools of host devices lie there, too."""
    hosts = sum(str(device).startswith("host") for device in config.get("gpu.devices", ()))
    whole = int(config["cpu.capacity_bytes"]) + hosts * int(config["gpu.capacity_bytes"])
    return max(0, whole - taken.memory_bytes)


def _place(path: str, mounts: list[tuple[str, str]]) -> Place:
    there = Path(path)
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError:  # the rules say nothing about what cannot be read
        free = None
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return Place(path, _file_system(there, mounts), free, writable)


def _file_system(path: Path, mounts: list[tuple[str, str]]) -> str | None:
    """The kind of the file system that `path` is on: that of the longest mount point above it, the last mounted one."""
    real = os.path.realpath(path)
    best: tuple[int, str] | None = None
    for point, kind in mounts:
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= best[0]):
            best = (len(point), kind)
    return best[1] if best else None


def _mounts(proc: Path) -> list[tuple[str, str]]:
    """(mount point, kind) of every mount."""
    fields = (line.split() for line in _lines(proc / "self" / "mounts"))
    return [(words[1].replace("\\040", " "), words[2]) for words in fields if len(words) > 2]


def _may_lock(proc: Path) -> bool:
    """CAP_IPC_LOCK (14): the limit does not apply."""
    line = next((line for line in _lines(proc / "self" / "status") if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(line.split()[1], 16) >> 14 & 1)


def _cpus(cgroup: Path) -> float | None:
    words = " ".join(_lines(cgroup / "cpu.max")).split()
    if len(words) != 2 or not words[0].isdigit() or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # absent here: this source says nothing
        return []
