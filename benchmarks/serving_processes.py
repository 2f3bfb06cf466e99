"""The processes of `hybridkv bench serving`: engines, hybridkv's daemon, LMCache's daemon, and where their Pythons are."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hybridkv.benchmarks.daemon_process import clean_environment
from hybridkv.service.admin_client import AdminClient
from hybridkv.tiers.errors import DeadlineExceededError, HybridKVError, UnavailableError

ROOT = Path(__file__).resolve().parent.parent
ENGINE = Path(__file__).resolve().parent / "serving_engine.py"
START_S, ANSWER_S, STOP_S, POLL_S = 600.0, 300.0, 60.0, 0.05
SAID_BYTES = 3000


def python_of(variable: str, folder: str) -> Path | None:
    """A virtual environment's Python: the one that `variable` names, or that of `folder` beside the sources."""
    chosen = os.environ.get(variable)
    path = Path(chosen) if chosen else ROOT / folder / "bin" / "python"
    return path if path.exists() else None


def wait_until(what: str, there: Callable[[], bool], within_s: float = 60.0) -> None:
    """Raises DeadlineExceededError naming `what`."""
    until = time.monotonic() + within_s
    while not there():
        if time.monotonic() > until:
            raise DeadlineExceededError(f"not within {within_s:g} s: {what}")
        time.sleep(POLL_S)


class Logged:
    """A process whose output goes to a file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, command: Sequence[str | Path], *, piped: bool = False, **environment: str) -> None:
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdin=pipe,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                env=clean_environment() | environment,
            )

    def running(self) -> subprocess.Popen[bytes]:
        """The process. Raises UnavailableError, with what it said last, when it has ended."""
        if self._process is None or self._process.poll() is not None:
            said = self._log.read_bytes()[-SAID_BYTES:].decode(errors="replace") if self._log.exists() else ""
            raise UnavailableError(f"{self._log.stem} is not running; it said: {said}")
        return self._process

    def stop(self) -> None:
        """SIGTERM, and wait; SIGKILL when that takes too long. May be repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


class EngineProcess(Logged):
    """An engine; `begin` starts it, `ready` waits for that."""

    def begin(self, python: Path, arguments: dict[str, Any]) -> None:
        self.launch([python, "-P", ENGINE, json.dumps(arguments)], piped=True)

    def ready(self) -> None:
        self._answer(START_S)

    def first_token(self, tokens: list[int], params: dict[str, Any] | None = None) -> tuple[float, int]:
        """(seconds, cached tokens)."""
        answer = self._do("first_token", tokens=tokens, params=params)
        return float(answer["seconds"]), int(answer["cached"])

    def step(self) -> None:
        self._do("step")

    def forget(self) -> None:
        """Raises UnavailableError when vLLM does not let go of its own prefix cache."""
        if not self._do("forget"):
            raise UnavailableError("vLLM keeps its prefix cache: its blocks stay in use")

    def _do(self, command: str, **arguments: Any) -> Any:
        process = self.running()
        assert process.stdin is not None, "an engine is piped"
        process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
        process.stdin.flush()
        return self._answer(ANSWER_S)["result"]

    def _answer(self, within_s: float) -> dict[str, Any]:
        process = self.running()
        assert process.stdout is not None, "an engine is piped"
        ready, _, _ = select.select([process.stdout], [], [], within_s)
        line = process.stdout.readline() if ready else b""
        if not line:
            process.kill()
            process.wait()
            self.running()
        return dict(json.loads(line))


class DaemonProcess(Logged):
    """`hybridkv serve`; may be stopped and started again on the same folders."""

    def __init__(self, folder: Path, cpu: str, disk: str) -> None:
        super().__init__(folder / "daemon.log")
        self.address = f"unix://{folder}/kv.sock"
        self._config = folder / "hybridkv.toml"
        tiers = f'[cpu]\ncapacity_bytes = "{cpu}"\n[disk]\npath = "{folder}/disk"\ncapacity_bytes = "{disk}"\n'
        # What a restart leaves is to come from the disk alone: that is one of the figures.
        self._config.write_text(f'[daemon]\nsocket = "{self.address}"\n{tiers}')

    def start(self, *, cold: bool = False) -> None:
        """`cold`: without the CPU tier of the one before."""
        more = ["--cold"] if cold else []
        self.launch([sys.executable, "-m", "hybridkv.service.cli", "serve", "--config", self._config, *more])
        wait_until("the daemon serves", self._serves)

    def stats(self) -> dict[str, Any]:
        with AdminClient(self.address) as admin:
            return admin.stats()

    def sealed(self) -> int:
        """Blocks that were sealed since its start."""
        return int(self.stats()["counters"].get("sealed", 0))

    def sessions(self) -> int:
        return int(self.stats()["sessions"])

    def _serves(self) -> bool:
        self.running()
        try:
            self.stats()
        except HybridKVError:
            return False
        return True


class LMCacheProcess(Logged):
    """LMCache's daemon in its fastest mode here: gRPC for calls, shared memory for bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "lmcache.log")
        self._disk = folder / "lmcache"
        self._disk.mkdir()
        self.port, self._http = free_port(), free_port()

    def start(self, python: Path) -> None:
        options = {
            "transport": "grpc",
            "host": "127.0.0.1",
            "port": self.port,
            "http-host": "127.0.0.1",
            "http-port": self._http,
            "chunk-size": 64,
            "l1-size-gb": 1,
            "l1-init-size-gb": 1,
            "eviction-policy": "LRU",
            "supported-transfer-mode": "auto",
            "shm-name": f"hybridkv-bench-{os.getpid()}",
            "l2-adapter": json.dumps({"type": "fs", "base_path": str(self._disk)}),
        }
        given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self.launch([python.parent / "lmcache", "server", *given], LMCACHE_TRACK_USAGE="false")
        wait_until("LMCache's daemon listens", self._listens, START_S)

    def _listens(self) -> bool:
        self.running()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def free_port() -> int:
    """A TCP port that nobody has now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
