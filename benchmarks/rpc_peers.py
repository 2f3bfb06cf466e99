"""Processes that `bench rpc` and `bench data` measure against: a daemon, and a bare echo server on the same kind of socket.

`python -m hybridkv.benchmarks.rpc_peers daemon FOLDER CPU_BYTES` and `... echo FOLDER`: each says "ready" and ends with its
standard input.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hybridkv.tiers.errors import UnavailableError

ECHO_SERVICE = "hybridkv.bench.Echo"
ECHO_METHOD = f"/{ECHO_SERVICE}/Echo"
LENGTH_BYTES = 4
"""Of a request to the echo server: how long the reply is to be, little-endian."""
STOP_S = 60.0


class Peer:
    """One such process; it ends with the `with` block."""

    def __init__(self, kind: str, folder: Path, *arguments: str) -> None:
        self.address = f"unix://{folder}/{'kv' if kind == 'daemon' else 'echo'}.sock"
        command = [sys.executable, "-m", "hybridkv.benchmarks.rpc_peers", kind, str(folder), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise UnavailableError(f"a process of the benchmark ended with {self._process.wait(STOP_S)}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate(timeout=STOP_S)


class Echo:
    """A client of the echo server that is as bare as the server: no messages, no checks."""

    def __init__(self, address: str) -> None:
        import grpc

        from hybridkv.service.client.rpc import CHANNEL_OPTIONS

        self._channel = grpc.insecure_channel(address, CHANNEL_OPTIONS)
        self._call: Callable[..., bytes] = self._channel.unary_unary(ECHO_METHOD, None, None)

    def prepared(self, request_bytes: int, reply_bytes: int) -> Callable[[], None]:
        """One echo with so many bytes each way."""
        request = reply_bytes.to_bytes(LENGTH_BYTES, "little").ljust(request_bytes, b"x")
        call = self._call

        def echo() -> None:
            call(request, timeout=5.0)

        return echo

    def close(self) -> None:
        self._channel.close()


async def _serve_echo(address: str) -> None:
    import grpc

    replies: dict[bytes, bytes] = {}

    async def echo(request: bytes, _: Any) -> bytes:
        asked = request[:LENGTH_BYTES]
        if asked not in replies:
            replies[asked] = bytes(int.from_bytes(asked, "little"))
        return replies[asked]

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(ECHO_SERVICE, {"Echo": handler})])
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait_for_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    await stopped.wait()
    await server.stop(None)


def _serve_daemon(folder: Path, cpu_bytes: int) -> None:
    from hybridkv.benchmarks.lane_rig import config_for
    from hybridkv.service.in_thread import DaemonThread

    with DaemonThread(config_for(folder, cpu_bytes=cpu_bytes)):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        asyncio.run(_serve_echo(f"unix://{sys.argv[2]}/echo.sock"))
    else:
        _serve_daemon(Path(sys.argv[2]), int(sys.argv[3]))
