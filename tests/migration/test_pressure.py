"""Readings from made-up /proc and /sys trees, and the rule that judges them."""

from pathlib import Path

import pytest

from hybridkv.migration.pressure import MemoryReading, PressureMarks, judge, read_host_memory

GIB = 1 << 30
MARKS = PressureMarks(high=0.9, low=0.8)


class Tree:
    """A /proc and a cgroup mount under `root`."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()

    def host(self, total_gib: int, available_gib: int) -> None:
        kib = GIB // 1024
        text = f"MemTotal: {total_gib * kib} kB\nMemFree: 1 kB\nMemAvailable: {available_gib * kib} kB\n"
        (self.proc / "meminfo").write_text(text)

    def member(self, line: str) -> None:
        (self.proc / "self" / "cgroup").write_text(line + "\n")

    def group(self, path: str, **files: object) -> None:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / f"memory.{name}").write_text(f"{value}\n")

    def read(self) -> list[MemoryReading]:
        return read_host_memory(self.proc, self.cgroup)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_every_limit_from_the_process_up_to_the_root_is_read(tree: Tree) -> None:
    tree.host(64, 16)
    tree.member("0::/pod/box")
    tree.group("pod/box", max="max", current=GIB)
    tree.group("pod", max=8 * GIB, current=6 * GIB, stat=f"anon 1\ninactive_file {GIB}")
    tree.group("", current=7 * GIB)
    assert tree.read() == [MemoryReading("host", 64 * GIB, 48 * GIB), MemoryReading("cgroup /pod", 8 * GIB, 5 * GIB)]


def test_the_smaller_of_max_and_high_is_the_limit(tree: Tree) -> None:
    tree.member("0::/")
    tree.group("", max=8 * GIB, high=4 * GIB, current=GIB)
    assert tree.read() == [MemoryReading("cgroup /", 4 * GIB, GIB)]


def test_a_path_outside_the_namespace_is_read_from_the_mount(tree: Tree) -> None:
    tree.member("0::/../../box")
    tree.group("box", max=2 * GIB, current=GIB)
    assert [reading.source for reading in tree.read()] == ["cgroup /box"]


@pytest.mark.parametrize("line", ["4:memory:/user.slice\n1:name=systemd:/", "", "0::/gone"])
def test_version_1_or_no_cgroup_leaves_the_host(tree: Tree, line: str) -> None:
    tree.host(64, 16)
    tree.member(line)
    assert [reading.source for reading in tree.read()] == ["host"]


def test_nothing_to_read_is_no_pressure(tree: Tree) -> None:
    assert tree.read() == []
    signal = judge([], MARKS, before=True)
    assert (signal.under_pressure, signal.return_bytes, signal.tightest) == (False, 0, None)


def test_this_machine_can_be_read() -> None:
    for reading in read_host_memory():
        assert reading.limit_bytes > 0
        assert reading.used_bytes >= 0


def test_pressure_begins_above_high_and_ends_at_low() -> None:
    state, seen = False, []
    for used in (80, 90, 91, 85, 81, 80, 85):
        state = judge([MemoryReading("host", 100, used)], MARKS, state).under_pressure
        seen.append(state)
    assert seen == [False, False, True, True, True, False, False]


def test_bytes_to_return_bring_the_worst_source_down_to_low() -> None:
    host, box = MemoryReading("host", 1000, 950), MemoryReading("cgroup /box", 100, 99)
    signal = judge([box, host], MARKS, before=False)
    assert (signal.return_bytes, signal.tightest) == (150, host)
    assert judge([box], MARKS, before=False).return_bytes == 19


def test_without_pressure_the_tightest_source_is_named() -> None:
    host, box = MemoryReading("host", 1000, 100), MemoryReading("cgroup /box", 100, 50)
    signal = judge([host, box], MARKS, before=False)
    assert (signal.under_pressure, signal.tightest) == (False, box)


def test_marks_of_one_are_off() -> None:
    assert not judge([MemoryReading("host", 100, 100)], PressureMarks(1.0, 1.0), before=True).under_pressure


def test_a_limit_of_nothing_is_full() -> None:
    assert MemoryReading("cgroup /", 0, 0).used_fraction == 1.0
