"""`hybridkv bench`: what it prints and writes, its exit codes, and a tiny run of its migration suite."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from hybridkv.benchmarks import bench, disk_rates, foreground, lane_rates, policy_cost, thrash
from hybridkv.benchmarks.bench import Bench, Setting, Step
from hybridkv.benchmarks.cuda_lanes import rates as cuda_rates
from hybridkv.benchmarks.lane_rig import KIB, MIB, config_for
from hybridkv.benchmarks.machine import file_system, machine, machine_name
from hybridkv.benchmarks.migration_bench import BENCH
from hybridkv.benchmarks.panels import Panel
from hybridkv.benchmarks.report import Row, skipped
from hybridkv.service.cli import app

runner = CliRunner()


def _met(rows: Sequence[Row]) -> None:
    """Every row has a figure, and none a floor that is nothing."""
    assert all(row.value is not None and row.value > 0 for row in rows)
    assert all(row.floor is None or row.floor > 0 for row in rows)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark "toy" of two steps."""
    rows = [Row("fast", 3.0, "GB/s", 4.0, 0.7), skipped("cuda", "GB/s", "no GPU", 0.9)]
    steps = (Step("first", lambda _: rows), Step("second", lambda _: [Row("cost", 2.0, "µs")]))
    module = ModuleType("toy_bench")
    module.BENCH = Bench("toy", "a toy", steps, (Panel("p", "GB/s", ["x"], {"s": ["fast"]}),))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_bench", module)
    monkeypatch.setitem(bench.NAMES, "toy", "toy_bench")


@pytest.mark.usefixtures("toy")
def test_json_is_the_whole_report() -> None:
    result = runner.invoke(app, ["bench", "toy", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert [row["name"] for row in report["rows"]] == ["fast", "cuda", "cost"]
    assert report["machine"]["cpu_count"] > 0
    assert "numpy" in report["versions"]


@pytest.mark.usefixtures("toy")
def test_only_runs_the_steps_that_are_named() -> None:
    result = runner.invoke(app, ["bench", "toy", "--json", "--only", "second"])
    assert [row["name"] for row in json.loads(result.stdout)["rows"]] == ["cost"]


@pytest.mark.usefixtures("toy")
def test_out_writes_json_markdown_and_a_picture(tmp_path: Path) -> None:
    assert runner.invoke(app, ["bench", "toy", "--out", str(tmp_path / "r")]).exit_code == 0
    stem = tmp_path / "r" / f"toy-{machine_name()}"
    page = stem.with_suffix(".md").read_text()
    assert "| fast | 3 | GB/s | 4 | 0.75 | ≥ 0.7 | yes |" in page
    assert "Skipped: no GPU" in page
    assert "1 of 1 targets met." in page
    assert json.loads(stem.with_suffix(".json").read_text())["rows"][0]["met"] is True
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(("before", "extra", "code"), [(3.2, [], 0), (4.4, [], 1), (4.4, ["--threshold", "0.5"], 0)])
def test_against_an_earlier_run(tmp_path: Path, before: float, extra: list[str], code: int) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"rows": [Row("fast", before, "GB/s", 4.0).as_json()]}))
    result = runner.invoke(app, ["bench", "toy", "--against", str(old), *extra])
    assert result.exit_code == code
    assert ("worse by" in result.stdout) == bool(code)


@pytest.mark.usefixtures("toy")
def test_against_a_file_that_is_none(tmp_path: Path) -> None:
    result = runner.invoke(app, ["bench", "toy", "--against", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "against" in result.stderr


def test_an_installation_without_benchmarks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridkv.service.cli.bench.BENCH_MODULE", "hybridkv.no_benchmarks")
    result = runner.invoke(app, ["bench", "toy"])
    assert result.exit_code == 2
    assert "not part of this installation" in result.stderr


def test_the_machine_is_named(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert found["memory_bytes"] > 1 << 20
    assert found["file_system"] == file_system(tmp_path) != "unknown"
    assert machine_name().endswith(f"-{found['cpu_count']}c")
    assert machine_name().replace("-", "").isalnum()


def test_names_of_steps_and_rows_are_distinct() -> None:
    names = [step.name for step in BENCH.steps]
    assert len(names) == len(set(names)) > 40


def test_lanes_of_host_memory(tmp_path: Path) -> None:
    rows = lane_rates.rates(Setting(tmp_path, 1), 64 * KIB, MIB)
    _met(rows)
    assert {row.target for row in rows} == {0.7, None}
    assert len({row.name for row in rows}) == len(rows) == 6


def test_lanes_of_the_disk_tier(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "r").mkdir()
    rows = disk_rates.written(Setting(tmp_path / "w", 1), 64 * KIB, MIB)
    rows += disk_rates.read(Setting(tmp_path / "r", 1), 64 * KIB, MIB)
    _met(rows)
    assert [row.target for row in rows] == [0.7, None, 0.4, None, 0.8, None]


def test_the_cost_of_a_policy(tmp_path: Path) -> None:
    rows = policy_cost.costs(Setting(tmp_path, 1), "lru", 2000)
    _met(rows)
    assert [row.target for row in rows] == [None, None]


def test_what_a_storm_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground, "STORM_BYTES", 4 * MIB)
    monkeypatch.setattr(foreground, "POOL_BYTES", 32 * MIB)
    rows = foreground.acquires(Setting(tmp_path, 1), calls=5)
    assert [row.target for row in rows] == [None, None, None, 3.0, 0.5] * 2
    assert all(row.value is not None for row in rows)


def test_thrashing_settles(tmp_path: Path) -> None:
    (row,) = thrash.background(Setting(tmp_path, 1))
    assert row.value is not None
    assert row.met


def test_cuda_rows_are_skipped_with_the_reason_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridkv.benchmarks.cuda_lanes.DEVICE", "cuda:99")
    rows = cuda_rates(Setting(tmp_path, 1))
    assert all(row.skipped and not row.met for row in rows)


def test_a_rig_is_quiet(tmp_path: Path) -> None:
    config = config_for(tmp_path, gpu_bytes=MIB, cpu_bytes=MIB, migration__batch_bytes=64 * KIB)
    assert config.cpu.high_watermark == config.gpu.high_watermark == 1.0
    assert config.migration.promote_at_accesses == 0
    assert config.migration.batch_bytes == 64 * KIB


def test_every_benchmark_has_its_module() -> None:
    assert {"rpc", "data", "directory", "compare", "migration", "paging", "serving"} <= bench.NAMES.keys()
    for name, module in bench.NAMES.items():
        assert importlib.import_module(module).BENCH.name == name
