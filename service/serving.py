"""`hybridkv serve`: a daemon in a process of its own, until a signal ends it."""

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping

from hybridkv.service.config import Config, LoadedConfig
from hybridkv.service.daemon import Daemon
from hybridkv.service.facade import Host
from hybridkv.service.own_process import (
    TRIM_EVERY_S,
    allow_descriptors,
    give_back_freed_memory,
    process_start,
    spare_collections,
)


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

    allow_descriptors()
    daemon = Daemon(config, sources, make_host=make_host, started_at=process_start(), load=load)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, daemon.request_reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.request_stop)
    await daemon.start()
    spare_collections()
    trimming = asyncio.create_task(_give_back_now_and_then(), name="freed memory")
    await daemon.wait_stop()
    trimming.cancel()


async def _give_back_now_and_then() -> None:
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        await asyncio.to_thread(give_back_freed_memory)
