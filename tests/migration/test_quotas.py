"""Quotas: what a tenant may have in each tier is refused beyond it, moved down where it can be, and never lost in silence."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.states import Priority, Reason, Tier
from tests.migration.hosts import BLOCK, HIT, MISS, NEW, NO_ROOM, Rig, Worker, keys

MIB = 1 << 20
Make = Callable[..., Rig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Rig] = []

    def build(**how: Any) -> Rig:
        how = {"gpus": 0, "cpu_blocks": 32, "tenants__a__uid": 1, "tenants__b__uid": 2} | how
        made.append(Rig(tmp_path, **how))
        return made[-1]

    yield build
    for rig in made:
        rig.free_everything()
        if not rig.closed:
            assert rig.host.check() == []
            rig.close()


def attach(rig: Rig, owner: str, *, maps: bool = True) -> Worker:
    attached = rig.host.attach(rig.space(), pid=os.getpid(), in_process=maps, owner=owner)
    return Worker(rig, attached)


def used(rig: Rig, owner: str, tier: Tier) -> int:
    quotas = rig.directory.state.quotas
    assert quotas is not None
    return int(quotas.used[quotas.names.index(owner), tier])


def refused(worker: Worker, number: int, **how: Any) -> str:
    with pytest.raises(ResourceExhaustedError) as caught:
        worker.reserved([number], **how)
    return str(caught.value)


def test_a_quota_refuses_with_its_name_and_figures_and_takes_nothing_away(make: Make) -> None:
    rig = make(tenants__a__cpu_bytes=3 * BLOCK)
    a, b = attach(rig, "a"), attach(rig, "b")
    a.put(range(3))  # in two extents of two slots: one is free
    said = refused(a, 9)
    assert said == f"quota a.cpu_bytes: {3 * BLOCK} bytes used of {3 * BLOCK}, no room for 1 blocks of {BLOCK} bytes"
    assert rig.counter("refused_by_quota") == 1
    assert a.read(range(3)) == [HIT] * 3
    b.put(range(8))
    assert (used(rig, "a", Tier.CPU), used(rig, "b", Tier.CPU)) == (3 * BLOCK, 8 * BLOCK)


def test_of_a_chain_the_longest_prefix_within_the_quota_is_granted(make: Make) -> None:
    rig = make(tenants__a__cpu_bytes=3 * BLOCK)
    a = attach(rig, "a")
    assert a.write(range(5)) == [NEW] * 3 + [NO_ROOM] * 2


def test_what_is_reserved_counts_and_what_is_given_back_does_not(make: Make) -> None:
    rig = make(tenants__a__cpu_bytes=2 * BLOCK)
    a = attach(rig, "a")
    held = a.reserved([1, 2])
    refused(a, 3)
    rig.host.abort(a.session, held.reservation, None)
    assert used(rig, "a", Tier.CPU) == 0
    a.put([3, 4])
    rig.host.remove(a.session, keys([3]))
    a.put([5])
    assert used(rig, "a", Tier.CPU) == 2 * BLOCK


def test_a_stalled_worker_pays_for_its_quarantined_slots(make: Make) -> None:
    """Reserving and lapsing again and again is no way around a quota."""
    rig = make(tenants__a__cpu_bytes=2 * BLOCK)
    a = attach(rig, "a")
    a.reserved([1, 2])
    rig.clock.advance(3600.0)
    with rig.directory.lock:
        rig.directory.expire(rig.clock.now())
    assert used(rig, "a", Tier.CPU) == 2 * BLOCK
    refused(a, 3)
    rig.host.detach(a.session)
    assert used(rig, "a", Tier.CPU) == 0


def test_many_at_once_get_together_no_more_than_the_quota(make: Make) -> None:
    rig = make(tenants__a__cpu_bytes=8 * BLOCK, cpu_blocks=64)
    workers = [attach(rig, "a") for _ in range(4)]
    granted: list[int] = []
    start = threading.Barrier(4)

    def race(number: int) -> None:
        start.wait()
        for block in range(number * 100, number * 100 + 6):
            try:
                granted.append(workers[number].write([block]).count(NEW))
            except ResourceExhaustedError:
                granted.append(0)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 8
    assert used(rig, "a", Tier.CPU) == 8 * BLOCK


# ------------------------------------------------------------------------------------------------ moves


def test_a_tenant_at_its_quota_moves_its_own_coldest_down_and_nobody_elses(make: Make) -> None:
    rig = make(tenants__a__cpu_bytes=4 * BLOCK, disk_bytes=16 * MIB)
    a, b = attach(rig, "a"), attach(rig, "b")
    b.put([100, 101])
    a.put(range(4))
    a.put([9])
    rig.settle()
    assert [rig.where(number, a) for number in (9,)] == [{"cpu"}]
    assert all("disk" in rig.where(number, a) or "cpu" in rig.where(number, a) for number in range(4))
    assert used(rig, "a", Tier.CPU) <= 4 * BLOCK
    assert rig.where(100, b) == {"cpu"}
    assert rig.moves(reason="quota")["done"] >= 1
    assert rig.moves()["evicted"] == 0
    assert a.read(range(4)) == [HIT] * 4


def test_brought_up_beyond_the_quota_others_of_its_own_make_room(make: Make) -> None:
    rig = make(tenants__a__cpu_bytes=4 * BLOCK, disk_bytes=16 * MIB)
    a = attach(rig, "a")
    a.put(range(8))
    held = a.hold([0, 1])
    assert a.read([2, 3]) == [HIT] * 2
    assert used(rig, "a", Tier.CPU) <= 4 * BLOCK
    a.release(held.lease)
    rig.settle()


def test_what_does_not_fit_the_quota_of_disk_is_evicted_with_that_reason(make: Make) -> None:
    """Room is needed for others: bob's demand pushes alice's blocks down, where she may have two more only."""
    rig = make(tenants__a__disk_bytes=1, disk_bytes=16 * MIB, cpu_blocks=16)
    a, b = attach(rig, "a"), attach(rig, "b")
    a.put(range(8))
    b.put(range(100, 112))
    rig.settle()
    gone = [number for number in range(8) if not rig.where(number, a)]
    assert gone
    assert rig.moves(reason="quota")["evicted"] == len(gone)
    assert used(rig, "a", Tier.DISK) == 0
    told = rig.host.explain(keys([gone[0]])[0])
    assert [(move["reason"], move["outcome"]) for account in told for move in account["history"]] == [
        ("quota", "evicted")
    ]
    assert all(rig.where(number, b) for number in range(100, 112))


def test_rules_that_are_no_reason_to_lose_a_block_leave_it_and_go_on_with_others(make: Make) -> None:
    rig = make(tenants__a__disk_bytes=1, disk_bytes=16 * MIB)
    a, b = attach(rig, "a"), attach(rig, "b")
    a.put(range(4))
    b.put(range(4))
    with rig.directory.lock:
        rows = [rig.row(number, worker) for number in range(4) for worker in (a, b)]
        freed, started = rig.migrator.reclaim.lower(rig.pool("cpu"), rows, Reason.IDLE, Priority.BACKGROUND)
    assert (freed, started) == (0, 4)
    rig.settle()
    assert [rig.where(number, a) for number in range(4)] == [{"cpu"}] * 4
    assert [rig.where(number, b) for number in range(4)] == [{"disk"}] * 4


def test_a_drain_writes_what_the_quota_of_disk_allows(make: Make) -> None:
    rig = make(tenants__a__disk_bytes=3 * (BLOCK + 4096), disk_bytes=16 * MIB)
    a, b = attach(rig, "a"), attach(rig, "b")
    a.put(range(6))
    b.put(range(4))
    report = rig.host.drain(10.0)
    rig.settle()
    assert 0 < used(rig, "a", Tier.DISK) <= 3 * (BLOCK + 4096)
    assert report.left == 6 - sum("disk" in rig.where(number, a) for number in range(6)) > 0
    assert all("disk" in rig.where(number, b) for number in range(4))


def test_the_quota_of_the_gpu_tier_counts_over_all_devices(make: Make) -> None:
    rig = make(gpus=2, gpu_blocks=16, tenants__a__gpu_bytes=4 * BLOCK)
    a = attach(rig, "a")
    a.put(range(4), tier=Tier.GPU)
    assert used(rig, "a", Tier.GPU) == 4 * BLOCK
    a.put([4], tier=Tier.GPU)
    rig.settle()
    assert used(rig, "a", Tier.GPU) <= 4 * BLOCK
    assert all(rig.where(number, a) for number in range(5))


def test_blocks_at_their_quota_are_relocated_for_anothers_layout(make: Make) -> None:
    """Within a tier nothing more is used when a block changes its slot, though for a moment it has two."""
    rig = make(tenants__a__cpu_bytes=32 * BLOCK)
    a = attach(rig, "a")
    a.put(range(32))
    rig.host.remove(a.session, keys([20, 30]))
    rig.host.update_config({"tenants.a.cpu_bytes": 30 * BLOCK})
    b = Worker(rig, rig.host.attach(rig.space(2 * BLOCK), pid=os.getpid(), in_process=True, owner="b"))
    assert b.write([500]) == [NEW]
    rig.settle()
    assert rig.moves(source="cpu", target="cpu", reason="recarve") == {"done": 1}
    assert rig.moves()["evicted"] == 0
    assert used(rig, "a", Tier.CPU) == 30 * BLOCK


# ------------------------------------------------------------------------------------------------ leases, changes


def test_the_quota_of_leases_is_over_all_sessions_of_a_tenant(make: Make) -> None:
    rig = make(tenants__a__leases_count=2)
    one, two, other = attach(rig, "a"), attach(rig, "a"), attach(rig, "b")
    one.put([1])
    held = one.hold([1])
    two.hold([1])
    with pytest.raises(
        ResourceExhaustedError, match=r"^quota a.leases_count: 2 leases and reservations of 2 are there"
    ):
        two.acquire([1])
    refusal = refused(one, 2)
    assert "leases_count" in refusal
    assert other.read([1]) == [MISS]
    one.release(held.lease)
    two.hold([1])


def test_a_quota_changes_live_and_below_what_is_used_takes_nothing(make: Make) -> None:
    rig = make()
    a = attach(rig, "a")
    a.put(range(6))
    rig.host.update_config({"tenants.a.cpu_bytes": 4 * BLOCK, "tenants.a.leases_count": 100})
    assert f"{6 * BLOCK} bytes used of {4 * BLOCK}" in refused(a, 9)
    assert a.read(range(6)) == [HIT] * 6
    rig.host.remove(a.session, keys([0, 1, 2]))
    a.put([9])
    refused(a, 10)
    rig.host.update_config({"tenants.a.cpu_bytes": ""})
    a.put([10, 11])
    rig.settle()


def test_the_sums_are_checked_against_the_slots(make: Make) -> None:
    rig = make()
    attach(rig, "a").put([1])
    quotas = rig.directory.state.quotas
    assert quotas is not None
    quotas.used[1, Tier.CPU] += BLOCK
    assert any("tenant 'a'" in line for line in rig.host.check())
    quotas.used[1, Tier.CPU] -= BLOCK
    assert rig.host.check() == []
