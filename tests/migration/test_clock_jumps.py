"""The wall clock was wrong, or was set, between two lives of a daemon: what it stamped says nothing about what may go."""

from collections.abc import Callable

import numpy as np
import pytest

from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.states import Reason, Tier
from tests.migration.hosts import HIT, MISS, Rig, key, keys

MakeHost = Callable[..., Rig]
YEAR_S = 365 * 86400.0
NOW_S = 2e9
DISK = 16 << 20


def restarted(make_host: MakeHost, stamped_at: float, **overrides: object) -> Rig:
    """A host at NOW_S on a disk whose blocks 0 to 7 were stored by a clock that said `stamped_at`."""
    first = make_host(gpus=0, disk_bytes=DISK, clock=ManualClock(stamped_at))
    first.put_on_disk(range(8))
    first.close()
    return make_host(gpus=0, disk_bytes=DISK, clock=ManualClock(NOW_S), **overrides)


BACK_S, AHEAD_S = -20 * YEAR_S, 20 * YEAR_S


@pytest.mark.parametrize(
    ("policy", "jump_s"),
    [
        ("lru", BACK_S),
        ("rhq", BACK_S),
        *((policy, AHEAD_S) for policy in ("lru", "lfu", "arc", "s3fifo", "gdsf", "rhq")),
    ],
)
def test_blocks_of_another_time_are_served_and_evicted_as_any(make_host: MakeHost, policy: str, jump_s: float) -> None:
    rig = restarted(make_host, NOW_S + jump_s, disk__policy=policy, cpu__policy=policy, cpu__idle_timeout_s=100)
    assert rig.worker.read(range(8), tier=Tier.CPU) == [HIT] * 8
    rig.host.tick()
    rig.settle()
    (account,) = rig.host.explain(key(3))
    assert account["copies"], account
    assert rig.lower("cpu", list(range(8))) == (8, 0)
    disk = rig.pool("disk")
    with rig.directory.lock:
        victims = rig.directory.choice.victims(disk, rig.worker.block, 4)
        rig.migrator.reclaim.evict(disk, np.array(victims, np.int64), Reason.RECLAIM)
    rig.settle()
    assert sorted(rig.worker.read(range(8))) == [HIT] * 4 + [MISS] * 4


def test_a_block_from_the_future_is_idle_once_its_time_is_over(make_host: MakeHost) -> None:
    """Were it to count as used in twenty years, what a prefetch brings up would stay for as long."""
    rig = restarted(make_host, NOW_S + 20 * YEAR_S, cpu__idle_timeout_s=100)
    assert rig.host.prefetch(rig.worker.session, keys([1, 2]), tier=Tier.CPU) == 2
    rig.settle()
    assert rig.where(1) == {"cpu", "disk"}
    rig.host.tick()
    rig.settle()
    assert rig.where(1) == {"cpu", "disk"}
    rig.clock.advance(101)
    rig.host.tick()
    rig.settle()
    assert rig.where(1) == rig.where(2) == {"disk"}
    assert rig.worker.read([1, 2], tier=Tier.CPU) == [HIT] * 2
