"""How fast blocks are read and written through the client, beside plain copies of the same bytes and bare echoes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, Timed, interleaved, lap
from hybridkv.benchmarks.lane_rates import size_text
from hybridkv.benchmarks.lane_rig import KEY_BYTES, KIB, MIB, keys
from hybridkv.benchmarks.report import Better, Row
from hybridkv.benchmarks.rpc_calls import Ground, fill, ground, repeated
from hybridkv.service.client.translations import CALL_FREE
from hybridkv.service.config import Config
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.shm import SharedRegion
from hybridkv.tiers.states import Outcome

Bytes = npt.NDArray[np.uint8]
BATCH = 64
BLOCK_SIZES = (16 * KIB, 64 * KIB, 256 * KIB, 2 * MIB)
ONE_SIZES = (64 * KIB, MIB)
SET_BYTES = 256 * MIB
"""What the batches are drawn from: more than the caches of the processors hold."""
LAP_BYTES = 64 * MIB
LEASED, HELD, CALL_FREE_NAME, WRITTEN = (
    "leased read, acquire to release",
    "copy under a held lease",
    "read of known blocks, no call",
    "reserve, fill, seal",
)
LEAST = {LEASED: 0.7, HELD: 0.9, CALL_FREE_NAME: None, WRITTEN: 0.7}
LEAST_ONE = {64 * KIB: None, MIB: 0.8}
CALL_BYTES = 64
"""Of a call beside its keys, slots and states, roughly."""


def name_of(what: str, block_bytes: int) -> str:
    return f"{what}, {BATCH} × {size_text(block_bytes)}"


def one_name(block_bytes: int) -> str:
    return f"repeated read of one known block, {size_text(block_bytes)}"


@dataclass(frozen=True, slots=True)
class _Set:
    """Batches of distinct blocks in random order, and plain memory of the same kind, size and order."""

    on: Ground
    batches: list[Keys]
    orders: list[list[int]]
    memory: Bytes
    block_bytes: int

    @property
    def out(self) -> Bytes:
        return np.ones((BATCH, self.block_bytes), np.uint8)

    def plain(self, echoes: Callable[[], None] | None) -> Timed:
        """The same blocks copied with nothing but NumPy, views made beforehand; with `echoes` two of them a batch."""
        rows, size = list(self.out), self.block_bytes
        sources = [[self.memory[i * size : (i + 1) * size] for i in order] for order in self.orders]

        def run() -> Lap:
            with lap() as taken:
                for blocks in sources:
                    for row, block in zip(rows, blocks, strict=True):
                        np.copyto(row, block)
                    if echoes is not None:
                        echoes()
            return taken

        return run

    def over(self, read: Callable[[Keys, Bytes], Any]) -> Timed:
        """`read` of each batch."""
        out = self.out

        def run() -> Lap:
            with lap() as taken:
                for batch in self.batches:
                    read(batch, out)
            return taken

        return run


@contextmanager
def _set(setting: Setting, block_bytes: int, set_bytes: int) -> Iterator[_Set]:
    count = max(BATCH, set_bytes // block_bytes)
    batches = max(1, min(count // BATCH, LAP_BYTES // (BATCH * block_bytes)))
    with (
        ground(setting, block_bytes, count * block_bytes * 5 // 4 + 64 * MIB) as on,
        _region(count * block_bytes) as memory,
    ):
        fill(on.kv, count)
        shuffled = np.random.default_rng(6).permutation(count)
        orders = [shuffled[i * BATCH : (i + 1) * BATCH].tolist() for i in range(batches)]
        yield _Set(on, [keys(order) for order in orders], orders, memory, block_bytes)


@contextmanager
def _region(nbytes: int) -> Iterator[Bytes]:
    """Shared memory as the pools are made of."""
    region = SharedRegion.create(Path(Config().cpu.shm_dir) / f"hybridkv-bench-{os.getpid()}", nbytes)
    try:
        region.commit(0, nbytes)
        region.array[:] = 1
        yield region.array
    finally:
        region.unlink()
        region.close()


def reads(setting: Setting, block_bytes: int, set_bytes: int = SET_BYTES) -> list[Row]:
    """Batches of 64 blocks in random order: under leases of their own, under one that is held, and without a call."""
    with _set(setting, block_bytes, set_bytes) as blocks:
        kv, nbytes = blocks.on.kv, len(blocks.batches) * BATCH * block_bytes
        echoes = _echoes(blocks.on, BATCH * (SLOT_DTYPE.itemsize + 1), CALL_BYTES)
        leases = {batch: kv.acquire(batch, independent=True) for batch in blocks.batches}

        def leased(batch: Keys, out: Bytes) -> None:
            with kv.acquire(batch, independent=True) as lease:
                lease.read_into(out)

        def known(batch: Keys, out: Bytes) -> None:
            if not (kv.read(batch, out) == Outcome.HIT).all():
                raise AssertionError("a block was not there")

        laps = interleaved(
            {
                "plain": blocks.plain(None),
                "plain and echoes": blocks.plain(echoes),
                LEASED: blocks.over(leased),
                HELD: blocks.over(lambda batch, out: leases[batch].read_into(out)),
                CALL_FREE_NAME: blocks.over(known),
            },
            setting.pairs,
        )
        for lease in leases.values():
            lease.release()
    floors = {LEASED: "plain and echoes", HELD: "plain", CALL_FREE_NAME: "plain"}
    return [
        Row(name_of(what, block_bytes), laps[what].gb_per_s(nbytes), "GB/s", laps[floor].gb_per_s(nbytes), LEAST[what])
        for what, floor in floors.items()
        if what != CALL_FREE_NAME or CALL_FREE
    ]


def _echoes(on: Ground, first_reply: int, first_request: int = 0) -> Callable[[], None]:
    """Echoes of as many bytes as the two calls for a batch have."""
    first = on.echo.prepared(CALL_BYTES + BATCH * KEY_BYTES + first_request, CALL_BYTES + first_reply)
    second = on.echo.prepared(CALL_BYTES, CALL_BYTES)

    def both() -> None:
        first()
        second()

    return both


def one_block(setting: Setting, block_bytes: int) -> list[Row]:
    """The same block again and again, as a worker that comes back to a system prompt does."""
    times = max(50, 32 * MIB // block_bytes)
    with _set(setting, block_bytes, BATCH * block_bytes) as blocks:
        kv, wanted, out = blocks.on.kv, keys([0]), np.ones((1, block_bytes), np.uint8)
        row, source = out[0], blocks.memory[:block_bytes]
        laps = interleaved(
            {
                "plain": repeated(lambda: np.copyto(row, source), times),
                "read": repeated(lambda: kv.read(wanted, out), times),
            },
            setting.pairs,
        )
    value, floor = (laps[name].wall_s / times * 1e6 for name in ("read", "plain"))
    least = LEAST_ONE[block_bytes]
    return [
        Row(one_name(block_bytes), value, "µs", floor, None if least is None else 1 / least, Better.LOWER),
    ]


def writes(setting: Setting, block_bytes: int) -> list[Row]:
    """Batches of 64 new blocks; between the batches, untimed, they are removed, so that slots are used again."""
    batches = max(1, min(16, LAP_BYTES // (BATCH * block_bytes)))
    with _set(setting, block_bytes, BATCH * block_bytes) as blocks:
        kv, memory = blocks.on.kv, blocks.memory
        content = np.random.default_rng(7).integers(0, 256, (BATCH, block_bytes), np.uint8)
        wanted = keys(range(1 << 30, (1 << 30) + BATCH))
        echoes = _echoes(blocks.on, BATCH * (SLOT_DTYPE.itemsize + 1))

        def written() -> Lap:
            whole = Lap(0.0, 0.0)
            for _ in range(batches):
                with lap() as taken, kv.reserve(wanted, timeout_s=10.0) as slots:
                    slots.write_from(content)
                    slots.seal()
                kv.remove(wanted)
                whole = Lap(whole.wall_s + taken.wall_s, whole.cpu_s + taken.cpu_s)
            return whole

        def plain() -> Lap:
            with lap() as taken:
                for _ in range(batches):
                    for i, row in enumerate(content):
                        block = memory[i * block_bytes : (i + 1) * block_bytes]
                        np.copyto(block, row)
                        xxhash.xxh3_64_intdigest(block.data)
                    echoes()
            return taken

        laps = interleaved({"floor": plain, WRITTEN: written}, setting.pairs)
    nbytes = batches * BATCH * block_bytes
    return [
        Row(
            name_of(WRITTEN, block_bytes),
            laps[WRITTEN].gb_per_s(nbytes),
            "GB/s",
            laps["floor"].gb_per_s(nbytes),
            LEAST[WRITTEN],
        )
    ]
