"""The demo's daemon: a process of its own, started from a config file as an operator would."""

import os
import signal
import subprocess
import sys
import time

from hybridkv.benchmarks.demo_setup import LANE_SLOTS, Places, Sizes
from hybridkv.tiers.errors import UnavailableError

START_S = 30.0
STOP_S = 60.0
_POLL_S = 0.02

_CONFIG = """\
[daemon]
socket = "{address}"
warm_restart = false  # what is there after the kill is to come from the disk alone

[gpu]
devices = ["host:0"]
capacity_bytes = {sizes.gpu_bytes}

[cpu]
capacity_bytes = {sizes.cpu_bytes}
shm_dir = "{places.shm}"

[disk]
path = "{places.disk}"
capacity_bytes = {sizes.disk_bytes}

[migration]
lane_slots_count = {lane_slots}
"""


class DemoDaemon:
    """`hybridkv serve` on the demo's tiers. May be killed and started again on the same folders."""

    def __init__(self, places: Places, sizes: Sizes) -> None:
        self.places = places
        self._config = places.work / "hybridkv.toml"
        self._config.write_text(
            _CONFIG.format(address=places.address, sizes=sizes, places=places, lane_slots=LANE_SLOTS)
        )
        self._log = places.work / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and wait until it serves: seconds that took. Raises UnavailableError with what it said."""
        began = time.monotonic()
        command = [sys.executable, "-m", "hybridkv.service.cli", "serve", "--config", str(self._config)]
        written = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_environment())
        while b"serving on" not in self._said(written):
            if self._process.poll() is not None or time.monotonic() > began + START_S:
                raise UnavailableError(f"the daemon did not start: {self.said()}")
            time.sleep(_POLL_S)
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: it gets to do nothing more."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, as an operator stops it: its exit code."""
        return self._end(signal.SIGTERM)

    def said(self) -> str:
        """The end of its log."""
        return self._said(0)[-4000:].decode(errors="replace")

    def close(self) -> None:
        """Leave no process behind. May be called again."""
        self.kill()

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _said(self, after: int) -> bytes:
        with self._log.open("rb") as log:
            log.seek(after)
            return log.read()


def clean_environment() -> dict[str, str]:
    """This process's environment without what would change the demo's config."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDKV_")}
