"""The daemon: a `Host` and everything through which others reach it.

`run` is what `hybridkv serve` calls; `serve` is the same without signal handlers and logging, for embedding (see
`in_thread.py`). Order at the start: claim the socket, build the host, bind, serve. Order at the stop: refuse new
sessions and tell the attached, drain to disk, end calls, close the host, give up the socket.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from hybridkv.service.config import Config, LoadedConfig
from hybridkv.service.facade import Host
from hybridkv.service.grpc_server import SERVICES, Servicers, add_ports, make_server
from hybridkv.service.identities import Identities
from hybridkv.service.listening import SCHEME, SocketClaim, side_socket_path, socket_path
from hybridkv.service.servicers.admin import AdminServicer
from hybridkv.service.servicers.boundary import CallCounters
from hybridkv.service.servicers.gate import Gate
from hybridkv.service.servicers.health import HealthServicer
from hybridkv.service.servicers.kvcache import KVCacheServicer
from hybridkv.service.servicers.sequences import SequencesServicer
from hybridkv.service.servicers.session import SessionServicer
from hybridkv.service.servicers.sessions import Sessions
from hybridkv.service.servicers.watch import Watchers
from hybridkv.service.side.server import SideSocket
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.process import own_start_time

log = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 1.0
ESSENTIAL = frozenset({"loop", "lanes", "probe"})
"""Components without which no service does its work; "probe" is the health probe itself."""

STOP_GRACE_S = 1.0
"""How long calls under way may take once the drain is over."""


class Daemon:
    """One daemon. All methods belong to one event loop, but `request_stop`'s thread-safe use by `in_thread`.

    `host` is the facade it serves, None before `start` and after `stop`.
    """

    def __init__(
        self,
        config: Config,
        sources: Mapping[str, str] | None = None,
        *,
        make_host: Callable[[Config], Host] = Host,
        started_at: float | None = None,
        load: Callable[[], LoadedConfig] | None = None,
    ) -> None:
        """`sources` tells where each config value came from; `started_at` (monotonic) is what `ready_s` counts from;
        `load` reads the config again for `reload`.

        `make_host` builds the facade once the socket is claimed.
        """
        self.config = config
        self.address = SCHEME + str(socket_path(config.daemon.socket))
        self.host: Host | None = None
        self.tcp_port: int | None = None
        self.ready_s: float | None = None
        self.counters = CallCounters()
        self._sources = dict(sources or {})
        self._make_host = make_host
        self._load = load
        self._started_at = time.monotonic() if started_at is None else started_at
        self._sessions = Sessions(config.limits.sessions_count)
        self._closing = contextlib.AsyncExitStack()
        self._health = HealthServicer()
        self._identities: Identities | None = None
        self._server: grpc.aio.Server | None = None
        self._reloading: set[asyncio.Future[None]] = set()
        self._stop_asked = asyncio.Event()
        self._now_asked = asyncio.Event()

    async def start(self) -> None:
        """Serve. Raises what hinders it, naming the config key; nothing is left behind then."""
        try:
            await self._open()
        except BaseException:
            await self._closing.aclose()
            raise
        self.ready_s = time.monotonic() - self._started_at
        log.info("serving on %s after %.3f s", self.address, self.ready_s)

    async def stop(self, *, drain: bool = True) -> None:
        """Stop as described above; without `drain`, or once `request_stop` came twice, at once. May be repeated."""
        if self._server is None or self.host is None:
            return
        server, host = self._server, self.host
        self._server = None
        try:
            self._set_health(serving=False)
            await self._sessions.announce_draining(host.epoch)
            if drain and not self._now_asked.is_set():
                await self._drain(host)
        finally:
            self._watchers.close()
            try:
                await server.stop(None if self._now_asked.is_set() else STOP_GRACE_S)
            finally:
                await self._closing.aclose()
                self.host = None
        log.info("stopped")

    def request_stop(self) -> None:
        """Ask `serve` to stop: the first time with a drain, the second time at once."""
        if self._stop_asked.is_set():
            self._now_asked.set()
        self._stop_asked.set()

    async def serve(self) -> None:
        """Start, serve until `request_stop`, stop."""
        await self.start()
        await self.wait_stop()

    async def wait_stop(self) -> None:
        """Serve until `request_stop`, then stop."""
        try:
            await self._stop_asked.wait()
        finally:
            await self.stop()

    def request_reload(self) -> None:
        """Ask for a `reload` beside the serving."""
        reloading = asyncio.ensure_future(asyncio.to_thread(self.reload))
        self._reloading.add(reloading)
        reloading.add_done_callback(self._reloading.discard)

    def reload(self) -> None:
        """Read the config again and go by it as far as that needs no restart; a bad one changes nothing. What was done,
        and what was not, is logged. From any thread."""
        host = self.host
        if host is None or self._load is None:
            return
        try:
            loaded = self._load()
            tokens = None if self._identities is None else self._identities.read_tokens()
            update = host.reload_config(loaded.config)
            if self._identities is not None and tokens is not None:
                self._identities.use_tokens(tokens)
        except HybridKVError as error:
            log.error("config not reloaded, nothing was changed: %s", error)
            return
        except Exception:
            log.exception("config not reloaded")
            return
        self._sources.update({change.key: loaded.sources[change.key] for change in update.changed})
        log.info("config reloaded: version %d, %d keys changed", update.version, len(update.changed))
        for key, reason in sorted(update.needs_restart.items()):
            log.warning("config: %s was changed but stays as it is: it %s", key, reason)

    def stats(self) -> dict[str, Any]:
        """The host's figures, and those of the calls. From any thread."""
        host = self.host
        return {} if host is None else {**host.stats(), "calls": self.counters.snapshot()}

    # ------------------------------------------------------------------------------------------------------- start

    async def _open(self) -> None:
        path = socket_path(self.config.daemon.socket)
        self._identities = Identities(self.config) if self.config.tenants else None
        claim = SocketClaim(path)
        self._closing.callback(claim.close)
        host = self._make_host(self.config)
        self._closing.push_async_callback(asyncio.to_thread, host.close)
        mode = int(self.config.daemon.socket_mode, 8)
        side = SideSocket(side_socket_path(path), host, identities=self._identities, mode=mode)
        await side.start()
        self._closing.push_async_callback(side.close)
        self._watchers = Watchers(host)
        admin = AdminServicer(host, self.stats, self._sources, self._watchers)
        self._closing.callback(admin.close)
        servicers = Servicers(
            session=SessionServicer(host, self._sessions, side),
            kvcache=KVCacheServicer(host, self._sessions),
            sequences=SequencesServicer(host),
            admin=admin,
            health=self._health,
        )
        self.host = host
        self._open_metrics()
        await self._open_server(servicers)
        for name, running in (("health", self._watch_health()), ("watch", self._watchers.run())):
            task = asyncio.create_task(running, name=name)
            self._closing.callback(task.cancel)

    async def _open_server(self, servicers: Servicers) -> None:
        gate = None if self._identities is None or self.host is None else Gate(self._identities, self.host)
        server = make_server(self.config.limits, self.counters, servicers, gate)
        try:
            self.tcp_port = add_ports(server, self.config)
            self._set_health(serving=True)
            await server.start()
        except BaseException:
            await server.stop(None)  # ports that were bound before the failure
            raise
        self._server = server

    def _open_metrics(self) -> None:
        daemon = self.config.daemon
        if daemon.metrics_port:
            from hybridkv.service.metrics import MetricsServer  # 20 ms that a daemon without metrics need not spend

            metrics = MetricsServer(self.stats, daemon.metrics_address, daemon.metrics_port)
            self._closing.push_async_callback(asyncio.to_thread, metrics.close)

    # ------------------------------------------------------------------------------------------------------ health

    async def _watch_health(self) -> None:
        """Keeps the health service true to the host."""
        while self._server is not None:
            self._set_health(serving=True)
            await asyncio.sleep(HEALTH_INTERVAL_S)

    def _set_health(self, *, serving: bool) -> None:
        """Each component answers by its name ("hybridkv.disk"). Our services serve as long as ESSENTIAL ones work: a
        tier that is off costs hits, and a supervisor that restarted the daemon for it would cost all of them."""
        components = self._probed()
        for name, (ok, _) in components.items():
            self._health.set(f"hybridkv.{name}", ok)
        well = serving and all(ok for name, (ok, _) in components.items() if name in ESSENTIAL)
        for service in ("", *SERVICES):
            self._health.set(service, well)

    def _probed(self) -> Mapping[str, tuple[bool, str]]:
        """A bug in a probe must end neither the watch, which would freeze the answer, nor the stop."""
        try:
            return dict(self.host.health()) if self.host is not None else {}
        except Exception:
            log.exception("health probe failed")
            return {"probe": (False, "failed; see the daemon's log")}

    # ------------------------------------------------------------------------------------------------------- stop

    async def _drain(self, host: Host) -> None:
        """Bring to disk what is only in volatile tiers, for `drain_s` at most or until the stop becomes urgent."""
        loop = asyncio.get_running_loop()
        drained: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not drained.done():
                drained.set_result(None)

        def work() -> None:
            try:
                report = host.drain(host.config.daemon.drain_s)
                level = logging.WARNING if report.left else logging.INFO
                log.log(level, "drained: %d blocks written, %d left in volatile tiers", report.written, report.left)
            except Exception:
                log.exception("drain failed")
            with contextlib.suppress(RuntimeError):  # the loop is closed: the stop did not wait
                loop.call_soon_threadsafe(finish)

        # A daemon thread: an urgent stop leaves it behind, and the interpreter's exit does not wait for it.
        threading.Thread(target=work, name="drain", daemon=True).start()
        urgent = asyncio.ensure_future(self._now_asked.wait())
        await asyncio.wait((drained, urgent), return_when=asyncio.FIRST_COMPLETED)
        urgent.cancel()
        drained.cancel()


def run(
    config: Config,
    sources: Mapping[str, str] | None = None,
    load: Callable[[], LoadedConfig] | None = None,
    *,
    cold: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends the drain. SIGHUP reloads what `load` reads. `ready_s` counts
    from the process's start. `cold`: what a daemon before this one left in memory is discarded."""
    logging.basicConfig(
        level=config.daemon.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    asyncio.run(_run(config, sources, load, cold))


async def _run(
    config: Config, sources: Mapping[str, str] | None, load: Callable[[], LoadedConfig] | None, cold: bool
) -> None:
    warm = config.daemon.warm_restart

    def make_host(chosen: Config) -> Host:
        return Host(chosen, inherit=warm and not cold, bequeath=warm)

    daemon = Daemon(config, sources, make_host=make_host, started_at=_process_start(), load=load)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, daemon.request_reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.request_stop)
    await daemon.start()
    spare_collections()
    await daemon.wait_stop()


def spare_collections() -> None:
    """What the process holds now stays to its end: garbage collections look at it no more, which took tens of
    milliseconds, often with the directory's lock held. The directory's own memory is columns, nothing to look at."""
    gc.collect()
    gc.freeze()


def _process_start() -> float:
    """When this process started, on the monotonic clock, to about 10 ms."""
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - own_start_time() / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
