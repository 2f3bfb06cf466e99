"""hybridkv as `bench compare` drives it: a client of a daemon. `python -m hybridkv.benchmarks.peers.ours ADDRESS`."""

import sys
from collections.abc import Sequence

import hybridkv
from hybridkv.benchmarks.content import Bytes
from hybridkv.benchmarks.peers.work import KEY_BYTES, serve
from hybridkv.service.client import KV, PutCounts

CALL_S = 60.0


class Ours:
    """A handle for each block size. What is put between two forgets is one chain, as the blocks of one prompt are."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._handles: dict[int, KV] = {}
        self._last: bytes | None = None
        self._size = 0

    def put(self, keys: Sequence[bytes], blocks: Bytes) -> None:
        self._size = blocks.shape[1]
        self._handle(self._size).put(keys, blocks, self._last)
        self._last = keys[-1]

    def settle(self) -> None:
        counts = self._handle(self._size).flush(CALL_S)
        if counts != PutCounts(sealed=counts.sealed):
            raise RuntimeError(f"not all blocks were published: {counts}")

    def get(self, keys: Sequence[bytes], out: Bytes) -> None:
        self._handle(out.shape[1]).read(keys, out, timeout_s=CALL_S)

    def forget(self, keys: Sequence[bytes]) -> None:
        for handle in self._handles.values():
            handle.remove(keys)
        self._last = None

    def _handle(self, block_bytes: int) -> KV:
        handle = self._handles.get(block_bytes)
        if handle is None:
            layout = hybridkv.BlockLayout.opaque(block_bytes, 16, "bench compare")
            space = hybridkv.Namespace(
                model="bench", revision="compare", config_digest="", layout=layout, key_bytes=KEY_BYTES
            )
            handle = self._handles[block_bytes] = hybridkv.connect(self._address, space, timeout_s=CALL_S)
        return handle


if __name__ == "__main__":
    serve(lambda: Ours(sys.argv[1]))
