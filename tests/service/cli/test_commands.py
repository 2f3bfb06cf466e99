"""The command line: what it prints, its exit codes, and the one line it fails with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridkv.service.cli import app
from hybridkv.service.cli.tables import print_stats
from hybridkv.service.config import Config
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.namespace import Namespace
from hybridkv.version import __version__
from tests.service.fake_host import fake_of
from tests.service.wire import read, wired, write

runner = CliRunner()


@pytest.fixture
def daemon(fake_daemon: DaemonThread) -> DaemonThread:
    return fake_daemon


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"hybridkv {__version__}\n"


@pytest.mark.parametrize("command", [[], ["serve"], ["stats"], ["check"], ["config"], ["config", "show"]])
def test_help_names_the_command(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_stats_as_json_is_the_tree(daemon: DaemonThread) -> None:
    result = runner.invoke(app, ["stats", "--socket", daemon.address, "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["epoch"] == daemon.host.epoch
    assert {"method": "Admin.Stats", "status": "OK", "count": 1} not in found["calls"]


def test_stats_of_a_real_daemon_show_the_hit(config: Config, space: Namespace) -> None:
    with DaemonThread(config) as daemon, wired(daemon.address) as wire:
        stream = wire.attach(space)
        write(wire, stream.session, 1, 2)
        read(wire, stream.session, 1, 2, 3)
        result = runner.invoke(app, ["stats", "--socket", daemon.address.removeprefix("unix://")])
    assert result.exit_code == 0
    for word in ("cpu", "4 MiB", "8 KiB", "cpu hits 2 (66.7%)", "misses 1 (33.3%)", "1 sessions", "demand"):
        assert word in result.stdout


def test_tables_show_moves_and_what_is_unwell(capsys: pytest.CaptureFixture[str]) -> None:
    print_stats(
        {
            "tiers": {"gpu0": {"used_bytes": 3 << 20, "capacity_bytes": 1 << 30, "blocks": 1234567}},
            "moves": [{"from": "cpu", "to": "", "reason": "idle", "outcome": "evicted", "count": 5000, "bytes": 2048}],
            "health": {"disk": {"ok": False, "reason": "no space left"}, "loop": {"ok": True, "reason": ""}},
        }
    )
    shown = capsys.readouterr().out
    for word in ("gpu0", "3 MiB", "1 GiB", "1,234,567", "evicted", "5,000", "2 KiB", "disk: no space left"):
        assert word in shown
    assert "loop" not in shown


def test_check_tells_by_its_exit_code(daemon: DaemonThread) -> None:
    sound = runner.invoke(app, ["check", "--socket", daemon.address])
    assert (sound.exit_code, sound.stdout) == (0, "all laws hold\n")
    fake_of(daemon).violations = ["law 1: block without a copy"]
    broken = runner.invoke(app, ["check", "--socket", daemon.address])
    assert (broken.exit_code, broken.stdout) == (1, "law 1: block without a copy\n")
    as_json = runner.invoke(app, ["check", "--socket", daemon.address, "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout) == {"violations": ["law 1: block without a copy"]}


@pytest.mark.parametrize("command", ["stats", "check"])
def test_an_absent_daemon_is_one_line_with_its_socket(tmp_path: Path, command: str) -> None:
    result = runner.invoke(app, [command, "--socket", f"{tmp_path}/none.sock"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert f"{tmp_path}/none.sock" in result.stderr
    assert "hybridkv serve" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "cpu.capacity_bytes=lots"], "cpu.capacity_bytes"),
        (["--set", "cpu.capacity_byte=1GiB"], "cpu.capacity_byte"),
        (["--set", "nonsense"], "--set"),
        (["--socket", "relative/" + "x" * 200], "daemon.socket"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml"),
    ],
)
@pytest.mark.parametrize("command", [["serve"], ["config", "check"], ["config", "show"]])
def test_bad_config_is_one_line_that_names_the_key(command: list[str], arguments: list[str], named: str) -> None:
    result = runner.invoke(app, [*command, *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert named in result.stderr


def test_config_show_tells_value_and_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hybridkv.toml"
    file.write_text('[cpu]\ncapacity_bytes = "2GiB"\n')
    monkeypatch.setenv("HYBRIDKV_DAEMON__GRACE_S", "7")
    arguments = ["config", "show", "--config", str(file), "--set", "daemon.lease_s=40"]
    shown = json.loads(runner.invoke(app, [*arguments, "--json"]).stdout)
    assert shown["cpu.capacity_bytes"] == {"value": 2 << 30, "source": f"file {file}"}
    assert shown["daemon.grace_s"]["value"] == 7.0
    assert shown["daemon.grace_s"]["source"].startswith("environment")
    assert shown["daemon.lease_s"] == {"value": 40.0, "source": "flag"}
    assert shown["daemon.drain_s"]["source"] == "default"
    monkeypatch.setenv("COLUMNS", "200")
    table = runner.invoke(app, arguments)
    assert table.exit_code == 0
    assert "2GiB" in table.stdout


def test_config_check_accepts_a_good_one() -> None:
    result = runner.invoke(app, ["config", "check", "--set", "cpu.capacity_bytes=1GiB"])
    assert (result.exit_code, result.stdout) == (0, "config is valid\n")
    assert json.loads(runner.invoke(app, ["config", "check", "--json"]).stdout) == {"ok": True}


def test_demo_passes_its_arguments_and_exit_code_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    class Demo:
        @staticmethod
        def main(arguments: list[str]) -> int:
            given.append(arguments)
            return 3

    monkeypatch.setattr("importlib.import_module", lambda name: Demo)
    result = runner.invoke(app, ["demo", "--requests", "5", "--help"])
    assert result.exit_code == 3
    assert given == [["--requests", "5", "--help"]]


def test_watch_below_its_limit_is_refused() -> None:
    result = runner.invoke(app, ["stats", "--watch", "0"])
    assert result.exit_code == 2
    assert "--watch" in result.stderr


def test_the_command_line_imports_little() -> None:
    heavy = ["grpc", "numpy", "rich.table", "pydantic", "torch", "lmdb"]
    code = f"import sys, hybridkv.service.cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
