"""`config set`, `explain` and `top`: what they print, their exit codes, and how they fail."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hybridkv.service.cli import app
from hybridkv.service.cli.live import frame, watch
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.namespace import Namespace
from tests.service.wire import key, read, wired, write

runner = CliRunner()


def test_config_set_prints_what_changed(daemon: DaemonThread) -> None:
    assignments = ["cpu.idle_timeout_s=90", "migration.batch_bytes=8MiB"]
    result = runner.invoke(app, ["config", "set", *assignments, "--socket", daemon.address])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "cpu.idle_timeout_s = 90 (was 600)",
        'migration.batch_bytes = "8MiB" (was "16MiB")',
        "config version 2 (was 1)",
    ]
    running = runner.invoke(app, ["config", "show", "--running", "--socket", daemon.address, "--json"])
    assert json.loads(running.stdout)["cpu.idle_timeout_s"]["value"] == 90
    again = runner.invoke(app, ["config", "set", assignments[0], "--socket", daemon.address, "--json"])
    assert json.loads(again.stdout) == {"version": 2, "previous_version": 2, "changed": {}}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["cpu.idle_timeout_s"], "config set: 'cpu.idle_timeout_s' is not KEY=VALUE"),
        (["cpu.idle_timeout_s=-1"], "cpu.idle_timeout_s"),
        (["cpu.idle_timeout_s=1", "cpu.idle_timeout_s=2"], "given twice"),
        (["cpu.shm_dir=/x"], "cpu.shm_dir: needs a restart"),
        (["cpu.idle_timeout_s=1", "--expected-version", "9"], "version 9 was expected, 1 is in force"),
    ],
)
def test_config_set_refuses_in_one_line(daemon: DaemonThread, arguments: list[str], named: str) -> None:
    result = runner.invoke(app, ["config", "set", *arguments, "--socket", daemon.address])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert named in result.stderr
    assert daemon.host.config_version == 1


def test_explain_shows_copies_rules_and_history(daemon: DaemonThread, space: Namespace) -> None:
    with wired(daemon.address) as wire:
        stream = wire.attach(space)
        write(wire, stream.session, 1)
        arguments = ["explain", key(1).hex(), "--socket", daemon.address]
        shown = runner.invoke(app, arguments)
        assert shown.exit_code == 0
        for words in ("copy in cpu, slot", "number 1 of 1 to go", "stays, watermark: the tier's use is not above the mark",
                      "stays, idle: used lately", "no moves remembered"):  # fmt: skip
            assert words in shown.stdout
        (account,) = json.loads(runner.invoke(app, [*arguments, "--json"]).stdout)
        assert account["state"] == "sealed"
        daemon.host.clear()
        gone = runner.invoke(app, [*arguments, "--namespace", space.fingerprint.hex()[:8]])
        assert gone.exit_code == 0
        assert "gone" in gone.stdout
        assert "clear" in gone.stdout
        assert "removed" in gone.stdout


def test_explain_of_an_unknown_block_exits_1(daemon: DaemonThread) -> None:
    result = runner.invoke(app, ["explain", "abcd", "--socket", daemon.address])
    assert result.exit_code == 1
    assert "nothing is known" in result.stdout
    assert json.loads(runner.invoke(app, ["explain", "abcd", "--socket", daemon.address, "--json"]).stdout) == []


@pytest.mark.parametrize(
    ("arguments", "named"), [(["xyz"], "KEY: 'xyz' is not hex"), (["ab", "--namespace", "q"], "--namespace: 'q'")]
)
def test_explain_refuses_what_is_no_hex(daemon: DaemonThread, arguments: list[str], named: str) -> None:
    result = runner.invoke(app, ["explain", *arguments, "--socket", daemon.address])
    assert result.exit_code == 2
    assert named in result.stderr


def test_top_once_prints_one_plain_frame(daemon: DaemonThread, space: Namespace) -> None:
    with wired(daemon.address) as wire:
        stream = wire.attach(space)
        write(wire, stream.session, 1, 2)
        read(wire, stream.session, 1, 2, 3)
        result = runner.invoke(app, ["top", "--once", "--interval-s", "0.2", "--socket", daemon.address])
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    for words in ("config version 1", "1 sessions", "keys a second", "cpu", "4 MiB", "cpu-cpu.demand", "waiting calls"):
        assert words in result.stdout


@pytest.mark.parametrize("command", [["top"], ["explain", "ab"], ["config", "set", "cpu.policy=lru"]])
def test_an_absent_daemon_is_one_line(tmp_path: Path, command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--socket", f"{tmp_path}/none.sock"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "hybridkv serve" in result.stderr


def test_an_interval_below_its_limit_is_refused() -> None:
    result = runner.invoke(app, ["top", "--interval-s", "0"])
    assert result.exit_code == 2
    assert "--interval-s" in result.stderr


# ---------------------------------------------------------------------------------------------------- frames


def reading(uptime_s: float, scale: int, epoch: int = 1) -> dict[str, object]:
    move = {"from": "cpu", "to": "disk", "reason": "watermark", "outcome": "done"}
    return {
        "version": "1", "epoch": epoch, "uptime_s": uptime_s, "waiting_calls": 4,
        "hits": {"gpu": 100 * scale, "cpu": 50 * scale}, "outcomes": {"hit": 150 * scale, "miss": 50 * scale},
        "tiers": {"cpu": {"used_bytes": 512, "capacity_bytes": 1024, "blocks": 7, "leased_blocks": 1}},
        "moves": [{**move, "count": 10 * scale, "bytes": 10240 * scale}],
        "lanes": {"cpu-disk": {"queued": 3, "bytes_in_flight": 2048, "errors": 1, "alive": False}},
        "health": {"disk": {"ok": False, "reason": "no space left"}},
    }  # fmt: skip


def shown(before: dict[str, object], now: dict[str, object]) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(frame(before, now, "unix:///s"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rates_are_differences_by_time() -> None:
    text = shown(reading(10, 1), reading(12, 3))
    for words in ("hits gpu 100, cpu 50; misses 50 (75.0% hits)", "watermark", "cpu → disk, done", "10.0", "10 KiB",
                  "4 waiting calls", "50%", "cpu-disk (dead)", "disk: no space left"):  # fmt: skip
        assert words in text


def test_what_did_not_happen_meanwhile_is_not_shown() -> None:
    assert "watermark" not in shown(reading(10, 1), reading(12, 1))


def test_a_restart_between_two_readings_shows_no_rates() -> None:
    text = shown(reading(10, 3), reading(1, 1, epoch=2))
    assert "hits gpu 0, cpu 0; misses 0" in text


def test_without_a_terminal_frames_follow_one_another() -> None:
    console = Console(file=io.StringIO(), width=160)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    watch(lambda: reading(len(slept), len(slept)), "unix:///s", 2.5, console=console, sleep=sleep)
    assert slept == [2.5] * 3
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("keys a second") == 2


def test_on_a_terminal_the_frame_is_replaced_until_interrupted() -> None:
    console = Console(file=io.StringIO(), width=160, height=50, force_terminal=True)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    watch(lambda: reading(len(slept), len(slept)), "unix:///s", 1.0, console=console, sleep=sleep)
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[?1049h" in console.file.getvalue()  # its own screen
