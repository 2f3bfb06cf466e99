"""Daemons and clients in processes of their own, for what only a process can suffer."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0

_DAEMON = """
import json, sys
from pathlib import Path
from hybridkv.service.in_thread import DaemonThread
from tests.service.client.conftest import make_config

with DaemonThread(make_config(Path(sys.argv[1]), **json.loads(sys.argv[2])), drain=True):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def daemon_process(folder: Path, **overrides: object) -> Iterator[subprocess.Popen[str]]:
    """A daemon on `folder`'s socket, serving; it stops when its stdin is closed. `overrides`: see `make_config`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _DAEMON, str(folder), json.dumps(overrides)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT) + ":" + os.environ.get("PYTHONPATH", "")},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.stdin.close()
        process.wait(WAIT_S)
        process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait until it is gone."""
    process.kill()
    process.wait(WAIT_S)


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a client script to its end; warnings are errors there, too."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT) + ":" + os.environ.get("PYTHONPATH", "")},
        check=False,
    )
