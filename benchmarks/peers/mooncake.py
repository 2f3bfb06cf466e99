"""Mooncake Store over TCP, its memory in another process.

`python -m hybridkv.benchmarks.peers.mooncake client|holder METADATA MASTER SEGMENT_BYTES`; `holder` lends memory until
stdin ends, `client` does the work and lends none.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from hybridkv.benchmarks.content import Bytes
from hybridkv.benchmarks.peers.work import serve

BUFFER_BYTES = 1 << 30


def _opened(metadata: str, master: str, segment_bytes: int, buffer_bytes: int) -> Any:
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    code = store.setup("127.0.0.1", metadata, segment_bytes, buffer_bytes, "tcp", "", master)
    if code:
        raise RuntimeError(f"setup returned {code}")
    return store


class Mooncake:
    """One call is one put_from and get_into on registered memory, or one batch of them."""

    def __init__(self, metadata: str, master: str) -> None:
        self._store = _opened(metadata, master, 0, BUFFER_BYTES)
        self._registered: set[tuple[int, int]] = set()

    def put(self, keys: Sequence[bytes], blocks: Bytes) -> None:
        names, places, sizes = self._places(keys, blocks)
        if any(self._store.batch_put_from(names, places, sizes)):
            raise RuntimeError("a put failed")

    def get(self, keys: Sequence[bytes], out: Bytes) -> None:
        names, places, sizes = self._places(keys, out)
        if min(self._store.batch_get_into(names, places, sizes)) < 0:
            raise RuntimeError("a get failed")

    def forget(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._store.remove(key.hex())

    def _places(self, keys: Sequence[bytes], blocks: Bytes) -> tuple[list[str], list[int], list[int]]:
        self._register(blocks)
        first, size = blocks.ctypes.data, blocks.shape[1]
        return [key.hex() for key in keys], [first + i * size for i in range(len(keys))], [size] * len(keys)

    def _register(self, blocks: Bytes) -> None:
        whole = blocks
        while whole.base is not None:
            whole = whole.base
        where = whole.ctypes.data, whole.nbytes
        if where not in self._registered:
            self._registered.add(where)
            if code := self._store.register_buffer(*where):
                raise RuntimeError(f"register_buffer returned {code}")


if __name__ == "__main__":
    role, metadata, master, segment = sys.argv[1:]
    if role == "client":
        serve(lambda: Mooncake(metadata, master))
    else:
        held = _opened(metadata, master, int(segment), 1 << 26)
        print("ready", flush=True)
        sys.stdin.read()
