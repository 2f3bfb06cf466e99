"""How long small calls take, beside bare echoes of the same bytes."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, Timed, interleaved, lap
from hybridkv.benchmarks.lane_rig import KEYS_PER_CALL, MIB, keys, space_of
from hybridkv.benchmarks.report import Better, Row
from hybridkv.benchmarks.rpc_peers import Echo, Peer
from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.client import KV, connect
from hybridkv.service.client.aio import connect_async
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.pools import SLOT_DTYPE

BLOCK_BYTES = 4096
CALLS = 100
LOOKUPS = 10
LOOKUP_KEYS = 2000
TWO_ECHOES, MOST_ECHOES = 1.6, {10_000: 1.6, 1_000_000: 5.0}
ACQUIRE = "acquire and release of one resident block"
ACQUIRE_ASYNC = f"{ACQUIRE}, asyncio"


def lookup_name(blocks: int) -> str:
    return f"lookup of {LOOKUP_KEYS:,} keys among {blocks:,} blocks"


@dataclass(frozen=True, slots=True)
class Ground:
    """A daemon with blocks of the keys 0, 1, 2 …, and an echo server."""

    kv: KV
    echo: Echo
    address: str


@contextmanager
def ground(setting: Setting, block_bytes: int, cpu_bytes: int) -> Iterator[Ground]:
    with ExitStack() as stack:
        daemon = stack.enter_context(Peer("daemon", setting.folder, str(cpu_bytes)))
        echo = Echo(stack.enter_context(Peer("echo", setting.folder)).address)
        stack.callback(echo.close)
        kv = stack.enter_context(connect(daemon.address, space_of(block_bytes), timeout_s=30.0))
        yield Ground(kv, echo, daemon.address)


def fill(kv: KV, count: int) -> None:
    """Blocks whose bytes nobody looks at."""
    for start in range(0, count, KEYS_PER_CALL):
        with kv.reserve(keys(range(start, min(start + KEYS_PER_CALL, count))), timeout_s=30.0) as slots:
            slots._attachment.transport.seal(slots.hold_id, np.array(slots.new), None, timeout_s=30.0)
            slots._open.clear()


def repeated(call: Callable[[], object], times: int) -> Timed:
    def run() -> Lap:
        with lap() as taken:
            for _ in range(times):
                call()
        return taken

    return run


def acquires(setting: Setting, calls: int = CALLS) -> list[Row]:
    """One block of one key, leased and given back, by the blocking client and by the asyncio one."""
    with ground(setting, BLOCK_BYTES, 64 * MIB) as on:
        fill(on.kv, 1)
        wanted = keys([0])
        first, second = _echoes_of_acquire(on, wanted)

        def acquired() -> None:
            on.kv.acquire(wanted).release()

        def echoed() -> None:
            first()
            second()

        laps = interleaved({"floor": repeated(echoed, calls), ACQUIRE: repeated(acquired, calls)}, setting.pairs)
        by_asyncio = asyncio.run(_acquires_async(on.address, wanted, calls, setting.pairs))
    floor = laps["floor"].wall_s / calls * 1e6
    return [
        Row(ACQUIRE, laps[ACQUIRE].wall_s / calls * 1e6, "µs", floor, TWO_ECHOES, Better.LOWER),
        Row(ACQUIRE_ASYNC, by_asyncio / calls * 1e6, "µs", floor, None, Better.LOWER),
    ]


async def _acquires_async(address: str, wanted: Keys, calls: int, rounds: int) -> float:
    taken = []
    async with connect_async(address, space_of(BLOCK_BYTES), timeout_s=30.0) as kv:
        for _ in range(rounds + 1):
            with lap() as found:
                for _ in range(calls):
                    async with kv.acquire(wanted):
                        pass
            taken.append(found.wall_s)
    return median(taken[1:])


def _echoes_of_acquire(on: Ground, wanted: Keys) -> tuple[Callable[[], None], Callable[[], None]]:
    """Echoes of as many bytes as an acquire and a release of one key have."""
    session = on.kv.session
    asked = pb.AcquireRequest(session=session, keys=wanted.packed, key_bytes=wanted.width, views=True)
    told = pb.AcquireReply(
        epoch=on.kv.epoch, lease=1 << 20, states=b"1", slots=bytes(SLOT_DTYPE.itemsize), expires_in_s=30.0
    )
    back, done = pb.ReleaseRequest(session=session, lease=1 << 20), pb.ReleaseReply(epoch=on.kv.epoch)
    return on.echo.prepared(asked.ByteSize(), told.ByteSize()), on.echo.prepared(back.ByteSize(), done.ByteSize())


def lookups(setting: Setting, blocks: int, times: int = LOOKUPS) -> list[Row]:
    """Random keys that are all there, another set at each call."""
    with ground(setting, BLOCK_BYTES, max(64 * MIB, blocks * BLOCK_BYTES * 17 // 16)) as on:
        fill(on.kv, blocks)
        rng = np.random.default_rng(5)
        sets = [keys(rng.integers(0, blocks, LOOKUP_KEYS).tolist()) for _ in range(times)]

        def looked_up() -> Lap:
            with lap() as taken:
                for wanted in sets:
                    on.kv.lookup(wanted)
            return taken

        asked = pb.LookupRequest(session=on.kv.session, keys=sets[0].packed, key_bytes=sets[0].width)
        told = pb.LookupReply(epoch=on.kv.epoch, states=bytes(LOOKUP_KEYS), tiers=bytes(LOOKUP_KEYS))
        echo = repeated(on.echo.prepared(asked.ByteSize(), told.ByteSize()), times)
        laps = interleaved({"floor": echo, "lookup": looked_up}, setting.pairs)
    return [
        Row(
            lookup_name(blocks),
            laps["lookup"].wall_s / times * 1e6,
            "µs",
            laps["floor"].wall_s / times * 1e6,
            MOST_ECHOES.get(blocks),
            Better.LOWER,
        )
    ]
