"""Daemons and workers forked from the zygote, as a test sees them."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
END_S = 20.0
START_S = 60.0


class Forked:
    """A daemon or a worker. `log` is what it said."""

    def __init__(self, zygote: "Zygote", pid: int, log: Path) -> None:
        self._zygote, self.pid, self.log = zygote, pid, log
        self._fd = os.pidfd_open(pid)
        self._code: int | None = None

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether it has, after waiting so long for it."""
        return self._code is not None or bool(select.select([self._fd], [], [], wait_s)[0])

    def code(self) -> int:
        """What ended it: a signal's number, negative, or its exit code. Waits for it."""
        if self._code is None:
            self._code = int(self._zygote.ask({"wait": self.pid}))
            os.close(self._fd)
        return self._code

    def kill(self) -> int:
        """SIGKILL, if it still runs; what ended it."""
        if not self.has_ended():
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        return self.code()

    def terminate(self) -> None:
        """SIGTERM."""
        signal.pidfd_send_signal(self._fd, signal.SIGTERM)

    def serves(self) -> bool:
        """Wait until the daemon serves; False when it ended before."""
        until = time.monotonic() + START_S
        while "serving on" not in self.said():
            if self.has_ended(0.005):
                return False
            assert time.monotonic() < until, f"the daemon does not start: {self.said()}"
        return True

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Zygote:
    """See `zygote.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forks = 0
        self._running: list[Forked] = []
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDKV_")}
        environment["PYTHONPATH"] = f"{ROOT}:{environment.get('PYTHONPATH', '')}"
        command = [sys.executable, "-W", "error", "-m", "tests.service.crash.zygote"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )

    def ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def fork(self, kind: str, argument: Any, crash_at: str = "") -> Forked:
        """A process that dies at the point `crash_at`, if one is named."""
        self._forks += 1
        log = self._folder / f"{self._forks}-{kind}.log"
        pid = self.ask({"fork": kind, "log": str(log), "crash_at": crash_at, "with": argument})
        forked = Forked(self, pid, log)
        self._running.append(forked)
        return forked

    def close(self) -> None:
        """No process is left."""
        for forked in self._running:
            forked.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(END_S)
        self._process.stdout.close()


@contextmanager
def zygote(folder: Path) -> Iterator[Zygote]:
    made = Zygote(folder)
    try:
        yield made
    finally:
        made.close()
