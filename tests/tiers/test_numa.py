"""Binding to a NUMA node: node 0 is always there, others are told apart from it."""

from pathlib import Path

import pytest

from hybridkv.tiers.cpu import CpuPool
from hybridkv.tiers.numa import bind_to_node
from hybridkv.tiers.shm import SharedRegion


@pytest.fixture
def region(tmp_path: Path) -> SharedRegion:
    return SharedRegion.create(tmp_path / "r", 1 << 20)


def test_a_node_that_is_there_is_bound_or_the_kernel_says_why_not(region: SharedRegion) -> None:
    reason = bind_to_node(region.array, 0)
    # A kernel without NUMA, or a sandbox that forbids the call, is a reason; anything else must have worked.
    assert reason == "" or "ENOSYS" in reason or "EPERM" in reason


def test_a_node_that_is_not_there_is_a_reason(region: SharedRegion) -> None:
    assert "node 1023" in bind_to_node(region.array, 1023)
    assert "must be 0 to 1023" in bind_to_node(region.array, 1024)


def test_the_pool_shows_a_failed_binding(tmp_path: Path) -> None:
    pool = CpuPool(tmp_path / "cpu", 1 << 20, numa_node=1023)
    assert "node 1023" in pool.numa_failure
    pool.close()
