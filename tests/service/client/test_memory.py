"""Mapped memory, and device memory that cannot be mapped."""

import sys

import numpy as np
import pytest
import torch

from hybridkv.service.client.core import Budget, Wish
from hybridkv.service.client.lease import take_lease
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.memory import Memory
from hybridkv.service.client.outputs import rows_of
from hybridkv.service.client.reservation import take_reservation
from hybridkv.service.replies import PoolInfo
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.states import Tier
from tests.service.client.scripted import BLOCK_BYTES, POOLS, SLOTS, Mapped, Scripted, numbered

CUDA = PoolInfo(2, Tier.GPU, 0, "cuda", 1 << 20, 1 << 16)


def test_any_tier_is_any_where_everything_is_mapped() -> None:
    memory = Memory(Mapped(), POOLS, BLOCK_BYTES)
    assert [memory.tier_for(tier) for tier in (None, Tier.CPU, Tier.GPU)] == [None, Tier.CPU, Tier.GPU]


def test_device_memory_out_of_reach_is_gone_around() -> None:
    memory = Memory(Mapped(), (*POOLS, CUDA), BLOCK_BYTES)
    assert [memory.tier_for(tier) for tier in (None, Tier.CPU, Tier.DISK)] == [Tier.CPU, Tier.CPU, Tier.DISK]
    with pytest.raises(FailedPreconditionError, match="out of reach"):
        memory.tier_for(Tier.GPU)


def test_calls_without_a_tier_ask_for_what_is_in_reach() -> None:
    transport = Scripted(pools=(*POOLS, CUDA))
    attachment, wish, budget = Attachment(transport), Wish(numbered(1)), Budget(0.0, 5.0)
    take_lease(attachment, wish, budget, 5.0).release()
    take_reservation(attachment, wish, None, budget, 5.0).abort()
    assert transport.asked("acquire")[0]["tier"] is Tier.CPU
    assert transport.asked("reserve")[0]["tier"] is Tier.CPU


def test_slot_that_leaves_the_memory_is_refused() -> None:
    slot = np.zeros(1, SLOT_DTYPE)
    slot["offset"] = BLOCK_BYTES * SLOTS - 512
    with pytest.raises(FailedPreconditionError, match="leave the mapped memory"):
        Memory(Mapped(), POOLS, BLOCK_BYTES).block(slot[0])


class OneDevice:
    """A device pool whose copies are enqueued: they happen when it is synchronised."""

    pools = (CUDA.index,)

    def __init__(self) -> None:
        self.enqueued = 0

    def why_not(self, pool: int) -> str | None:
        return None

    def view(self, pool: int, offset: int, nbytes: int) -> torch.Tensor:
        self.enqueued += 1
        return torch.full((nbytes,), offset // nbytes, dtype=torch.uint8)

    def record(self, pool: int) -> bytes:
        return b"event"

    def synchronize(self, pool: int) -> None:
        self.enqueued = 0

    def let_go(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        """Nothing to close."""


def test_a_copy_off_a_device_is_checked_only_once_it_has_happened() -> None:
    mapped, device = Mapped(), OneDevice()
    left_at_check: list[int] = []
    mapped.header.before_check = lambda: left_at_check.append(device.enqueued)
    memory = Memory(mapped, (*POOLS, CUDA), BLOCK_BYTES, device)
    slots = np.zeros(3, SLOT_DTYPE)
    slots["pool"], slots["generation"], slots["header"] = [CUDA.index, CUDA.index, 0], 2, [1, 2, 5]
    slots["offset"] = np.array([1, 2, 5]) * BLOCK_BYTES
    out = np.zeros((3, BLOCK_BYTES), np.uint8)
    assert memory.copy(slots, np.arange(3), rows_of(out, 3, BLOCK_BYTES)).all()
    assert out[:, 0].tolist() == out[:, -1].tolist() == [1, 2, 5]
    assert set(left_at_check) == {0}


def test_device_memory_is_not_taken_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(Mapped(), (*POOLS, CUDA), BLOCK_BYTES, OneDevice())
    assert memory.tier_for(None) is None
    monkeypatch.delitem(sys.modules, "torch")
    assert memory.tier_for(None) is Tier.CPU
    assert memory.tier_for(Tier.GPU) is Tier.GPU


def test_validity_of_nothing_is_nothing() -> None:
    assert Memory(Mapped(), POOLS, BLOCK_BYTES).valid(np.zeros(0, SLOT_DTYPE)).tolist() == []
