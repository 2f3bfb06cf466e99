"""Each tier's policy by config, in a real host: laws hold, leased blocks stay, every byte is right."""

from collections.abc import Callable

import pytest

from hybridkv.migration.policies import POLICY_NAMES
from hybridkv.tiers.states import Tier
from tests.migration.hosts import HIT, NEW, Rig

MakeHost = Callable[..., Rig]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_policy_serves_every_tier(make_host: MakeHost, name: str) -> None:
    rig = make_host(disk_bytes=4 << 20, gpu__policy=name, cpu__policy=name, disk__policy=name)
    worker = rig.worker
    assert worker.write(range(4), tier=Tier.GPU) == [NEW] * 4
    held = worker.hold(range(4), tier=Tier.GPU)
    for first in range(100, 190, 3):  # chains of 3, five times what the GPU and three times what the CPU holds
        rig.clock.advance(1.0)
        assert worker.write(range(first, first + 3), tier=Tier.GPU) == [NEW] * 3
        if first % 2:
            worker.read(range(first, first + 3), tier=Tier.GPU)
    rig.settle()
    assert all("gpu0" in rig.where(number) for number in range(4))
    worker.release(held.lease)
    assert worker.read(range(4)) == [HIT] * 4
    assert {type(book.policy).__name__.lower() for book in rig.directory.books} == {name}
    assert sum(len(book.policy) for book in rig.directory.books) >= 32


def test_tiers_may_differ(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=4 << 20, gpu__policy="rhq", cpu__policy="lru", disk__policy="fifo")
    assert [type(book.policy).__name__ for book in rig.directory.books] == ["Rhq", "Lru", "Fifo"]
