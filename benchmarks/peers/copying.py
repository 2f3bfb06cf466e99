"""No store at all: blocks are copied within one process. The floor of `bench compare`."""

from collections.abc import Sequence

import numpy as np

from hybridkv.benchmarks.content import Bytes
from hybridkv.benchmarks.peers.work import serve


class Copying:
    """Keeps a copy of each block in memory that was written before, as a pool's is."""

    def __init__(self) -> None:
        self._spare: dict[int, list[Bytes]] = {}
        self._kept: dict[bytes, Bytes] = {}

    def put(self, keys: Sequence[bytes], blocks: Bytes) -> None:
        spare = self._spare.setdefault(blocks.shape[1], [])
        for key, block in zip(keys, blocks, strict=True):
            place = spare.pop() if spare else np.zeros(len(block), np.uint8)
            np.copyto(place, block)
            self._kept[key] = place

    def get(self, keys: Sequence[bytes], out: Bytes) -> None:
        for key, row in zip(keys, out, strict=True):
            np.copyto(row, self._kept[key])

    def forget(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            place = self._kept.pop(key)
            self._spare[len(place)].append(place)


if __name__ == "__main__":
    serve(Copying)
