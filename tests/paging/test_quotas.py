"""Tenants at their quotas, whatever they do: written, read, removed, drained, paged, suspended; the accounts stay exact."""

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from hybridkv.tiers.errors import HybridKVError, ResourceExhaustedError
from hybridkv.tiers.states import Tier
from tests.migration.hosts import BLOCK, Rig, Worker, keys
from tests.paging.rig import Pages

QUOTAS = {
    "a": {Tier.GPU: 6 * BLOCK, Tier.CPU: 10 * BLOCK, Tier.DISK: 30 * (BLOCK + 4096)},
    "b": {Tier.GPU: 20 * BLOCK, Tier.CPU: 6 * BLOCK, Tier.DISK: 4 * (BLOCK + 4096)},
}
STEPS = 50


def make_rig(tmp_path: Path, page_blocks: int = 1) -> Rig:
    limits: dict[str, Any] = {
        f"tenants__{name}__{tier.name.lower()}_bytes": nbytes
        for name, of in QUOTAS.items()
        for tier, nbytes in of.items()
    }
    return Rig(tmp_path, disk_bytes=16 << 20, gpu_blocks=24, cpu_blocks=24, paging__page_blocks=page_blocks,
               tenants__a__uid=1, tenants__b__uid=2, **limits)  # fmt: skip


def attach(rig: Rig, owner: str) -> Worker:
    return Worker(rig, rig.host.attach(rig.space(), pid=os.getpid(), in_process=True, owner=owner))


class Tenant:
    """One tenant's worker and its sequences, doing at random what a worker may."""

    def __init__(self, rig: Rig, name: str, choose: random.Random) -> None:
        self.rig, self.name, self.choose = rig, name, choose
        self.worker = attach(rig, name)
        self.pages = Pages(rig, self.worker)
        self.sequences: list[int] = []

    def step(self) -> None:
        action = self.choose.choice([self.write, self.write, self.read, self.remove, self.page, self.page, self.rest])
        with contextlib.suppress(ResourceExhaustedError):  # a quota, or the tier
            action()
        self.rig.migrator.quiesce(10.0)

    def numbers(self) -> list[int]:
        first = self.choose.randrange(40)
        return list(range(first, first + self.choose.randrange(1, 5)))

    def write(self) -> None:
        self.worker.write(self.numbers(), tier=self.choose.choice([Tier.GPU, Tier.CPU]))

    def read(self) -> None:
        self.worker.read(self.numbers(), tier=self.choose.choice([Tier.GPU, Tier.CPU]))

    def remove(self) -> None:
        self.rig.host.remove(self.worker.session, keys(self.numbers()))

    def page(self) -> None:
        if not self.sequences or self.choose.random() < 0.5:
            self.sequences.append(self.pages.open(8, tier=Tier.GPU))
        blocks = range(self.choose.randrange(1, 5))
        self.pages.write(self.sequences[-1], {block: 1000 + block for block in blocks})

    def rest(self) -> None:
        if not self.sequences:
            return
        sequence = self.sequences.pop(self.choose.randrange(len(self.sequences)))
        if self.choose.random() < 0.5:
            self.pages.suspend(sequence)
            self.pages.resume(sequence)
        self.pages.close(sequence)


@pytest.mark.parametrize(("seed", "page_blocks"), [(1, 1), (2, 2)])
def test_whatever_two_tenants_do_the_accounts_are_exact_and_the_quotas_kept(
    tmp_path: Path, seed: int, page_blocks: int
) -> None:
    rig = make_rig(tmp_path, page_blocks)
    choose = random.Random(seed)
    tenants = [Tenant(rig, name, choose) for name in QUOTAS]
    quotas = rig.directory.state.quotas
    assert quotas is not None
    try:
        for step in range(STEPS):
            choose.choice(tenants).step()
            if step % 20 == 19:
                rig.host.drain(5.0)
                rig.migrator.quiesce(10.0)
            assert rig.host.check() == [], step
            assert (quotas.used <= quotas.limits).all(), (step, quotas.used)
        for tenant in tenants:
            rig.host.detach(tenant.worker.session)
        rig.host.clear()
        rig.settle()
        assert not quotas.used.any()
    finally:
        rig.free_everything()
        rig.close()


def test_a_fault_beyond_the_quota_is_refused_by_name(tmp_path: Path) -> None:
    rig = make_rig(tmp_path)
    pages = Pages(rig, attach(rig, "a"))
    sequence = pages.open(8, tier=Tier.GPU)
    pages.write(sequence, {block: block for block in range(6)})
    with pytest.raises(HybridKVError, match=r"quota a.gpu_bytes: 98304 bytes used of 98304"):
        pages.write(sequence, {6: 6})
    rig.settle()
    rig.close()
