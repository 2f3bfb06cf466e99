"""One handle, many threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hybridkv.service.client import KV
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, store

THREADS = 8
ROUNDS = 6


def test_eight_threads_write_and_read_through_one_handle(kv: KV) -> None:
    """Half of each thread's blocks are its own, half are raced for by all."""
    start = threading.Barrier(THREADS)
    shared = [chain_of(kv, 4, first_token=1_000_000 + 1000 * turn) for turn in range(ROUNDS)]

    def work(number: int) -> int:
        start.wait()
        read = 0
        for turn in range(ROUNDS):
            own = chain_of(kv, 4, first_token=10_000 * number + 1000 * turn)
            for keys in (own, shared[turn]):
                store(kv, keys)
                read += verified(kv, keys)
            assert kv.lookup(own).prefix == 4
        return read

    with ThreadPoolExecutor(THREADS) as pool:
        read = list(pool.map(work, range(THREADS)))
    assert min(read) >= 4 * ROUNDS
    for keys in shared:
        assert kv.lookup(keys).prefix == 4


def verified(kv: KV, keys: Keys) -> int:
    """Read the blocks in both ways and check each HIT; how many there were. Never a wrong byte."""
    with kv.acquire(keys) as lease:
        hits = np.flatnonzero(lease.states == Outcome.HIT)
        for i in hits.tolist():
            check_content(keys[i : i + 1], lease.array(i)[None])
    out = np.zeros((len(keys), BLOCK_BYTES), np.uint8)
    states = kv.read(keys, out)
    copied = np.flatnonzero(states == Outcome.HIT)
    for i in copied.tolist():
        check_content(keys[i : i + 1], out[i][None])
    return min(len(hits), len(copied))


def test_reads_are_never_torn_while_blocks_come_and_go(kv: KV) -> None:
    """Two threads remove and rewrite what two others read."""
    keys = chain_of(kv, 8)
    store(kv, keys)
    stop = threading.Event()

    def churn() -> int:
        turns = 0
        while not stop.is_set():
            kv.remove(keys[4:])
            store(kv, keys[4:], parent=keys[3])
            turns += 1
        return turns

    def read() -> int:
        return sum(verified(kv, keys) for _ in range(40))

    with ThreadPoolExecutor(4) as pool:
        churning = [pool.submit(churn) for _ in range(2)]
        reading = [pool.submit(read) for _ in range(2)]
        try:
            found = [task.result() for task in reading]
        finally:
            stop.set()
        assert min(task.result() for task in churning) > 0
    assert min(found) >= 40 * 4
