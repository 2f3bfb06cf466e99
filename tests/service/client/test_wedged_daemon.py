"""A daemon that is there and does not answer: every call ends by its own deadline, and goes on when the daemon does."""

import asyncio
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from hybridkv.service.client import KV, connect
from hybridkv.service.client.aio import connect_async
from hybridkv.tiers.errors import DeadlineExceededError, UnavailableError
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, make_config, store
from tests.service.client.processes import daemon_process

TIMEOUT_S = 0.4
AT_MOST_S = 20.0
"""Far above the deadlines, for a busy machine; far below for ever."""
SILENCE = (DeadlineExceededError, UnavailableError)


def test_every_call_ends_by_its_deadline(tmp_path: Path, space: Namespace) -> None:
    address = make_config(tmp_path).daemon.socket
    with daemon_process(tmp_path) as daemon, connect(address, space, timeout_s=AT_MOST_S) as kv:
        keys, new = chain_of(kv, 3), chain_of(kv, 1, first_token=9_000)
        store(kv, keys)
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, daemon.pid, os.WSTOPPED | os.WNOWAIT)
            began = time.monotonic()
            kv._link.timeout_s = TIMEOUT_S
            every_verb(kv, keys, new)
            asyncio.run(every_verb_async(address, space))
            with pytest.raises(SILENCE), connect(address, space, timeout_s=TIMEOUT_S) as other:
                other.lookup(keys)
            assert time.monotonic() - began < AT_MOST_S
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        kv._link.timeout_s = AT_MOST_S
        out = np.zeros((3, BLOCK_BYTES), np.uint8)
        assert kv.read(keys, out).tolist() == [Outcome.HIT] * 3
        check_content(keys, out)
        store(kv, new)


def every_verb(kv: KV, keys: object, new: object) -> None:
    out = np.zeros((1, BLOCK_BYTES), np.uint8)
    for call in (
        lambda: kv.lookup(keys),  # type: ignore[arg-type]
        lambda: kv.acquire(keys, timeout_s=0.0),  # type: ignore[arg-type]
        lambda: kv.reserve(new, timeout_s=0.0),  # type: ignore[arg-type]
        lambda: kv.read(new, out, timeout_s=0.0),  # type: ignore[arg-type]
        lambda: kv.remove(new),  # type: ignore[arg-type]
        kv.stats,
    ):
        with pytest.raises(SILENCE):
            call()


async def every_verb_async(address: str, space: Namespace) -> None:
    kv = connect_async(address, space, timeout_s=TIMEOUT_S)
    with pytest.raises(SILENCE):
        await kv.lookup(kv.keys(list(range(64))))
    await kv.close()
