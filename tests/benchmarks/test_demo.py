"""The demo itself, short: real daemon, real workers, both faults."""

import json
from pathlib import Path

import pytest

from hybridkv.benchmarks import demo


@pytest.mark.slow
def test_a_short_demo_serves_verifies_and_survives(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--requests", "60", "--workers", "2", "--min-served", "1", "--out", str(tmp_path), "--json"]
    code = demo.main(arguments)
    said = json.loads(capfd.readouterr().out)
    assert {line["what"]: line["detail"] for line in said["verdict"] if not line["ok"]} == {}
    assert code == 0
    counts = said["replay"]["counts"]
    assert counts["asked"] == said["replay"]["served"] + counts["derived"]
    assert (tmp_path / "demo.png").exists()
