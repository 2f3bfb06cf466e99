"""SIGHUP: the file is read again, what is live applies, what is not is logged, and a bad file changes nothing."""

import signal
import subprocess
from pathlib import Path

import pytest

from hybridkv.service.admin_client import AdminClient
from hybridkv.service.config import Config, LoadedConfig, load_config_with_sources
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from tests.service.test_serve import WAIT_S, serving


def file_of(folder: Path, text: str) -> Path:
    path = folder / "hybridkv.toml"
    path.write_text(text)
    return path


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"the daemon ended without saying {words!r}")


def test_sighup_reloads_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, "[cpu]\nidle_timeout_s = 50\n")
    with serving(tmp_path, config=path) as (process, address, _), AdminClient(address) as client:
        before = {entry.key: entry for entry in client.config()}
        assert before["cpu.idle_timeout_s"].value == 50
        file_of(tmp_path, "[cpu]\nidle_timeout_s = 60\n[migration]\nlane_slots_count = 3\n")
        process.send_signal(signal.SIGHUP)
        assert "version 2, 1 keys changed" in read_until(process, "config reloaded")
        assert "needs a restart" in read_until(process, "migration.lane_slots_count")
        after = {entry.key: entry for entry in client.config()}
        assert (after["cpu.idle_timeout_s"].value, after["cpu.idle_timeout_s"].source) == (60, f"file {path}")
        assert after["migration.lane_slots_count"].value == 16
        file_of(tmp_path, "[cpu]\nidle_timeout_s = -1\nhigh_watermark = 7\n")
        process.send_signal(signal.SIGHUP)
        said = read_until(process, "not reloaded")
        assert "cpu.idle_timeout_s" in said
        assert "cpu.high_watermark" in said
        assert client.config_version() == 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0


def test_a_daemon_without_a_file_to_read_ignores_it(daemon: DaemonThread) -> None:
    daemon.daemon.reload()
    assert daemon.host.config_version == 1


def test_a_loader_that_breaks_changes_nothing(
    daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> LoadedConfig:
        raise OSError("gone")

    monkeypatch.setattr(daemon.daemon, "_load", broken)
    daemon.daemon.reload()
    assert "config not reloaded" in caplog.text
    assert daemon.host.config_version == 1


def test_what_was_set_by_hand_is_taken_back_by_a_reload(
    config: Config, daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    host: Host = daemon.host
    host.update_config({"cpu.idle_timeout_s": 5})
    overrides = {"cpu.shm_dir": config.cpu.shm_dir, "cpu.capacity_bytes": config.cpu.capacity_bytes}
    monkeypatch.setattr(daemon.daemon, "_load", lambda: load_config_with_sources(None, overrides, {}))
    daemon.daemon.reload()
    assert host.config.cpu.idle_timeout_s == 600
    assert host.config_version == 3
