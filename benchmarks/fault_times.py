"""Page faults over RPC to a daemon in a process of its own, one by one and in batches; and opening a long cached sequence."""

from collections.abc import Callable

import numpy as np

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, interleaved, lap
from hybridkv.benchmarks.paging_rig import WAIT_S, beside, numbered, space_of
from hybridkv.benchmarks.report import Better, Row
from hybridkv.service.client import KV
from hybridkv.service.client.sequence import Sequence

BLOCK_BYTES, BLOCK_TOKENS = 4096, 16
POOL_BLOCKS = 8192
BATCH = 64
MOST_OF_ONE = 2.0
CALLS = 16
"""Calls in one lap, so that a lap is long against the clock's grain and the scheduler's."""


class _Fresh:
    """Blocks that were never written, of one sequence after another: what a minor fault is made for."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._sequence: Sequence | None = None
        self._next = self._opened = 0

    def __call__(self, calls: int, blocks: int) -> Lap:
        """`calls` write faults of so many blocks each."""
        if self._sequence is None or self._next + calls * blocks > POOL_BLOCKS // 2:
            self._open_another()
        assert self._sequence is not None
        starts = range(self._next, self._next + calls * blocks, blocks)
        self._next += calls * blocks
        wanted = [range(start, start + blocks) for start in starts]
        with lap() as taken:
            for each in wanted:
                self._sequence.fault(each, write=True, timeout_s=WAIT_S)
        return taken

    def _open_another(self) -> None:
        if self._sequence is not None:
            self._sequence.close()
        self._opened += 1
        self._next = 0
        self._sequence = self._kv.open_sequence(numbered(POOL_BLOCKS * BLOCK_TOKENS, self._opened << 20))


def minor(setting: Setting) -> list[Row]:
    """Write faults to unmapped pages, beside one RPC that does nothing (a lookup of one key)."""
    with beside(setting.folder, space_of(BLOCK_BYTES, BLOCK_TOKENS), gpu_blocks=POOL_BLOCKS, cpu_blocks=64) as kv:
        fresh = _Fresh(kv)
        found = interleaved(
            {"rpc": _rpc(kv), "one": lambda: fresh(CALLS, 1), "batch": lambda: fresh(CALLS, BATCH)},
            max(15, setting.pairs),
        )
    rpc, one, batch = (found[name].wall_s / CALLS * 1e3 for name in ("rpc", "one", "batch"))
    return [
        Row("fault, one page, minor", one, "ms", rpc, better=Better.LOWER),
        Row(f"fault, {BATCH} pages in a call, minor", batch, "ms", one, MOST_OF_ONE, Better.LOWER),
    ]


def major(setting: Setting) -> list[Row]:
    """Read faults on pages that lie in host memory, beside one RPC: one by one, and in one call."""
    space = space_of(BLOCK_BYTES, BLOCK_TOKENS)
    with beside(setting.folder, space, gpu_blocks=1024, cpu_blocks=1024) as kv:
        sequence = kv.open_sequence(numbered(BATCH * BLOCK_TOKENS))
        sequence.write_blocks(range(BATCH), np.ones((BATCH, BLOCK_BYTES), np.uint8), timeout_s=WAIT_S)
        sequence.publish(timeout_s=WAIT_S)

        def faults(calls: int, blocks: int) -> Lap:
            sequence.suspend(timeout_s=WAIT_S)
            sequence.fault([BATCH - 1], timeout_s=WAIT_S)  # wakes it
            wanted = [range(start, start + blocks) for start in range(0, calls * blocks, blocks)]
            with lap() as taken:
                for each in wanted:
                    sequence.fault(each, timeout_s=WAIT_S)
            return taken

        found = interleaved(
            {"rpc": _rpc(kv), "one": lambda: faults(CALLS, 1), "batch": lambda: faults(1, BATCH - 1)},
            max(9, setting.pairs),
        )
    rpc, one = (found[name].wall_s / CALLS * 1e3 for name in ("rpc", "one"))
    batch = found["batch"].wall_s * 1e3
    return [
        Row("fault, one page, major", one, "ms", rpc, better=Better.LOWER),
        Row(f"fault, {BATCH - 1} pages in a call, major", batch, "ms", one * (BATCH - 1), better=Better.LOWER),
    ]


def _rpc(kv: KV) -> Callable[[], Lap]:
    key = kv.keys(numbered(BLOCK_TOKENS))

    def run() -> Lap:
        with lap() as taken:
            for _ in range(CALLS):
                kv.lookup(key)
        return taken

    return run
