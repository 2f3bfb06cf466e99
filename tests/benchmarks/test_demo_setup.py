"""The demo's tiers: whole blocks an extent, and never more room than said."""

from pathlib import Path

import pytest

from hybridkv.benchmarks.demo_setup import EXTENTS, LANE_SLOTS, make_places, sizes_for
from hybridkv.benchmarks.demo_space import BLOCK_BYTES
from hybridkv.tiers.disk.sizing import capacity_blocks
from hybridkv.tiers.pools import extent_bytes_for


@pytest.mark.parametrize("unique", [10, 253, 6144, 20_000])
def test_an_extent_holds_whole_blocks(unique: int) -> None:
    sizes = sizes_for(unique)
    for capacity, blocks in ((sizes.gpu_bytes, sizes.gpu_blocks), (sizes.cpu_bytes, sizes.cpu_blocks + LANE_SLOTS)):
        assert capacity == blocks * BLOCK_BYTES
        assert capacity % extent_bytes_for(capacity) == 0
        assert extent_bytes_for(capacity) % BLOCK_BYTES == 0
        assert blocks >= EXTENTS
    assert sizes.disk_blocks <= capacity_blocks(sizes.disk_bytes, BLOCK_BYTES) < sizes.disk_blocks + 8


def test_the_shares_are_those_asked_for() -> None:
    sizes = sizes_for(6144)
    assert (sizes.gpu_blocks, sizes.cpu_blocks, sizes.disk_blocks) == (608, 1536, 3686)


def test_folders_go_when_the_demo_is_over() -> None:
    places = make_places(sizes_for(100))
    folders = (places.work, places.shm, places.disk)
    assert all(folder.is_dir() for folder in folders)
    assert Path(places.address.removeprefix("unix://")).parent == places.work
    places.remove()
    assert not any(folder.exists() for folder in folders)
