"""`hybridkv serve` as a process: starts fast and without torch, refuses a second one, drains on SIGTERM."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hybridkv.service.admin_client import AdminClient
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, ReserveOutcome
from tests.service.wire import read, wired, write

WAIT_S = 30.0
AS_VERSION = "import hybridkv.version as v; v.__version__ = '{version}'; from hybridkv.service.cli import main; main()"
READY = re.compile(r"serving on (\S+) after ([0-9.]+) s")


def arguments(folder: Path, **values: str) -> list[str]:
    keys = {
        "daemon.socket": f"unix://{folder}/d/kv.sock",
        "cpu.shm_dir": str(folder),
        "cpu.capacity_bytes": "4MiB",
        "disk.path": str(folder / "disk"),
        "disk.capacity_bytes": "16MiB",
        **{name.replace("__", "."): value for name, value in values.items()},
    }
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDKV_")}


@contextmanager
def serving(
    folder: Path,
    config: Path | None = None,
    crash_at: str = "",
    *,
    flags: Sequence[str] = (),
    version: str = "",
    **values: str,
) -> Iterator[tuple["subprocess.Popen[str]", str, float]]:
    """A daemon process, its address, and what it says it took to serve. `crash_at`: see `tiers/points.py`; `version`: that it
    believes to have."""
    started = ["-c", AS_VERSION.format(version=version)] if version else ["-m", "hybridkv.service.cli"]
    command = [sys.executable, *started, "serve", *arguments(folder, **values), *flags]
    if config is not None:
        command += ["--config", str(config)]
    known = environment() | ({"HYBRIDKV_CRASH_AT": crash_at} if crash_at else {})
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=known)
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := READY.search(line):
                yield process, found[1], float(found[2])
                return
        raise AssertionError("the daemon did not serve: " + "".join(said[-8:]))
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def cpu_s(pid: int) -> float:
    """What the process has used of the processors, whatever else runs beside it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_daemon_serves_soon_and_without_torch(tmp_path: Path) -> None:
    """It is up within a second; in processor time, with room for a processor whose other half is busy."""
    with serving(tmp_path) as (process, address, ready_s):
        assert cpu_s(process.pid) < 1.5
        assert 0.0 < ready_s < WAIT_S
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libtorch" not in mapped
        with AdminClient(address) as client:
            assert client.check() == []


def test_sigterm_drains_to_disk_and_the_next_start_serves_it(tmp_path: Path, space: Namespace) -> None:
    with serving(tmp_path) as (process, address, _), wired(address) as wire:
        stream = wire.attach(space)
        assert write(wire, stream.session, 1, 2) == [ReserveOutcome.NEW] * 2
        process.send_signal(signal.SIGTERM)
        assert next(stream.call).draining
        _, said = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert "drained: 2 blocks written, 0 left" in said
    assert list((tmp_path / "d").iterdir()) == []
    with serving(tmp_path) as (_, address, _), wired(address) as wire:
        stream = wire.attach(space)
        states, _ = read(wire, stream.session, 1, 2, wait_s=10.0)
        assert states == [Outcome.HIT] * 2


def test_a_second_daemon_is_refused_in_one_line_that_names_the_first(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address, _):
        command = [sys.executable, "-m", "hybridkv.service.cli", "serve", *arguments(tmp_path)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, env=environment())
        assert second.returncode == 2
        assert second.stderr.count("\n") == 1
        assert f"pid {process.pid}" in second.stderr
        with AdminClient(address) as client:
            assert client.check() == []


def test_a_killed_daemon_is_followed_by_the_next(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _, _):
        process.kill()
        process.wait(WAIT_S)
    with serving(tmp_path) as (_, address, _), AdminClient(address) as client:
        assert client.check() == []


def test_importing_the_daemon_imports_no_torch() -> None:
    code = (
        "import sys, hybridkv.service.serving; print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert result.stdout == "[]\n"


def test_commands_talk_to_the_daemon_of_the_config(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, address, _):
        for command in ("stats", "check"):
            line = [sys.executable, "-m", "hybridkv.service.cli", command, "--json"]
            told = environment() | {"HYBRIDKV_DAEMON__SOCKET": address}
            result = subprocess.run(line, capture_output=True, text=True, timeout=WAIT_S, env=told)
            assert result.returncode == 0
            assert json.loads(result.stdout)
