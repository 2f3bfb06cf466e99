"""An asyncio worker of the soak: several tasks over one handle, of which some are cancelled in the middle of a call.

`python -m hybridkv.benchmarks.soak.aio_worker ADDRESS SPACE SEED TALLY`, until stdin ends.
"""

import asyncio
import faulthandler
import random
import signal
import sys
import traceback
from pathlib import Path

import numpy as np

from hybridkv.benchmarks.content import Content
from hybridkv.benchmarks.soak.tally import ERROR, OPERATION, Tally, WrongBytesError
from hybridkv.benchmarks.soak.universe import CHAIN_BLOCKS, CHAINS, keys_of, space_of
from hybridkv.benchmarks.soak.worker import CALL_S, EXIT_WRONG, EXPECTED, THINK_S, stdin_ended
from hybridkv.service.client.aio.kv import AsyncKV, connect_async
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome

TASKS = 3
CANCEL_SHARE = 0.15
WRITE_BLOCKS = 8
GARBAGE = 0xEE


class AsyncOperations:
    """Random verbs over one asyncio handle, of several tasks at a time."""

    def __init__(self, kv: AsyncKV, space: int, rng: random.Random, tally: Tally) -> None:
        self._kv, self._space, self._rng, self._tally = kv, space, rng, tally
        self._content = Content(kv.space.layout.block_bytes)
        self._verbs = {
            self.read: 8, self.acquire: 6, self.write: 6, self.abort: 2, self.request: 4, self.prefetch: 2, self.touch: 1,
        }  # fmt: skip

    async def one(self) -> None:
        """One verb, perhaps cancelled before it ends."""
        (verb,) = self._rng.choices(list(self._verbs), list(self._verbs.values()))
        self._tally.note(f"{OPERATION}aio_{verb.__name__}")
        limit_s = self._rng.random() * 0.02 if self._rng.random() < CANCEL_SHARE else None
        try:
            await asyncio.wait_for(verb(), limit_s)
        except TimeoutError:
            self._tally.note(f"{OPERATION}aio_cancelled")
        except EXPECTED as error:
            self._tally.note(f"{ERROR}aio_{verb.__name__}.{type(error).__name__}")
        self._tally.tell()

    async def read(self) -> None:
        keys = self._some()
        out = np.empty((len(keys), self._content.block_bytes), np.uint8)
        self._verify(keys, await self._kv.read(keys, out, timeout_s=self._patience()), out)

    async def acquire(self) -> None:
        keys = self._some()
        async with await self._kv.acquire(keys, timeout_s=self._patience()) as lease:
            out = np.empty((len(keys), self._content.block_bytes), np.uint8)
            self._verify(keys, await lease.read_into(out), out)

    async def write(self) -> None:
        await self._write(self._some())

    async def abort(self) -> None:
        keys = self._some()[:WRITE_BLOCKS]
        async with await self._kv.reserve(keys, timeout_s=self._patience()) as slots:
            for i in slots.new:
                slots.array(i)[:] = GARBAGE

    async def request(self) -> None:
        keys = self._some()
        async with self._kv.request(request_class=3) as request:
            async with await request.acquire(keys, timeout_s=self._patience()) as lease:
                out = np.empty((len(keys), self._content.block_bytes), np.uint8)
                self._verify(keys, await lease.read_into(out), out)
            await self._write(keys)

    async def prefetch(self) -> None:
        await self._kv.prefetch(self._some())

    async def touch(self) -> None:
        await self._kv.touch(self._some())

    async def _write(self, keys: Keys) -> None:
        start = (await self._kv.lookup(keys)).prefix
        rest = keys[start : start + WRITE_BLOCKS]
        if not len(rest):
            return
        parent = keys[start - 1] if start else None
        async with await self._kv.reserve(rest, parent=parent, timeout_s=self._patience()) as slots:
            for i in slots.new:
                self._content.fill(rest[i], slots.array(i))
                await asyncio.sleep(0)
            await slots.seal()

    def _verify(self, keys: Keys, states: np.typing.NDArray[np.uint8], out: np.typing.NDArray[np.uint8]) -> None:
        hits = np.flatnonzero(states == Outcome.HIT).tolist()
        for i in hits:
            if not self._content.verify(keys[i], out[i]):
                raise WrongBytesError(f"asyncio: block {keys[i].hex()} of namespace {self._space} has other bytes")
        self._tally.verified(len(hits), len(hits) * out.shape[1])

    def _some(self) -> Keys:
        return keys_of(self._space, self._rng.randrange(CHAINS[self._space]))[: self._rng.randint(1, CHAIN_BLOCKS)]

    def _patience(self) -> float:
        return self._rng.choice((0.0, 0.05, 0.5))


async def work(address: str, space: int, rng: random.Random, tally: Tally) -> None:
    """Until stdin ends."""
    over = asyncio.Event()

    async def task(operations: AsyncOperations) -> None:
        while not over.is_set():
            await operations.one()
            await asyncio.sleep(rng.random() * THINK_S * TASKS)

    async def watch_stdin() -> None:
        while not over.is_set():
            if await asyncio.to_thread(stdin_ended, 0.2):
                over.set()

    while not over.is_set():
        try:
            async with connect_async(address, space_of(space), timeout_s=CALL_S) as kv:
                operations = AsyncOperations(kv, space, rng, tally)
                async with asyncio.TaskGroup() as group:
                    group.create_task(watch_stdin())
                    for _ in range(TASKS):
                        group.create_task(task(operations))
        except EXPECTED as error:
            tally.note(f"{ERROR}aio_connect.{type(error).__name__}")
            tally.tell()
            if stdin_ended(0.2):
                over.set()


def main(arguments: list[str]) -> int:
    """Work until stdin ends; EXIT_WRONG with the reason on stderr when something is not as it must be."""
    address, space, seed, tally_path = arguments
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    tally = Tally(Path(tally_path))
    try:
        asyncio.run(work(address, int(space), random.Random(int(seed)), tally))
    except Exception:
        traceback.print_exc()
        return EXIT_WRONG
    finally:
        tally.tell(now=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
