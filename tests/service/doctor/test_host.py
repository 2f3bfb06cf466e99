"""The doctor on hosts: limits that are too small are named, and what cannot be read is left out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridkv.migration.pressure import MemoryReading
from hybridkv.service.config import Config, config_values
from hybridkv.service.doctor.findings import Severity
from hybridkv.service.doctor.host import HostFacts, Place, Taken, host_findings, read_host

GIB = 1 << 30
CONFIG = config_values(Config()) | {"cpu.capacity_bytes": 4 * GIB, "disk.path": "/data", "disk.capacity_bytes": 8 * GIB}
GOOD = HostFacts(
    machine="x86_64",
    shared_memory=Place("/dev/shm", "tmpfs", 8 * GIB, True),
    disk=Place("/data", "ext4", 100 * GIB, True),
    locked_bytes=65_536,
    may_lock_more=False,
    files=65_536,
    memory=(MemoryReading("host", 64 * GIB, 8 * GIB),),
    cpus=None,
)

HOSTS: list[tuple[dict[str, Any], dict[str, Any], str, Severity]] = [
    ({"shared_memory": Place("/dev/shm", "tmpfs", GIB, True)}, {}, "shared memory", Severity.BAD),
    ({"shared_memory": Place("/dev/shm", "tmpfs", 8 * GIB, False)}, {}, "shared memory", Severity.BAD),
    ({"shared_memory": Place("/tmp", "ext4", 8 * GIB, True)}, {}, "shared memory", Severity.ADVICE),
    ({"memory": (MemoryReading("host", 8 * GIB, 6 * GIB),)}, {}, "memory", Severity.BAD),
    ({"memory": (MemoryReading("cgroup /a", 2 * GIB, 0),)}, {}, "cgroup memory", Severity.BAD),
    ({}, {"cpu.page_lock": "on"}, "locked memory", Severity.BAD),
    ({}, {"gpu.devices": ("cuda:0",)}, "locked memory", Severity.ADVICE),
    ({"disk": Place("/data", "ext4", GIB, True)}, {}, "disk", Severity.BAD),
    ({"disk": Place("/data", "ext4", 100 * GIB, False)}, {}, "disk", Severity.BAD),
    ({"disk": Place("/data", "nfs4", 100 * GIB, True)}, {}, "disk", Severity.BAD),
    ({"disk": Place("/data", "tmpfs", 100 * GIB, True)}, {}, "disk", Severity.ADVICE),
    ({"machine": "aarch64"}, {}, "processor", Severity.ADVICE),
    ({"compiled_copies": False}, {}, "installation", Severity.ADVICE),
    ({"files": 256}, {}, "open files", Severity.ADVICE),
    ({"cpus": 0.5}, {}, "cgroup cpu", Severity.ADVICE),
]


@pytest.mark.parametrize(("facts", "config", "rule", "severity"), HOSTS)
def test_what_is_too_small_is_named(
    facts: dict[str, Any], config: dict[str, Any], rule: str, severity: Severity
) -> None:
    found = host_findings(replace(GOOD, **facts), CONFIG | config)
    assert [(finding.rule, finding.severity) for finding in found] == [(rule, severity)]
    assert set(found[0].keys) <= set(CONFIG)


@pytest.mark.parametrize(
    ("facts", "config"),
    [
        ({}, {}),
        ({"disk": None}, {"disk.path": ""}),
        ({"may_lock_more": True}, {"cpu.page_lock": "on"}),
        ({"locked_bytes": None}, {"gpu.devices": ("cuda:0",)}),
        ({}, {"gpu.devices": ("cuda:0",), "cpu.page_lock": "off"}),
        ({"shared_memory": Place("/dev/shm", None, None, True), "memory": ()}, {}),
    ],
)
def test_nothing_is_said_of_a_good_host(facts: dict[str, Any], config: dict[str, Any]) -> None:
    assert host_findings(replace(GOOD, **facts), CONFIG | config) == []


def test_pools_of_host_devices_need_shared_memory_too() -> None:
    config = CONFIG | {"gpu.devices": ("host:0", "host:1"), "gpu.capacity_bytes": 3 * GIB}
    assert [finding.rule for finding in host_findings(GOOD, config)] == ["shared memory"]


def test_what_a_daemon_has_already_it_does_not_need_again() -> None:
    facts = replace(GOOD, shared_memory=Place("/dev/shm", "tmpfs", GIB, True), disk=Place("/data", "ext4", GIB, True))
    assert len(host_findings(facts, CONFIG)) == 2
    assert host_findings(facts, CONFIG, Taken(memory_bytes=3 * GIB, disk_bytes=7 * GIB)) == []


def test_reading_a_host(tmp_path: Path) -> None:
    proc, cgroup, data = tmp_path / "proc", tmp_path / "cgroup", tmp_path / "data"
    (proc / "self").mkdir(parents=True)
    cgroup.mkdir()
    data.mkdir()
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    (proc / "self" / "mounts").write_text(f"a / ext4 rw 0 0\nb {data} nfs4 rw 0 0\nc {data}x tmpfs rw 0 0\n")
    (proc / "self" / "status").write_text("Name: x\nCapEff: 0000000000004000\n")
    (cgroup / "cpu.max").write_text("150000 100000\n")
    facts = read_host(CONFIG | {"cpu.shm_dir": str(tmp_path), "disk.path": f"{data}/not/there"}, proc, cgroup)
    assert facts.shared_memory.file_system == "ext4"
    assert facts.disk is not None
    assert (facts.disk.file_system, facts.disk.writable) == ("nfs4", True)
    assert facts.may_lock_more
    assert facts.cpus == 1.5
    assert facts.memory == (MemoryReading("host", 1000 * 1024, 600 * 1024),)


def test_a_host_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    facts = read_host(CONFIG | {"cpu.shm_dir": str(tmp_path)}, tmp_path / "none", tmp_path / "none")
    assert (facts.cpus, facts.memory, facts.may_lock_more, facts.shared_memory.file_system) == (None, (), False, None)
