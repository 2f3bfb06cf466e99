"""A daemon that is there and does not answer: every call ends by its own deadline, and goes on when the daemon does."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from hybridkv.service.client import connect
from hybridkv.service.client.aio import connect_async
from hybridkv.tiers.errors import DeadlineExceededError, UnavailableError
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, make_config, store
from tests.service.client.processes import daemon_process

TIMEOUT_S = 0.4
AT_MOST_S = 40.0
"""Far above the deadlines, for a busy machine; far below for ever."""
SILENCE = (DeadlineExceededError, UnavailableError)


def stop(daemon: subprocess.Popen[str]) -> None:
    """SIGSTOP; returns once it stands still."""
    os.kill(daemon.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, daemon.pid, os.WSTOPPED | os.WNOWAIT)


def test_every_call_ends_by_its_deadline(tmp_path: Path, space: Namespace) -> None:
    address = make_config(tmp_path).daemon.socket
    with daemon_process(tmp_path) as daemon, connect(address, space, timeout_s=AT_MOST_S) as kv:
        keys, new = chain_of(kv, 3), chain_of(kv, 1, first_token=9_000)
        store(kv, keys)
        began = time.monotonic()
        stop(daemon)
        try:
            kv._link.timeout_s = TIMEOUT_S
            out = np.zeros((1, BLOCK_BYTES), np.uint8)
            for call in (
                lambda: kv.lookup(keys),
                lambda: kv.acquire(keys),
                lambda: kv.reserve(new, timeout_s=0.0),
                lambda: kv.read(new, out),
                lambda: kv.remove(new),
                kv.stats,
            ):
                with pytest.raises(SILENCE):
                    call()
            with pytest.raises(SILENCE), connect(address, space, timeout_s=TIMEOUT_S) as other:
                other.lookup(keys)
            assert time.monotonic() - began < AT_MOST_S
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        asyncio.run(asyncio.wait_for(every_verb_async(daemon, address, space), 3 * AT_MOST_S))
        kv._link.timeout_s = AT_MOST_S
        out = np.zeros((3, BLOCK_BYTES), np.uint8)
        assert kv.read(keys, out).tolist() == [Outcome.HIT] * 3
        check_content(keys, out)
        store(kv, new)


async def every_verb_async(daemon: subprocess.Popen[str], address: str, space: Namespace) -> None:
    async with connect_async(address, space, timeout_s=AT_MOST_S) as kv:
        keys = kv.keys(list(range(64)))
        await kv.lookup(keys)
        began = time.monotonic()
        stop(daemon)
        try:
            kv._link.timeout_s = TIMEOUT_S
            with pytest.raises(SILENCE):
                await kv.lookup(keys)
            with pytest.raises(SILENCE):
                await kv.acquire(keys)
            with pytest.raises(SILENCE):
                await kv.reserve(kv.keys([7] * 16), timeout_s=0.0)
            with pytest.raises(SILENCE):
                await kv.stats()
            assert time.monotonic() - began < AT_MOST_S
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        kv._link.timeout_s = AT_MOST_S
        await kv.lookup(keys)
