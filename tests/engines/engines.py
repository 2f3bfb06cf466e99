"""Engines and daemons as the tests hold them: processes of their own that live as long as their fixture."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from hybridkv.service.admin_client import AdminClient

START_S = 600.0
ANSWER_S = 300.0

CONNECTOR = {
    "kv_connector": "HybridKVConnector",
    "kv_connector_module_path": "hybridkv.connectors.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


class Daemon:
    """`hybridkv serve` with a config file; may be killed and started again on the same folders."""

    def __init__(self, folder: Path, shm: Path, *, cpu: str = "256MiB", disk: str | None = "1GiB") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shm.mkdir(parents=True, exist_ok=True)
        self.address = f"unix://{folder}/kv.sock"
        self.shm = shm
        self._log = folder / "daemon.log"
        self._config = folder / "hybridkv.toml"
        lines = ["[daemon]", f'socket = "{self.address}"', "warm_restart = false"]
        lines += ["[cpu]", f'capacity_bytes = "{cpu}"', f'shm_dir = "{shm}"']
        if disk is not None:
            lines += ["[disk]", f'path = "{folder}/disk"', f'capacity_bytes = "{disk}"']
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "hybridkv.service.cli", "serve", "--config", str(self._config)]
        written = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_environment())
        until = time.monotonic() + 60
        while b"serving on" not in self._log.read_bytes()[written:]:
            dead = self._process.poll() is not None or time.monotonic() > until
            assert not dead, self._log.read_text()[-2000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it writes to disk what is not there yet."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)

    def stats(self) -> dict[str, Any]:
        with AdminClient(self.address) as admin:
            return admin.stats()

    def clear(self) -> None:
        with AdminClient(self.address) as admin:
            admin.clear()

    def check(self) -> list[str]:
        with AdminClient(self.address) as admin:
            return admin.check()

    def zero_cpu_tier(self) -> int:
        """Overwrite everything in the CPU tier's memory; how many bytes that were."""
        zeroed = 0
        for path in self.shm.glob("*/*"):
            if "header" not in path.name and path.stat().st_size >= 1 << 20:
                with path.open("r+b") as region:
                    zeroed += region.write(bytes(path.stat().st_size))
        return zeroed


class EngineProcess:
    """One engine. `EngineProcess(...).do("generate", prompts=…, max_tokens=…)`."""

    def __init__(self, log: Path, arguments: dict[str, Any], connector: dict[str, Any] | None) -> None:
        """`connector`: its settings; None: an engine without one. Does not wait for the start.

        `separate` among the arguments: scheduler and workers in processes of their own, as vLLM runs them by default.
        """
        given = {name: value for name, value in arguments.items() if name != "separate"}
        separate = bool(arguments.get("separate"))
        if connector is not None:
            given["kv_transfer_config"] = {**CONNECTOR, "kv_connector_extra_config": connector}
        self._log_path = log
        self._log: IO[bytes] = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.engine_process", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            env={
                **clean_environment(),
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(separate)),
            },
        )
        self._began = False

    def started(self) -> "EngineProcess":
        """Wait for the start. AssertionError with what the engine said when it did not."""
        if not self._began:
            answer = self._answer(START_S)
            assert "error" not in answer, answer["error"]
            self._began = True
        return self

    def refusal(self) -> str:
        """Why it did not start."""
        return str(self._answer(START_S).get("error", ""))

    def do(self, command: str, **arguments: Any) -> Any:
        self.begin(command, **arguments)
        return self.end()

    def begin(self, command: str, **arguments: Any) -> None:
        """Send a command; `end` waits for its answer."""
        self.started()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        return self._answer(ANSWER_S)["result"]

    def generate(self, *prompts: list[int], max_tokens: int = 8, **more: Any) -> list[Any]:
        return list(self.do("generate", prompts=list(prompts), max_tokens=max_tokens, **more))

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # its workers, too
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _answer(self, within_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], within_s)
        line = self._process.stdout.readline() if ready else b""
        assert line, f"the engine said nothing: {self._log_path.read_text(errors='replace')[-3000:]}"
        return dict(json.loads(line))


def clean_environment() -> dict[str, str]:
    """This process's environment without what would change the daemon's config."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDKV_")}
