"""Hosts for the paging suite: one in this process, and one in a process of its own. No rule moves anything by itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hybridkv.benchmarks.demo_daemon import DemoDaemon
from hybridkv.benchmarks.demo_setup import Places, Sizes
from hybridkv.benchmarks.lane_rig import MIB, config_for
from hybridkv.service.client import KV, connect
from hybridkv.service.client.link import Link
from hybridkv.service.client.local import LocalDial
from hybridkv.service.client.sequence import Sequence
from hybridkv.service.facade import Host
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

WAIT_S = 60.0
FAULT_BLOCKS = 4096


def space_of(block_bytes: int, block_tokens: int) -> Namespace:
    return Namespace(model="bench", layout=BlockLayout.opaque(block_bytes, block_tokens, "bench"))


@contextmanager
def here(folder: Path, space: Namespace, *, gpu_blocks: int, cpu_blocks: int = 0, page_blocks: int = 1) -> Iterator[KV]:
    """A handle on a host in this process whose pools hold so many blocks (CPU: and 4 MiB beside)."""
    size = space.layout.block_bytes
    folder.mkdir(parents=True, exist_ok=True)
    config = config_for(
        folder, gpu_bytes=gpu_blocks * size, cpu_bytes=cpu_blocks * size + 4 * MIB, paging__page_blocks=page_blocks
    )
    host = Host(config)
    try:
        kv = KV(space, Link(LocalDial(host, space), WAIT_S, None))
        yield kv
        kv.close()
    finally:
        host.close()


@contextmanager
def beside(folder: Path, space: Namespace, *, gpu_blocks: int, cpu_blocks: int) -> Iterator[KV]:
    """A handle on a daemon in a process of its own."""
    size = space.layout.block_bytes
    places = Places(folder / "work", folder / "shm", folder / "disk")
    for place in (places.work, places.shm, places.disk):
        place.mkdir(parents=True)
    sizes = Sizes(0, 0, 0, 0, gpu_blocks * size, cpu_blocks * size + 4 * MIB, 16 * MIB)
    daemon = DemoDaemon(places, sizes)
    daemon.start()
    try:
        with connect(places.address, space, timeout_s=WAIT_S) as kv:
            yield kv
    finally:
        daemon.stop()


def allocate(sequence: Sequence, blocks: int) -> None:
    """Write-fault the first `blocks` blocks of a sequence, by as few calls as there can be."""
    for start in range(0, blocks, FAULT_BLOCKS):
        sequence.fault(range(start, min(blocks, start + FAULT_BLOCKS)), write=True, timeout_s=WAIT_S)


def numbered(tokens: int, first: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """Tokens, different for every sequence that is to have blocks of its own."""
    return np.arange(first, first + tokens, dtype=np.uint32)
