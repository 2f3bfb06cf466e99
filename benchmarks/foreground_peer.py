"""A worker process that acquires one resident block: `python -m hybridkv.benchmarks.foreground_peer ADDRESS BYTES NUMBER`.

Each line on standard input is a number of calls; each is answered with one line of JSON, the seconds of each call.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence

LIMIT_S = 2.0


def acquire_times(call: Callable[[], None], calls: int) -> list[float]:
    """Seconds of each of `calls` calls, or of as many as go into `LIMIT_S` on a busy machine."""
    taken: list[float] = []
    end = time.perf_counter() + LIMIT_S
    while len(taken) < calls and (begin := time.perf_counter()) < end:
        call()
        taken.append(time.perf_counter() - begin)
    return taken


def main(arguments: Sequence[str]) -> None:
    from hybridkv.benchmarks.lane_rig import keys, space_of
    from hybridkv.service.client import connect

    address, block_bytes, number = arguments
    wanted = keys([int(number)])
    with connect(address, space_of(int(block_bytes))) as kv:

        def call() -> None:
            with kv.acquire(wanted, timeout_s=10) as lease:
                if lease.prefix != 1:
                    raise SystemExit("the block is not there")

        for line in sys.stdin:
            print(json.dumps(acquire_times(call, int(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
