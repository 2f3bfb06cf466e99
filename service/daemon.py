"""The daemon: a `Host` and everything through which others reach it.

`run` is what `hybridkv serve` calls; `serve` is the same without signal handlers and logging, for embedding (see
`in_thread.py`). Order at the start: claim the socket, build the host, bind, serve. Order at the stop: refuse new
sessions and tell the attached, drain to disk, end calls, close the host, give up the socket.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from hybridkv.service.config import Config, LoadedConfig
from hybridkv.service.facade import Host
from hybridkv.service.grpc_server import SERVICES, Servicers, add_ports, make_server
from hybridkv.service.identities import Identities
from hybridkv.service.listening import SCHEME, SocketClaim, side_socket_path, socket_path
from hybridkv.service.probes import Health
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
from hybridkv.service.watchdog import Watchdog
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.loops import Pulse

log = logging.getLogger(__name__)

BEAT_S = 1.0
EVENT_LOOP_STUCK_S = 10.0
LIVE_SERVICE, READY_SERVICE = "hybridkv.live", "hybridkv.ready"
"""Names in the health service: restart it if not live; send it no work if not ready."""

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
        self._serving = False
        self._watchdog: Watchdog | None = None
        self._looked = asyncio.Event()
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
            self._serving = False
            self._tell_health()
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
        read = "" if tokens is None else ", token files read again"
        log.info("config reloaded: version %d, %d keys changed%s", update.version, len(update.changed), read)
        for key, reason in sorted(update.needs_restart.items()):
            log.warning("config: %s was changed but stays as it is: it %s", key, reason)

    def stats(self) -> dict[str, Any]:
        """The host's figures, and those of the calls. From any thread."""
        host = self.host
        if host is None:
            return {}
        found: dict[str, Any] = {**host.stats(), "calls": self.counters.snapshot()}
        if (watchdog := self._watchdog) is not None:
            own = {name: {"ok": ok, "reason": reason} for name, (ok, reason) in watchdog.health.items()}
            loops = {pulse.name: pulse.figures for pulse in watchdog.pulses}
            found["health"] = {**own, **found.get("health", {})}
            found["loops"] = {**found.get("loops", {}), **loops}
        return found

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
        self._start_watchdog(host)
        assert self._watchdog is not None
        self._watchers = Watchers(host, self._watchdog.watch)
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
        self._keep_running(self._beat, self._watchdog.event_loop)
        self._keep_running(self._watchers.run, self._watchdog.watch)

    async def _open_server(self, servicers: Servicers) -> None:
        gate = None if self._identities is None or self.host is None else Gate(self._identities, self.host)
        server = make_server(self.config.limits, self.counters, servicers, gate)
        try:
            self.tcp_port = add_ports(server, self.config)
            self._serving = True
            self._tell_health()
            await server.start()
        except BaseException:
            await server.stop(None)  # ports that were bound before the failure
            raise
        self._server = server

    def _open_metrics(self) -> None:
        daemon = self.config.daemon
        if daemon.metrics_port:
            from hybridkv.service.metrics import MetricsServer  # 20 ms that a daemon without metrics need not spend

            probes = {"/healthz": lambda: (self.live, self.health()), "/readyz": lambda: (self.ready, self.health())}
            metrics = MetricsServer(self.stats, daemon.metrics_address, daemon.metrics_port, probes)
            self._closing.push_async_callback(asyncio.to_thread, metrics.close)

    # ------------------------------------------------------------------------------------------------------ health

    def _start_watchdog(self, host: Host) -> None:
        loop = asyncio.get_running_loop()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the look came too late
                loop.call_soon_threadsafe(self._looked.set)

        self._watchdog = watchdog = Watchdog(host.health, told)
        self._closing.push_async_callback(asyncio.to_thread, watchdog.close)
        watchdog.start()

    def _keep_running(self, body: Callable[[], Awaitable[None]], pulse: Pulse) -> None:
        """Until the stop; an error is counted, and the body begins again."""

        async def run() -> None:
            while True:
                try:
                    await body()
                except Exception as error:
                    pulse.end()
                    pulse.failed(error)
                    await asyncio.sleep(pulse.pause_s)

        task = asyncio.create_task(run(), name=pulse.name)
        pulse.alive = lambda: not task.done()
        self._closing.callback(task.cancel)

    async def _beat(self) -> None:
        """Shows that the event loop turns, and tells what the watchdog cannot tell when it hangs itself."""
        assert self._watchdog is not None
        pulse = self._watchdog.event_loop
        pulse.within_s, pulse.stuck_after_s = BEAT_S, EVENT_LOOP_STUCK_S
        while True:
            pulse.beat()
            self._looked.clear()
            self._tell_health()
            pulse.well()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._looked.wait()

    def _tell_health(self) -> None:
        """Each component answers by its name ("hybridkv.disk"), "hybridkv.live" and "hybridkv.ready" for all. Our services
        serve as long as the ones they cannot do without work."""
        watchdog = self._watchdog
        if watchdog is None:
            return
        for name, (ok, _) in watchdog.health.items():
            self._health.set(f"hybridkv.{name}", ok)
        self._health.set(LIVE_SERVICE, watchdog.alive())
        for service in ("", READY_SERVICE, *SERVICES):
            self._health.set(service, self.ready)

    @property
    def live(self) -> bool:
        """Nothing hangs or is dead: a restart would mend nothing. From any thread."""
        return self._watchdog is not None and self._watchdog.alive()

    @property
    def ready(self) -> bool:
        """It takes work, and every service does its own. From any thread."""
        return self._serving and self._watchdog is not None and self._watchdog.works()

    def health(self) -> Health:
        """Component → (works, why not), as of the last look. From any thread; never waits."""
        return {} if self._watchdog is None else self._watchdog.health

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
