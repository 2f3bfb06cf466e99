"""A process that fills a directory and says what that took: `python -m hybridkv.benchmarks.directory_child COUNT`.

One line of JSON: bytes of process heap that each block takes, milliseconds of the longest garbage collections (before
and with the blocks), and of the slowest call that sealed a chain while the directory grew. The daemon's modules are loaded
and spared by collections as in a daemon. Milliseconds are processor time, what an idle machine would show.
"""

import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hybridkv.benchmarks.directory_rig import CHAIN, CPU, DirectoryRig
from hybridkv.service.own_process import spare_collections

_COLLECTIONS = 5


def heap_bytes() -> int:
    """Anonymous memory of this process that is there: its heap, and not what only has an address."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def slowest_collection_ms() -> float:
    """The longest of some full collections."""
    taken = []
    for _ in range(_COLLECTIONS):
        begin = time.thread_time()
        gc.collect()
        taken.append((time.thread_time() - begin) * 1e3)
    return max(taken)


class Pauses:
    """The longest collection that the interpreter began by itself, in milliseconds."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._begin = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._begin = now
        else:
            self.longest_ms = max(self.longest_ms, (now - self._begin) * 1e3)


def main(arguments: Sequence[str]) -> None:
    count = int(arguments[0])
    spare_collections()
    before_ms = slowest_collection_ms()
    before = heap_bytes()
    pauses = Pauses()
    rig = DirectoryRig(count)
    rig.fill()
    kept = sum(map(sys.getsizeof, rig.keys)) + sys.getsizeof(rig.keys)
    filled = heap_bytes() - kept - before
    calls = []
    for _ in range(count // 20 // CHAIN):
        keys = rig.chain()
        begin = time.thread_time()
        rig.seal(keys, CPU)
        rig.evict(CPU, CHAIN)
        calls.append(time.thread_time() - begin)
    found = {
        "bytes_per_block": filled / count,
        "collection_before_ms": before_ms,
        "collection_ms": max(slowest_collection_ms(), pauses.longest_ms),
        "own_collection_ms": pauses.longest_ms,
        "slowest_seal_ms": max(calls) * 1e3,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
