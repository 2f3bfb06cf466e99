"""The README's client example runs."""

import subprocess
import sys
from pathlib import Path

from tests.service.client.conftest import make_config
from tests.service.client.processes import ROOT, WAIT_S, daemon_process

EXAMPLE = ROOT / "examples" / "first_steps.py"
MAX_LINES = 25


def test_example_stores_and_finds_its_blocks(tmp_path: Path) -> None:
    address = make_config(tmp_path).daemon.socket
    with daemon_process(tmp_path, cpu__capacity_bytes="64MiB"):
        outputs = [
            subprocess.run(
                [sys.executable, "-W", "error", str(EXAMPLE), address],
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=True,
            ).stdout.splitlines()
            for _ in range(2)
        ]
    assert outputs[0][0] == "found before: 0 of 4 blocks"
    assert outputs[1][0] == "found before: 4 of 4 blocks"
    assert [lines[1] for lines in outputs] == ["read in place: 4 blocks of 737280 bytes"] * 2


def test_example_is_short() -> None:
    code = [line for line in EXAMPLE.read_text().split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= MAX_LINES
