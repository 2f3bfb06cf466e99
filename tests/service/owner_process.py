"""A worker process that holds all there is to hold, by every client: `python -m tests.service.owner_process ADDRESS`.

It tells on stdout what it has done, a word a line, and does what it is told on stdin:

    hold   attach with the blocking client, the asyncio client and a sequence; hold a lease and a reservation by each of the
           first two, and written blocks by the third
    write  write into all that was reserved, as a process does that was stalled in the middle of a copy; answer with the
           outcomes of the seals that follow
    drop   close the connections without a word, and go on
    fork   fork a child that lives on with everything it inherited; answer with its pid
    leave  say goodbye
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import numpy as np

from hybridkv.service.client import KV, connect
from hybridkv.service.client.aio import AsyncKV, connect_async
from hybridkv.service.client.reserved import ReservedSlots
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

SPACE = Namespace(model="m", layout=BlockLayout.opaque(4096, 16, "test"))
SHARED, BLOCKING, ASYNCIO, SEQUENCE = 0, 10_000, 20_000, 30_000
"""First tokens: of the chain that everybody reads, and of what each client writes."""

BLOCKS = 2
LATE = 0xEE
"""What the worker writes when it is late."""


def keys_of(kv: KV | AsyncKV, first_token: int) -> Keys:
    return kv.keys(list(range(first_token, first_token + BLOCKS * kv.space.layout.block_tokens)))


class Owner:
    """What it holds, and what it is told to do with it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = asyncio.new_event_loop()

    def hold(self) -> str:
        self.kv, self.paged = (connect(self.address, SPACE, timeout_s=30.0) for _ in range(2))
        self.lease = self.kv.acquire(keys_of(self.kv, SHARED))
        self.slots = self.kv.reserve(keys_of(self.kv, BLOCKING), tier="cpu")
        self.sequence = self.paged.open_sequence(list(range(SEQUENCE, SEQUENCE + BLOCKS * 16)))
        self.sequence.write_blocks([0], np.zeros((1, SPACE.layout.block_bytes), np.uint8))
        pages = self.sequence._pages
        self.page = pages.memory.writable_block(pages.find(np.zeros(1, np.int64))[0])
        self.loop.run_until_complete(self._hold_async())
        assert self.lease.prefix == self.async_lease.prefix == BLOCKS
        self.blocks = [slots.array(i) for slots in (self.slots, self.async_slots) for i in range(BLOCKS)]
        return " ".join(str(session) for session in (self.kv.session, self.paged.session))

    async def _hold_async(self) -> None:
        self.async_kv = connect_async(self.address, SPACE, timeout_s=30.0)
        self.async_lease = await self.async_kv.acquire(keys_of(self.async_kv, SHARED))
        self.async_slots = await self.async_kv.reserve(keys_of(self.async_kv, ASYNCIO), tier="cpu")

    def write(self) -> str:
        for block in self.blocks:
            block[:] = LATE
        self.page[:] = LATE
        return ",".join([self._sealed(self.slots, self._seal), self._sealed(self.async_slots, self._seal_async)])

    def _seal(self) -> list[int]:
        return [int(outcome) for outcome in self.slots.seal()]

    def _seal_async(self) -> list[int]:
        return [int(outcome) for outcome in self.loop.run_until_complete(self.async_slots.seal())]

    @staticmethod
    def _sealed(slots: ReservedSlots, seal: Callable[[], list[int]]) -> str:
        try:
            return "".join(map(str, seal()))
        except HybridKVError as error:
            return type(error).__name__

    def drop(self) -> str:
        for kv in (self.kv, self.paged):
            kv._attachment().transport.close(detach=False)
        attachment = self.loop.run_until_complete(self.async_kv.attach())
        self.loop.run_until_complete(attachment.transport.close(detach=False))
        return "dropped"

    def fork(self) -> str:
        """gRPC may end a child that is forked while its threads are at work: then another one is."""
        while True:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writing, b"!")
                while True:
                    signal.pause()
            os.close(writing)
            if os.read(reading, 1):
                return str(child)
            os.waitpid(child, 0)

    def leave(self) -> str:
        self.blocks.clear()
        del self.page
        self.loop.run_until_complete(self.async_kv.close())
        self.kv.close()
        self.paged.close()
        return "left"


def main(address: str) -> None:
    owner = Owner(address)
    for line in sys.stdin:
        print(getattr(owner, line.strip())(), flush=True)


if __name__ == "__main__":
    np.seterr(all="raise")
    main(sys.argv[1])
