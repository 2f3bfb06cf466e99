"""The soak's worker processes as the soak sees them: started, killed, stopped, started again, and never left behind."""

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hybridkv.benchmarks.daemon_process import clean_environment

STALL_S = 90.0
"""A worker that is not stopped tells something within this time."""
END_S = 30.0
_DUMP_S = 1.0


class SoakError(Exception):
    """The soak found something that may not be."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a worker is: its module, the namespace it works in, and the address it connects to."""

    module: str
    space: int
    address: str


class Member:
    """One place in the crew: a process, and the next one after it was killed. Not thread-safe."""

    def __init__(self, number: int, role: Role, seed: int, folder: Path) -> None:
        self.role, self._number, self._seed, self._folder = role, number, seed, folder
        self.starts = 0
        self._continue_at: float | None = None
        self.start()

    def start(self) -> None:
        self.starts += 1
        name = f"{self._number}-{self.starts}"
        self._tally, self._log = self._folder / f"{name}.tally", self._folder / f"{name}.log"
        self._tally.touch()
        seed = self._seed * 1_000_000 + self._number * 10_000 + self.starts
        command = [sys.executable, "-m", f"hybridkv.benchmarks.soak.{self.role.module}", self.role.address]
        command += [str(self.role.space), str(seed), str(self._tally)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, env=clean_environment())

    def kill(self) -> None:
        """SIGKILL, at whatever it is; a stopped one, too. Raises SoakError when it had ended by itself."""
        self.look(float("-inf"))
        self._process.kill()
        self._close(END_S)

    def stop(self, until: float) -> None:
        """SIGSTOP until the monotonic time `until`."""
        self._process.send_signal(signal.SIGSTOP)
        self._continue_at = until

    def look(self, now: float) -> None:
        """Let it go on when it is time. Raises SoakError when it ended by itself or does nothing any more."""
        if self._continue_at is not None:
            if now >= self._continue_at:
                self.go_on()
            return
        if self._process.poll() is not None:
            raise SoakError(f"worker {self!r} ended with {self._process.returncode}:\n{self.said()}")
        if time.time() - max(self._tally.stat().st_mtime, self._log.stat().st_mtime) > STALL_S:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(_DUMP_S)
            raise SoakError(f"worker {self!r} has told nothing for {STALL_S:g} s; its threads:\n{self.said()}")

    def go_on(self) -> None:
        if self._continue_at is not None:
            self._process.send_signal(signal.SIGCONT)
            self._continue_at = None

    def end(self) -> None:
        """Let it finish and detach. Raises SoakError when it does not, or finds something wrong at its end."""
        self.go_on()
        try:
            code = self._close(END_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(_DUMP_S)
            self._process.kill()
            self._process.wait()
            raise SoakError(f"worker {self!r} does not end; its threads:\n{self.said()}") from None
        if code:
            raise SoakError(f"worker {self!r} ended with {code}:\n{self.said()}")

    def close(self) -> None:
        """Leave no process behind, whatever it does. May be called again."""
        self._process.kill()
        self._close(END_S)

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-6000:]

    def _close(self, wait_s: float) -> int:
        self._continue_at = None
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.wait(wait_s)

    def __repr__(self) -> str:
        return f"{self._number}-{self.starts} ({self.role.module}, namespace {self.role.space})"
