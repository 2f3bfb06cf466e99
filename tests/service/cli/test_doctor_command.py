"""`hybridkv doctor`: with a daemon, without one, and what it exits with."""

import json
from pathlib import Path

from typer.testing import CliRunner

from hybridkv.service.cli import app
from hybridkv.service.config import Config
from hybridkv.service.in_thread import DaemonThread

runner = CliRunner()


def test_without_a_daemon_the_host_is_looked_at_and_that_is_said(tmp_path: Path) -> None:
    socket = f"{tmp_path}/none.sock"
    config = tmp_path / "hybridkv.toml"
    config.write_text(f'[cpu]\nshm_dir = "{tmp_path}"\ncapacity_bytes = "1MiB"\n[daemon]\nsocket = "unix://{socket}"\n')
    result = runner.invoke(app, ["doctor", "--config", str(config)])
    assert result.exit_code == 0
    assert f"no daemon answers on unix://{socket}: only the host was looked at" in result.stdout
    assert f"shared memory: {tmp_path} on" in result.stdout


def test_what_is_bad_decides_the_exit_code(tmp_path: Path) -> None:
    config = tmp_path / "hybridkv.toml"
    config.write_text(f'[cpu]\nshm_dir = "{tmp_path}"\ncapacity_bytes = "900TiB"\n')
    result = runner.invoke(app, ["doctor", "--config", str(config), "--socket", f"{tmp_path}/none.sock", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["daemon"] is False
    assert found["period_s"] is None
    bad = [one for one in found["findings"] if one["severity"] == "bad"]
    assert {"shared memory"} <= {one["rule"] for one in bad}
    assert "cpu.capacity_bytes" in bad[0]["keys"]


def test_a_daemons_own_config_and_figures_are_judged(config: Config) -> None:
    with DaemonThread(config) as daemon:
        result = runner.invoke(app, ["doctor", "--socket", daemon.address, "--json"])
    found = json.loads(result.stdout)
    assert found["daemon"] is True
    assert found["period_s"] > 0
    assert found["host"]["shared_memory"]["path"] == config.cpu.shm_dir
    assert [one for one in found["findings"] if one["rule"] == "health"] == []


def test_a_bad_interval_is_one_line(tmp_path: Path) -> None:
    result = runner.invoke(app, ["doctor", "--interval-s", "-1", "--socket", f"{tmp_path}/none.sock"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
