"""The GPU check, as far as it runs without a GPU."""

import json
from pathlib import Path

import pytest

from hybridkv.benchmarks import copy_rates, gpu_check
from hybridkv.benchmarks.report import Row, print_table, write_json
from hybridkv.tiers.device.host import HostDevice
from hybridkv.tiers.errors import UnavailableError


def test_without_a_gpu_it_says_so_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cuda:99"]) == gpu_check.NO_GPU
    assert "needs a GPU" in capsys.readouterr().err


def test_its_steps_on_the_host_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the conformance suite, which needs the GPU."""
    monkeypatch.setattr(gpu_check, "RATE_BYTES", 4 << 20)
    monkeypatch.setattr(copy_rates, "TARGETS", {})
    monkeypatch.setattr(copy_rates, "BOTH_TARGET", None)
    monkeypatch.setattr(gpu_check, "conformance", lambda _: [Row("conformance tests passed", 9.0, "tests", 10.0, 1.0)])
    report = tmp_path / "r.json"
    assert gpu_check.main(["--device", "host:0", "--json", str(report)]) == gpu_check.NOT_MET
    rows = {row["name"]: row for row in json.loads(report.read_text())["rows"]}
    assert rows["blocks a second process read right"]["met"]
    assert rows["blocks it wrote, read right behind its event"]["met"]
    assert not rows["conformance tests passed"]["met"]
    assert "gpu-check on host-0" in capsys.readouterr().out


def test_rates_come_with_their_floor() -> None:
    device = HostDevice()
    rows = copy_rates.measure(copy_rates.prepare(device, 4 << 20), repeats=1)
    device.close()
    by_name = {row.name: row for row in rows}
    floor = by_name["to_device, one copy of 4 MiB"]
    assert floor.target is None
    assert floor.met is None
    assert by_name["to_device, 256 KiB blocks"].floor == floor.value
    assert by_name["to_host, 16 KiB blocks"].target == 0.6
    assert by_name["both at once, 2048 KiB blocks"].target == 1.6
    assert len(rows) == 2 * (1 + len(copy_rates.BLOCK_BYTES)) + 1
    assert all((row.value or 0.0) > 0 for row in rows)


def test_a_copy_that_fails_ends_the_measurement() -> None:
    device = HostDevice()
    setting = copy_rates.prepare(device, 4 << 20)
    device.streams[0].fail_next(UnavailableError("gone"))
    with pytest.raises(UnavailableError, match="gone"):
        copy_rates.measure(setting, repeats=1)
    device.close()


def test_rows_know_whether_they_are_met() -> None:
    assert Row("a", 9.0, "GB/s", 10.0, 0.9).met is True
    assert Row("a", 8.9, "GB/s", 10.0, 0.9).met is False
    assert Row("a", 1.0, "", None, 1.0).met is True
    assert Row("a", 1.0, "", None, 1.0).ratio is None


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("up, 2 MiB blocks", 45.0, "GB/s", 50.0, 0.95), Row("blocks", 64.0, "blocks", 64.0, 1.0)]
    print_table("check", rows)
    assert "NO" in capsys.readouterr().out
    write_json(tmp_path / "r.json", "gpu_check", rows, {"device": "GPU-1"})
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["benchmark"] == "gpu_check"
    assert report["machine"]["device"] == "GPU-1"
    assert report["machine"]["cpu_count"] >= 1
    assert {"hybridkv", "python", "numpy"} <= report["versions"].keys()
    assert report["rows"][0] == {
        "name": "up, 2 MiB blocks", "value": 45.0, "unit": "GB/s", "floor": 50.0, "ratio": 0.9, "target": 0.95, "met": False,
    }  # fmt: skip


def test_the_tally_counts_what_pytest_reports() -> None:
    class Report:
        def __init__(self, outcome: str, when: str) -> None:
            self.outcome, self.when = outcome, when

    tally = gpu_check.Tally()
    for outcome, when in [("passed", "setup"), ("passed", "call"), ("failed", "setup"), ("skipped", "setup")]:
        tally.pytest_runtest_logreport(Report(outcome, when))
    assert (tally.passed, tally.failed, tally.skipped) == (1, 1, 1)
