"""A whole daemon in this process: real sockets, the host at hand. For tests and for embedding."""

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from hybridkv.service.config import Config
from hybridkv.service.daemon import Daemon
from hybridkv.service.facade import Host
from hybridkv.tiers.errors import UnavailableError

STOP_S = 60.0


class DaemonThread:
    """Runs a daemon on a thread of its own while the `with` block runs.

    with DaemonThread(config) as daemon:
        hybridkv.connect(daemon.address, space)
        daemon.host.check()

    `__enter__` raises what hinders the start. Leaving stops without a drain unless `drain` is set.
    """

    def __init__(self, config: Config, *, drain: bool = False, make_host: Callable[[Config], Host] = Host) -> None:
        self._config = config
        self._make_host = make_host
        self._drain = drain
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="hybridkv-daemon", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._daemon: Daemon | None = None

    @property
    def daemon(self) -> Daemon:
        if self._daemon is None:
            raise UnavailableError("the daemon was not started")
        return self._daemon

    @property
    def address(self) -> str:
        """Where clients connect: "unix:///path"."""
        return self.daemon.address

    @property
    def host(self) -> Host:
        """The facade behind the sockets. Raises UnavailableError once stopped."""
        if self.daemon.host is None:
            raise UnavailableError("the daemon is stopped")
        return self.daemon.host

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop and wait for the end. Raises what went wrong at the stop. May be repeated."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ask_stop)
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            raise UnavailableError(f"the daemon did not stop within {STOP_S:g} s")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _ask_stop(self) -> None:
        self.daemon.request_stop()
        if not self._drain:
            self.daemon.request_stop()

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:  # handed to the thread that started this one
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._daemon = Daemon(self._config, make_host=self._make_host)
        await self._daemon.start()
        self._ready.set()
        await self._daemon.wait_stop()
