"""The work that every store of `bench compare` does: blocks put, got back, verified, and forgotten, on command.

Commands come as JSON lines on stdin, each is answered with one on stdout. Needs NumPy only: it runs in every peer's
environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from hybridkv.benchmarks.content import Bytes, Content

KEY_BYTES = 16


class Store(Protocol):
    """What one peer does with `keys` of KEY_BYTES each and as many blocks, uint8 [n, block_bytes], contiguous."""

    def put(self, keys: Sequence[bytes], blocks: Bytes) -> None:
        """Keep the blocks; the caller's memory is its own again afterwards."""

    def get(self, keys: Sequence[bytes], out: Bytes) -> None:
        """Copy the blocks to `out`; a row whose block is not there keeps what it has."""

    def forget(self, keys: Sequence[bytes]) -> None:
        """Drop the blocks; not timed."""


@runtime_checkable
class Behind(Protocol):
    """A store whose puts return before the blocks can be got."""

    def settle(self) -> None:
        """Wait until they can be; called after the last put of a round, within the time that counts for the puts."""


@dataclass(frozen=True, slots=True)
class Round:
    """`count` new blocks are put and then got, `batch` to a call."""

    block_bytes: int
    count: int
    batch: int
    number: int

    def key_list(self) -> list[bytes]:
        """Unlike those of any other round."""
        seed = np.random.default_rng((self.block_bytes, self.batch, self.number, 7))
        return [seed.bytes(KEY_BYTES) for _ in range(self.count)]


@dataclass(frozen=True, slots=True)
class Done:
    """Seconds that the calls took, and how many blocks did not come back as they were put."""

    put_s: float
    get_s: float
    wrong: int


class Work:
    """Runs rounds on a store. The memory for the largest round so far is kept, written once before it is timed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._source = self._out = np.zeros(0, np.uint8)

    def run(self, round_: Round) -> Done:
        """One round."""
        keys, content = round_.key_list(), Content(round_.block_bytes)
        source, out = self._buffers(round_)
        for key, block in zip(keys, source, strict=True):
            content.fill(key, block)
        out[:] = 0
        settle = self._store.settle if isinstance(self._store, Behind) else None
        put_s = _timed(self._store.put, keys, source, round_.batch, settle)
        get_s = _timed(self._store.get, keys, out, round_.batch)
        wrong = sum(not content.verify(key, block) for key, block in zip(keys, out, strict=True))
        self._store.forget(keys)
        return Done(put_s, get_s, wrong)

    def _buffers(self, round_: Round) -> tuple[Bytes, Bytes]:
        need = round_.count * round_.block_bytes
        if len(self._source) < need:
            self._source, self._out = np.zeros(need, np.uint8), np.zeros(need, np.uint8)
        shape = round_.count, round_.block_bytes
        return self._source[:need].reshape(shape), self._out[:need].reshape(shape)


def serve(make: Callable[[], Store]) -> None:
    """Answer commands until stdin ends. A store that cannot be opened answers with the reason, once."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a peer's library prints is no answer
    try:
        work = Work(make())
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = asdict(work.run(Round(**json.loads(line))))
        except (OSError, RuntimeError, ValueError) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        with suppress(BrokenPipeError):
            print(json.dumps(answer), file=answers, flush=True)


def _timed(
    verb: Callable[[Sequence[bytes], Bytes], None],
    keys: Sequence[bytes],
    blocks: Bytes,
    batch: int,
    settle: Callable[[], None] | None = None,
) -> float:
    began = time.perf_counter()
    for first in range(0, len(keys), batch):
        verb(keys[first : first + batch], blocks[first : first + batch])
    if settle is not None:
        settle()
    return time.perf_counter() - began
