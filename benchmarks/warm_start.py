"""How long a warm start takes: a CPU tier of many small blocks is left behind, and taken over.

`python -m hybridkv.benchmarks.warm_start COUNT` prints one JSON line.
Times are of the host in this process; a daemon's own start (imports, sockets) comes on top.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import xxhash

from hybridkv.service.config import Config, load_config
from hybridkv.service.facade import Host
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

BLOCK_BYTES = 4096
CHAIN = 4096
"""Blocks of one call, and of one chain."""
KEY_BYTES = 16
CALL_S = 30.0
SPACE = Namespace(model="warm-start", layout=BlockLayout.opaque(BLOCK_BYTES, 16, "t"), key_bytes=KEY_BYTES)


def config_for(folder: Path, count: int) -> Config:
    """A CPU tier with room for `count` blocks, on which nothing moves by itself."""
    given: dict[str, object] = {
        "daemon.socket": f"unix://{folder}/kv.sock",
        "cpu.shm_dir": str(folder),
        "cpu.capacity_bytes": -(-count * BLOCK_BYTES // (1 << 30)) * (1 << 30) + (1 << 30),
        "cpu.idle_timeout_s": 0,
        "cpu.high_watermark": 1.0,
        "cpu.low_watermark": 1.0,
    }
    return load_config(overrides=given, env={})


def fill(host: Host, count: int) -> list[Keys]:
    """Chains of sealed blocks, all of zeros."""
    rng = np.random.default_rng(1)
    session = host.attach(SPACE, in_process=True).session
    zeros = xxhash.xxh3_64_intdigest(bytes(BLOCK_BYTES))
    chains = []
    for first in range(0, count, CHAIN):
        chains.append(Keys(rng.bytes(min(CHAIN, count - first) * KEY_BYTES), KEY_BYTES))
        ticket = host.reserve(session, chains[-1])
        ticket.wait(CALL_S)
        sums = np.full(len(chains[-1]), zeros, np.uint64)
        host.seal(session, ticket.reply().reservation, None, sums)
    return chains


def read(host: Host, keys: Keys) -> float:
    """Seconds until all of `keys` are leased."""
    session = host.attach(SPACE, in_process=True).session
    began = time.monotonic()
    ticket = host.acquire(session, keys)
    ticket.wait(CALL_S)
    took_s = time.monotonic() - began
    host.detach(session)
    return took_s


def measure(count: int) -> dict[str, float]:
    """Figures of one restart with `count` blocks."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hybridkv-warm-") as folder:
        config = config_for(Path(folder), count)
        host = Host(config, bequeath=True)
        chains = fill(host, count)
        host.close()
        cold = time.monotonic()
        Host(config, instance="other").close()
        began, before = time.monotonic(), time.process_time()
        host = Host(config, inherit=True)
        opened_s, processor_s = time.monotonic() - began, time.process_time() - before
        first_s, again_s = read(host, chains[0]), read(host, chains[0])
        found = {
            "blocks": host.memory.taken.blocks,
            "cold_open_and_close_s": began - cold,
            "warm_open_s": opened_s,
            "warm_open_processor_s": processor_s,
            "takeover_s": host.memory.taken.took_s,
            "first_acquire_of_4096_s": first_s,
            "second_acquire_of_4096_s": again_s,
            "findings": len(host.check()),
        }
        host.close()
    return {name: round(value, 4) for name, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
