"""A worker process among several: `python -m hybridkv.benchmarks.crowd_peer ADDRESS BLOCK_BYTES BLOCKS BATCH SEED`.

Each line on standard input is a number of seconds; for so long it acquires, reads and gives back batches of random blocks, and
answers with one line of JSON, the seconds of each. A batch of one block is acquired and not copied.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

BATCHES = 16


def times_of(call: Callable[[int], None], seconds: float) -> list[float]:
    """Seconds of each call that began within `seconds`; at least one."""
    taken: list[float] = []
    began = now = time.perf_counter()
    while not taken or now - began < seconds:
        call(len(taken))
        before, now = now, time.perf_counter()
        taken.append(now - before)
    return taken


def main(arguments: Sequence[str]) -> None:
    from hybridkv.benchmarks.lane_rig import keys, space_of
    from hybridkv.service.client import connect

    address, (block_bytes, blocks, batch, seed) = arguments[0], map(int, arguments[1:])
    rng = np.random.default_rng(seed)
    wanted = [keys(rng.choice(blocks, batch, replace=False).tolist()) for _ in range(BATCHES)]
    out = np.ones((batch, block_bytes), np.uint8)
    with connect(address, space_of(block_bytes), timeout_s=30.0) as kv:

        def call(number: int) -> None:
            with kv.acquire(wanted[number % BATCHES], independent=True) as lease:
                if batch > 1:
                    lease.read_into(out)

        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(times_of(call, float(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
