"""The stores of `bench compare`: what each needs to be there, and the processes of each while it is measured."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from hybridkv.benchmarks.peers.work import Done, Round
from hybridkv.tiers.errors import UnavailableError

_ROOT = Path(__file__).resolve().parents[1]

PEERS = _ROOT / ".peers"
"""Where `make peers` puts an environment for each peer."""

CAPACITY_BYTES = 2 << 30
START_S = 60.0
END_S = 10.0
_POLL_S = 0.05

Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class Peer:
    """A store by name. `missing` says what it lacks here, None when it can run; `start` starts its servers in a folder and
    returns the command of the process that does the work."""

    name: str
    missing: Callable[[], str | None]
    start: Callable[[ExitStack, Path], Command]


class Worker:
    """The process that does a peer's work, one round at a time."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log
        self._answer()

    def run(self, round_: Round) -> Done:
        """UnavailableError when the store failed."""
        stdin = _pipe(self._process.stdin)
        stdin.write(json.dumps(asdict(round_)) + "\n")
        stdin.flush()
        return Done(**self._answer())

    def _answer(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        answer: dict[str, Any] = json.loads(line) if line else {"failed": _tail(self._log)}
        if "failed" in answer:
            raise UnavailableError(str(answer["failed"]))
        return answer


@contextmanager
def working(peer: Peer, folder: Path) -> Iterator[Worker]:
    """The peer's servers and its worker, until the block ends. UnavailableError when they do not start."""
    folder.mkdir()
    with ExitStack() as stack:
        command = peer.start(stack, folder)
        log = folder / "worker.log"
        process = stack.enter_context(_running(command, log, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        yield Worker(process, log)


# ------------------------------------------------------------------------------------------------------ the stores


def _start_copying(stack: ExitStack, folder: Path) -> Command:
    del stack, folder
    return _module(sys.executable, "copying")


def _start_ours(stack: ExitStack, folder: Path) -> Command:
    config = folder / "hybridkv.toml"
    address = f"unix://{folder}/kv.sock"
    config.write_text(
        f'[daemon]\nsocket = "{address}"\nwarm_restart = false\n[cpu]\ncapacity_bytes = {CAPACITY_BYTES}\n'
        "high_watermark = 1.0\nlow_watermark = 1.0\n"
    )
    serve = [sys.executable, "-m", "hybridkv.service.cli", "serve", "--config", str(config)]
    _server(stack, serve, folder / "server.log", says="serving on")
    return [*_module(sys.executable, "ours"), address]


def _start_redis(stack: ExitStack, folder: Path) -> Command:
    path = folder / "redis.sock"
    serve = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    _server(stack, [*serve, "--dir", str(folder)], folder / "server.log", says="ready to accept connections")
    return [*_module(_python("redis"), "redis"), str(path)]


def _start_mooncake(stack: ExitStack, folder: Path) -> Command:
    port, http = _free_port(), _free_port()
    master = PEERS / "mooncake/bin/mooncake_master"
    serve = [
        str(master),
        f"--rpc_port={port}",
        "--enable_http_metadata_server=true",
        f"--http_metadata_server_port={http}",
    ]
    serve += [f"--metrics_port={_free_port()}", "--http_metadata_server_host=127.0.0.1"]
    _server(stack, serve, folder / "server.log", port=http)
    command = _module(_python("mooncake"), "mooncake")
    places = [f"http://127.0.0.1:{http}/metadata", f"127.0.0.1:{port}", str(CAPACITY_BYTES)]
    _server(stack, [*command, "holder", *places], folder / "holder.log", says="ready")
    return [*command, "client", *places]


def _start_lmcache(stack: ExitStack, folder: Path) -> Command:
    port = _free_port()
    serve = [str(PEERS / "lmcache/bin/lmcache"), "server", "--transport", "zmq", "--host", "127.0.0.1"]
    serve += ["--port", str(port), "--http-host", "127.0.0.1", "--http-port", str(_free_port())]
    serve += ["--chunk-size", "64", "--l1-size-gb", str(CAPACITY_BYTES >> 30), "--l1-init-size-gb", "2"]
    serve += ["--eviction-policy", "LRU", "--supported-transfer-mode", "auto", "--shm-name", f"hybridkv-{os.getpid()}"]
    _server(stack, serve, folder / "server.log", port=port)
    return [*_module(_python("lmcache"), "lmcache"), f"tcp://127.0.0.1:{port}"]


def _lacks(name: str, *programs: str) -> str | None:
    gone = [program for program in programs if shutil.which(program) is None]
    if gone:
        return f"{', '.join(gone)} is not installed (make peers)"
    return None if Path(_python(name)).exists() else f"{PEERS / name} is not there (make peers)"


FLOOR = Peer("copy", lambda: None, _start_copying)
OURS = Peer("hybridkv", lambda: None, _start_ours)
OTHERS = (
    Peer("redis", lambda: _lacks("redis", "redis-server"), _start_redis),
    Peer("mooncake", lambda: _lacks("mooncake"), _start_mooncake),
    Peer("lmcache", lambda: _lacks("lmcache"), _start_lmcache),
)


# --------------------------------------------------------------------------------------------------------- processes


def _python(name: str) -> str:
    return str(PEERS / name / "bin/python")


def _module(python: str, name: str) -> list[str]:
    return [python, "-m", f"hybridkv.benchmarks.peers.{name}"]


def _environment() -> dict[str, str]:
    """The peers' processes find this package by path: it is not installed in their environments."""
    paths = [str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    quiet = {"LMCACHE_TRACK_USAGE": "false", "MC_STORE_MEMCPY": "0"}
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextmanager
def _running(command: Command, log: Path, **pipes: int) -> Iterator["subprocess.Popen[str]"]:
    """A process in a group of its own, ended with all it started when the block ends."""
    with log.open("a") as sink:
        files: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": sink, **pipes}
        try:
            process = subprocess.Popen(
                command, text=True, stderr=sink, env=_environment(), start_new_session=True, **files
            )
        except OSError as error:
            raise UnavailableError(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        yield process
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                continue
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _server(stack: ExitStack, command: Command, log: Path, *, says: str = "", port: int | None = None) -> None:
    """A server that is there once it has said so, or listens on `port`."""
    process = stack.enter_context(_running(command, log))
    until = time.monotonic() + START_S
    while not (_listens(port) if port is not None else says in log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > until:
            raise UnavailableError(f"{command[0]} did not start: {_tail(log)}")
        time.sleep(_POLL_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace").strip().splitlines()
    return text[-1][-300:] if text else "it said nothing"


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "the process was started with pipes"
    return pipe
