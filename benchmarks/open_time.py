"""Opening a long sequence whose whole prefix is cached, in a directory of 10^6 blocks: the daemon's time, hashing left out.

The blocks are real rows of the directory with slots and headers, but no byte was written to them: their extents are carved
and not backed by memory, which opening does not look at.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, interleaved, lap
from hybridkv.benchmarks.lane_rig import MIB, config_for
from hybridkv.benchmarks.paging_rig import numbered, space_of
from hybridkv.benchmarks.report import Better, Row
from hybridkv.service.facade import Host
from hybridkv.tiers.directory.holds import Session
from hybridkv.tiers.keys import Keys, chain
from hybridkv.tiers.states import Tier

BLOCK_BYTES, BLOCK_TOKENS = 4096, 32
TOKENS = 100_000
DIRECTORY_BLOCKS = 10**6
MOST_MS = 6.0
_CALL = 4096


def opening(setting: Setting, directory_blocks: int = DIRECTORY_BLOCKS) -> list[Row]:
    """`open` and nothing else; the sequence is closed outside of the clock."""
    keys = chain(space_of(BLOCK_BYTES, BLOCK_TOKENS), numbered(TOKENS))
    with _host(setting.folder / "open", directory_blocks) as (host, session):
        _fill(host, session, keys, directory_blocks)

        def run() -> Lap:
            with lap() as taken:
                reply = host.sequences.open(session, keys, tokens=TOKENS, tier=Tier.CPU)
            if reply.cached_blocks != len(keys):
                raise AssertionError(f"{reply.cached_blocks} of {len(keys)} blocks were found")
            host.sequences.close(session, [reply.sequence])
            return taken

        found = interleaved({"open": run}, max(15, setting.pairs))
        blocks = host.stats()["blocks"]
    name = f"open: {TOKENS:,} tokens, all {len(keys):,} blocks cached, {blocks:,} blocks in the directory"
    return [Row(name, found["open"].wall_s * 1e3, "ms", None, MOST_MS, Better.LOWER)]


@contextmanager
def _host(folder: Path, blocks: int) -> Iterator[tuple[Host, int]]:
    folder.mkdir()
    config = config_for(folder, cpu_bytes=blocks * BLOCK_BYTES + 256 * MIB)
    host = Host(config, start_loop=False)
    try:
        attached = host.attach(space_of(BLOCK_BYTES, BLOCK_TOKENS), in_process=True)
        yield host, attached.session
        host.detach(attached.session)
    finally:
        host.close()


def _fill(host: Host, session: int, keys: Keys, blocks: int) -> None:
    """Seal the chain and other blocks until there are so many."""
    book = host.directory.state.mapped(host.memory.cpu_index)
    owner = host.directory.state.ledger.sessions[session]
    with host.directory.lock:
        while book.free_slots(BLOCK_BYTES) < blocks:
            extent = book.table.begin_carving(BLOCK_BYTES)
            if extent is None:
                raise AssertionError("the tier is too small for the benchmark")
            book.table.carve(extent)
            if book.headers is not None:
                book.headers.commit_extent(extent, BLOCK_BYTES)
                book.headers.set_extent(extent, slot_bytes=BLOCK_BYTES, carved=True)
    _seal(host, owner, keys.as_list(), book.index)
    for first in range(len(keys), blocks, _CALL):
        count = min(_CALL, blocks - first)
        _seal(host, owner, [number.to_bytes(keys.width, "big") for number in range(first, first + count)], book.index)


def _seal(host: Host, owner: Session, keys: list[bytes], pool: int) -> None:
    writes = host.directory.writes
    with host.directory.lock:
        held, _ = writes.begin(owner, keys, b"", pool, None, 60.0)
        writes.fill(held)
        writes.stop_waiting(held)
        held.told = True
        writes.seal(held, np.arange(len(keys)), None)
