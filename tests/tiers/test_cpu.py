"""The CPU tier's memory: committed and page-locked once, however often its extents are carved."""

from pathlib import Path
from typing import Any

from hybridkv.tiers.cpu import CpuPool
from hybridkv.tiers.device.base import HostRegistration, Registration


class Locking:
    """Counts, as CUDA's registrations do, how often each part is held."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def register_host(self, array: Any, start: int, nbytes: int) -> HostRegistration:
        self.held[start] = self.held.get(start, 0) + 1
        return HostRegistration(Registration.REGISTERED)

    def unregister_host(self, array: Any, start: int, nbytes: int) -> None:
        self.held[start] = self.held.get(start, 0) - 1


def test_an_extent_that_is_carved_again_is_not_locked_twice(tmp_path: Path) -> None:
    device: Any = Locking()
    pool = CpuPool(tmp_path / "cpu", 1 << 20, devices=[device])
    try:
        pool.commit_extent(2)
        pool.commit_extent(2)  # emptied and carved for another layout; its memory was never given back
        assert device.held == {2 * pool.extent_bytes: 1}
        pool.release_extent(2)
        assert device.held == {2 * pool.extent_bytes: 0}
        assert pool.region.committed_bytes() == 0
        pool.commit_extent(2)
        assert pool.region.committed_bytes() == pool.extent_bytes
    finally:
        pool.close()
