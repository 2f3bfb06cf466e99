"""The soak itself, short: real processes, random kills, and nothing left at the end."""

import json
from pathlib import Path

import pytest

from hybridkv.benchmarks.machine import machine_name
from hybridkv.benchmarks.soak.__main__ import EXIT_OK, main
from hybridkv.benchmarks.soak.trouble import Kind


@pytest.mark.slow
def test_a_short_soak_finds_nothing_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["--minutes", "0.08", "--seed", "11", "--workers", "3", "--out", str(tmp_path)])
    assert code == EXIT_OK, capfd.readouterr().err
    report = json.loads((tmp_path / f"soak-{machine_name()}.json").read_text())
    figures = {row["name"]: row["value"] for row in report["rows"]}
    assert all(figures[kind] > 0 for kind in Kind)
    assert figures["blocks read and verified"] > 0
    assert figures["leases at the end"] == figures["quarantined bytes, cpu at the end"] == 0
    assert [row["name"] for row in report["rows"] if row["met"] is False] == []
