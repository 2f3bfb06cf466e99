"""What a worker does that dies at a point of the client: one of each step of a write and of a read."""

from typing import Any

import numpy as np

from hybridkv.service.client import KV, connect
from tests.service.client.conftest import content, make_space

GARBAGE = 0xEE
BLOCKS = 4
PARTS = ("sealed", "aborted", "put")
"""Chains that a worker writes to, by what it does with them."""


def first_token(number: int, part: str) -> int:
    """Where the tokens of a chain of worker `number` begin."""
    return number * 1_000_000 + PARTS.index(part) * 100_000


def work(told: dict[str, Any]) -> None:
    """`told`: address, block_bytes, number."""
    space = make_space(block_bytes=told["block_bytes"])
    with connect(told["address"], space) as kv:
        chains = {
            part: kv.keys(range(first_token(told["number"], part), first_token(told["number"], part) + BLOCKS * 16))
            for part in PARTS
        }
        _seal(kv, chains["sealed"])
        with kv.acquire(chains["sealed"], tier="cpu", timeout_s=5.0) as lease:
            assert lease.prefix == BLOCKS
        slots = kv.reserve(chains["aborted"], tier="cpu")
        slots.array(0)[:] = GARBAGE
        slots.abort()
        kv.put(chains["put"], blocks_of(chains["put"], told["block_bytes"]))
        kv.flush()


def _seal(kv: KV, keys: Any) -> None:
    with kv.reserve(keys, tier="cpu") as slots:
        slots.array(0)[:] = GARBAGE
        slots.write_from(blocks_of(keys, kv.space.layout.block_bytes))
        slots.seal()


def blocks_of(keys: Any, block_bytes: int) -> Any:
    """What belongs into the blocks of `keys`."""
    return np.stack([content(key, block_bytes) for key in keys])
