"""Chain prefetch, measured: a trace against hosts in this process that fetch ahead more or less far.

    python -m hybridkv.benchmarks.chain_prefetch [TRACE] [--most 0 8 32] [--pieces 0 8]

One worker replays the trace; a request comes each second of a clock of its own. It acquires its chain for the GPU tier, whole
(0) or in pieces of so many blocks, as an engine does that schedules its prefill; then it writes what was missing. Between two
calls the lanes are drained, so that what was begun has landed. Told, as shares of all block accesses: blocks that were on
the GPU when they were asked for, and blocks that were anywhere; and what became of the guesses.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridkv.benchmarks.workload import TAU_BENCH, Request, load_trace, unique_count
from hybridkv.service.config import load_config
from hybridkv.service.facade import Host
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, ReserveOutcome, Tier

BLOCK_BYTES = 4096
GPU_SHARE, CPU_SHARE = 0.10, 0.40
"""Of the trace's unique blocks; the disk has room for all."""

LEAST_BLOCKS = 512
"""The GPU pool has room for a whole prompt."""

_OFF = {"gpu.idle_timeout_s": 0, "cpu.idle_timeout_s": 0, "migration.host_pressure_high": 1.0}


class Replay:
    """One host and the worker on it; `found` counts block accesses by where the block was."""

    def __init__(self, folder: Path, unique: int, most_blocks: int, piece_blocks: int) -> None:
        self.clock = ManualClock()
        self.piece_blocks = piece_blocks
        config = load_config(
            env={},
            overrides={
                **_OFF,
                "daemon.socket": f"unix://{folder}/kv.sock",
                "cpu.shm_dir": str(folder),
                "cpu.capacity_bytes": max(LEAST_BLOCKS, int(CPU_SHARE * unique)) * BLOCK_BYTES,
                "gpu.devices": ["host:0"],
                "gpu.capacity_bytes": max(LEAST_BLOCKS, int(GPU_SHARE * unique)) * BLOCK_BYTES,
                "disk.path": str(folder / "disk"),
                "disk.capacity_bytes": 4 * unique * BLOCK_BYTES + (64 << 20),
                "migration.chain_prefetch_max_blocks": most_blocks,
            },
        )
        self.host = Host(config, clock=self.clock, start_loop=False)
        space = Namespace(model="trace", layout=BlockLayout.opaque(BLOCK_BYTES, 16, "trace"), key_bytes=16)
        self.session = self.host.attach(space, in_process=True).session
        self.found: Counter[str] = Counter()

    def serve(self, request: Request) -> None:
        """One request from its first acquire to its end."""
        self.clock.advance(1.0)
        keys = Keys.of([int(block).to_bytes(16, "little") for block in request.blocks])
        step = self.piece_blocks or len(keys)
        leases, known = [], 0
        for at in range(0, len(keys), step):
            piece = keys[at : at + step]
            leases.append(self._acquire(piece, request.index))
            known += self.hits
            if self.hits < len(piece):
                break
        self.found["accesses"] += len(keys)
        self._write(keys, known, request.index)
        for lease in leases:
            self.host.release(self.session, lease)
        self.host.end_request(self.session, request.index)
        self.host.tick()
        self.settle()

    def _acquire(self, keys: Keys, request: int) -> int:
        found = self.host.lookup(self.session, keys)
        misses = np.flatnonzero(found.states != Outcome.HIT)
        self.hits = int(misses[0]) if len(misses) else len(keys)
        for tier in found.tiers[: self.hits].tolist():
            self.found[Tier(tier).name] += 1
        ticket = self.host.acquire(self.session, keys, tier=Tier.GPU, request=request)
        self.settle()
        return ticket.reply().lease

    def _write(self, keys: Keys, known: int, request: int) -> None:
        if known == len(keys):
            return
        parent = keys[known - 1] if known else None
        ticket = self.host.reserve(self.session, keys[known:], parent=parent, tier=Tier.GPU, request=request)
        self.settle()
        reply = ticket.reply()
        new = np.flatnonzero(reply.outcomes == ReserveOutcome.NEW)
        if len(new):
            self.host.seal(self.session, reply.reservation, new, None)

    def settle(self) -> None:
        if not self.host.migrator.quiesce(60.0):
            raise TimeoutError("the lanes do not come to rest")

    def line(self, most_blocks: int) -> str:
        """The figures of the whole replay."""
        counters, all_of = self.host.directory.state.counters, self.found["accesses"]
        anywhere = sum(self.found[tier.name] for tier in Tier)
        return (
            f"{self.piece_blocks:>6} {most_blocks:>5} {self.found['GPU'] / all_of:>8.4f} {anywhere / all_of:>9.4f}"
            f" {counters['chain_prefetched']:>8} {counters['chain_prefetch_used']:>7}"
            f" {counters['chain_prefetch_wasted']:>7}"
        )


def replay(requests: Sequence[Request], most_blocks: int, piece_blocks: int) -> str:
    """One line of figures."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        run = Replay(Path(folder), unique_count(requests), most_blocks, piece_blocks)
        try:
            for request in requests:
                run.serve(request)
            return run.line(most_blocks)
        finally:
            run.host.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path, nargs="?", default=TAU_BENCH)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--most", type=int, nargs="+", default=[0, 8, 32])
    parser.add_argument("--pieces", type=int, nargs="+", default=[0, 8])
    options = parser.parse_args()
    requests = load_trace(options.trace, options.limit)
    print("pieces  most  on GPU  anywhere  guessed    used  wasted")
    for piece_blocks in options.pieces:
        for most_blocks in options.most:
            print(replay(requests, most_blocks, piece_blocks), flush=True)


if __name__ == "__main__":
    main()
