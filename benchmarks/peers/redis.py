"""redis over its Unix socket, with hiredis. `python -m hybridkv.benchmarks.peers.redis SOCKET`."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridkv.benchmarks.content import Bytes
from hybridkv.benchmarks.peers.work import serve


class Redis:
    """One call is one SET or GET, or one pipeline of SETs and one MGET."""

    def __init__(self, socket: str) -> None:
        importlib.import_module("hiredis")  # without it the client falls back to a slower parser, silently
        client: Any = importlib.import_module("redis")
        self._redis = client.Redis(unix_socket_path=socket)
        self._redis.ping()

    def put(self, keys: Sequence[bytes], blocks: Bytes) -> None:
        if len(keys) == 1:
            self._redis.set(keys[0], blocks[0].data)
            return
        pipeline = self._redis.pipeline(transaction=False)
        for key, block in zip(keys, blocks, strict=True):
            pipeline.set(key, block.data)
        pipeline.execute()

    def get(self, keys: Sequence[bytes], out: Bytes) -> None:
        values = [self._redis.get(keys[0])] if len(keys) == 1 else self._redis.mget(keys)
        for row, value in zip(out, values, strict=True):
            if value is not None:
                row[:] = np.frombuffer(value, np.uint8)

    def forget(self, keys: Sequence[bytes]) -> None:
        self._redis.delete(*keys)


if __name__ == "__main__":
    serve(lambda: Redis(sys.argv[1]))
