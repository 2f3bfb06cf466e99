"""The directory's benchmark at a tiny size: every row has a figure."""

from pathlib import Path

from hybridkv.benchmarks import directory_bench
from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.report import Row


def _names(rows: list[Row]) -> list[str]:
    assert all(row.value is not None and row.value > 0 for row in rows)
    return [row.name for row in rows]


def test_speeds(tmp_path: Path) -> None:
    rows = directory_bench.speeds(Setting(tmp_path, 1), few=2000, many=6000)
    assert _names(rows) == [
        directory_bench.speed_name(name, 6000) for name in ("random lookup", "lookup of unknown keys", "seal", "evict")
    ]
    assert [row.target for row in rows] == [0.12, 0.12, 0.4, 0.4]


def test_restart_planning_and_heap(tmp_path: Path) -> None:
    setting = Setting(tmp_path, 1)
    assert len(_names(directory_bench.restart(setting, count=2000))) == 1
    assert [row.target for row in directory_bench.planning(setting, count=2000)] == [10.0, 10.0]
    assert len(_names(directory_bench.heap(setting, few=2000, many=3000))) == 6
