"""A worker process of the demo: commands come as JSON lines on stdin, each is answered with one on stdout.

python -m hybridkv.benchmarks.demo_worker ADDRESS TRACE REQUESTS
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hybridkv
from hybridkv.benchmarks.content import Content
from hybridkv.benchmarks.demo_request import ACQUIRE_WAIT_S, RequestRunner
from hybridkv.benchmarks.demo_space import demo_space
from hybridkv.benchmarks.workload import load_trace
from hybridkv.service.client import KV, Reservation
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome

CALL_S = 30.0
READ_BLOCKS = 64


class Worker:
    """Answers the demo's commands over one handle."""

    def __init__(self, kv: KV, trace: Path, limit: int) -> None:
        self._kv = kv
        self._runner = RequestRunner(kv)
        self._content = Content(kv.space.layout.block_bytes)
        self._requests = load_trace(trace, limit)
        self._torn: Reservation | None = None
        self._commands: dict[str, Callable[[Any], Any]] = {
            "serve": self._serve,
            "read": self._read,
            "write_half": self._write_half,
        }

    def answer(self, line: str) -> str:
        """One command: {"do": name, "with": argument}."""
        command = json.loads(line)
        return json.dumps(self._commands[command["do"]](command["with"]))

    def _serve(self, number: int) -> dict[str, Any]:
        """Serve request `number` of the trace."""
        tokens = self._requests[number].tokens(self._kv.space.layout.block_tokens)
        return self._runner.run(number, self._kv.keys(tokens)).as_json()

    def _read(self, hexes: list[str]) -> dict[str, int]:
        """Read and verify these blocks, whatever their prefixes: how many were there, came too late, were wrong."""
        keys = Keys.of([bytes.fromhex(key) for key in hexes], self._kv.space.key_bytes)
        read = pending = wrong = 0
        for start in range(0, len(keys), READ_BLOCKS):
            part = keys[start : start + READ_BLOCKS]
            with self._kv.acquire(part, tier="cpu", timeout_s=ACQUIRE_WAIT_S, independent=True) as lease:
                hits = [i for i in range(len(part)) if lease.states[i] == Outcome.HIT]
                read += len(hits)
                pending += int(np.count_nonzero(lease.states == Outcome.PENDING))
                wrong += sum(not self._content.verify(part[i], lease.array(i)) for i in hits)
        return {"read": read, "pending": pending, "wrong": wrong, "epoch_changes": self._kv.epoch_changes}

    def _write_half(self, hexes: list[str]) -> dict[str, int]:
        """Reserve these blocks and fill the first half of each; nothing is sealed, and the slots stay held."""
        keys = Keys.of([bytes.fromhex(key) for key in hexes], self._kv.space.key_bytes)
        self._torn = self._kv.reserve(keys, tier="gpu", timeout_s=ACQUIRE_WAIT_S)
        for i in self._torn.new:
            slot = self._torn.array(i)
            slot[: len(slot) // 2] = 0xEE
        return {"reserved": len(self._torn.new)}


def main(arguments: list[str]) -> None:
    """Serve until stdin ends."""
    address, trace, limit = arguments
    with hybridkv.connect(address, demo_space(), timeout_s=CALL_S) as kv:
        worker = Worker(kv, Path(trace), int(limit))
        for line in sys.stdin:
            print(worker.answer(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
