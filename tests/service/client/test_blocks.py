"""Writing, sharing and reading blocks, over each kind of transport."""

import numpy as np
import pytest
import torch

from hybridkv.service.client import KV, Reservation
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome, Tier
from tests.service.client.conftest import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    LIMIT,
    Backend,
    chain_of,
    check_content,
    content,
    make_space,
    store,
)

HIT, MISS = Outcome.HIT, Outcome.MISS


def test_what_was_sealed_is_found_and_read(kv: KV) -> None:
    keys = chain_of(kv, 5)
    assert kv.lookup(keys).prefix == 0
    with kv.reserve(keys) as slots:
        assert slots.new == [0, 1, 2, 3, 4]
        for i in slots.new:
            slots.view(i).copy_(torch.from_numpy(content(keys[i])))
        assert slots.seal().tolist() == [SealOutcome.SEALED] * 5
    found = kv.lookup(keys)
    assert (found.prefix, found.states.tolist(), found.tiers.tolist()) == (5, [HIT] * 5, [Tier.CPU] * 5)
    with kv.acquire(keys, tier="cpu") as lease:
        assert lease.prefix == 5
        check_content(keys, np.stack([lease.array(i) for i in range(5)]))
        assert torch.equal(lease.view(2), torch.from_numpy(content(keys[2])))
        out = np.zeros((5, BLOCK_BYTES), np.uint8)
        assert lease.read_into(out).tolist() == [HIT] * 5
        check_content(keys, out)


def test_read_copies_hits_and_leaves_other_rows(kv: KV) -> None:
    keys = chain_of(kv, 3)
    store(kv, keys)
    unknown = chain_of(kv, 1, first_token=5000)
    wanted = Keys.of([keys[2], unknown[0], keys[0]])
    out = np.full((3, BLOCK_BYTES), 7, np.uint8)
    assert kv.read(wanted, out).tolist() == [HIT, MISS, HIT]
    assert np.array_equal(out[0], content(keys[2]))
    assert (out[1] == 7).all()
    assert np.array_equal(out[2], content(keys[0]))


def test_read_takes_tensors_and_lists(kv: KV) -> None:
    keys = chain_of(kv, 2)
    store(kv, keys)
    tensor = torch.zeros((2, BLOCK_BYTES // 2), dtype=torch.float16)
    kv.read(keys, tensor)
    check_content(keys, tensor.view(torch.uint8).numpy())
    rows = [np.zeros(BLOCK_BYTES, np.uint8), torch.zeros(BLOCK_BYTES, dtype=torch.uint8)]
    kv.read(keys, rows)
    check_content(keys, np.stack([np.asarray(row) for row in rows]))


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_slots_are_written_in_one_go(kv: KV, kind: str) -> None:
    keys = chain_of(kv, 4)
    store(kv, keys[:1])
    rows = np.stack([content(key) for key in keys[1:]])
    source = torch.from_numpy(rows.view(np.float16)) if kind == "tensor" else rows
    with kv.reserve(keys) as slots:
        with pytest.raises(InvalidArgumentError, match="source"):
            slots.write_from(rows[:2])
        with pytest.raises(InvalidArgumentError, match="PRESENT"):
            slots.write_from(rows[:1], [0])
        slots.write_from(source)
        slots.write_from(rows[[2, 0]], [3, 1])
        slots.seal()
        with pytest.raises(FailedPreconditionError, match=r"given back|sealed"):
            slots.write_from(rows[:1], [1])
    out = np.zeros((4, BLOCK_BYTES), np.uint8)
    assert (kv.read(keys, out) == HIT).all()
    check_content(keys, out)


def test_two_clients_share_blocks(backend: Backend, space: Namespace) -> None:
    one, other = backend.connect(space), backend.connect(space)
    assert one.session != other.session
    keys = chain_of(one, 4)
    store(one, keys)
    with other.acquire(keys) as lease:
        check_content(keys, np.stack([lease.array(i) for i in range(4)]))
    with other.reserve(keys) as slots:
        assert slots.new == []
        assert slots.outcomes.tolist() == [ReserveOutcome.PRESENT] * 4
        assert slots.seal().tolist() == []


def test_other_tenant_sees_nothing(backend: Backend, space: Namespace) -> None:
    one, other = backend.connect(space), backend.connect(make_space(salt="another"))
    store(one, chain_of(one, 2))
    keys = list(chain_of(one, 2))
    assert other.lookup(keys).states.tolist() == [MISS, MISS]


def test_longer_chain_continues_a_stored_one(kv: KV) -> None:
    head, whole = chain_of(kv, 2), chain_of(kv, 4)
    assert whole[:2] == head
    assert kv.keys(list(range(2 * 16, 4 * 16)), parent=head[-1]) == whole[2:]
    store(kv, head)
    store(kv, whole[2:], parent=head[-1])
    assert kv.lookup(whole).prefix == 4


def test_unsealed_blocks_are_given_up_at_the_end(kv: KV) -> None:
    keys = chain_of(kv, 3)
    with kv.reserve(keys) as slots:
        slots.array(0)[:] = content(keys[0])
        assert slots.seal([0]).tolist() == [SealOutcome.SEALED]
    assert kv.lookup(keys).states.tolist() == [HIT, MISS, MISS]
    with kv.reserve(keys) as slots:
        assert slots.outcomes.tolist() == [ReserveOutcome.PRESENT, ReserveOutcome.NEW, ReserveOutcome.NEW]
        assert slots.new == [1, 2]


def test_an_exception_publishes_nothing(kv: KV) -> None:
    keys = chain_of(kv, 2)
    with pytest.raises(RuntimeError, match="broke"), kv.reserve(keys):
        raise RuntimeError("the model broke")
    assert kv.lookup(keys).states.tolist() == [MISS, MISS]


def test_slots_are_ours_until_sealed_or_given_up(kv: KV) -> None:
    keys = chain_of(kv, 2)
    slots = kv.reserve(keys)
    slots.array(0)[:] = content(keys[0])
    slots.seal([0])
    with pytest.raises(FailedPreconditionError, match="sealed"):
        slots.array(0)
    with pytest.raises(FailedPreconditionError, match="sealed"):
        slots.seal([0])
    with pytest.raises(InvalidArgumentError, match="2 keys"):
        slots.array(2)
    with pytest.raises(InvalidArgumentError, match="twice"):
        slots.seal([1, 1])
    slots.abort()
    slots.abort()
    with pytest.raises(FailedPreconditionError, match="given back"):
        slots.array(1)


def test_keys_that_are_being_written_are_not_ours(backend: Backend, space: Namespace) -> None:
    if not backend.mapped:
        pytest.skip("over streams nothing is reserved before the seal")
    one, other = backend.connect(space), backend.connect(space)
    keys = chain_of(one, 2)
    with one.reserve(keys):
        slots = other.reserve(keys)
        assert slots.outcomes.tolist() == [ReserveOutcome.BEING_WRITTEN] * 2
        with pytest.raises(InvalidArgumentError, match="BEING_WRITTEN"):
            slots.array(0)


def test_second_seal_of_a_key_changes_nothing(backend: Backend, space: Namespace) -> None:
    late, early = backend.connect(space), backend.connect(space)
    keys = chain_of(late, 1)
    slots = late.reserve(keys)
    slots.array(0)[:] = 1
    if backend.mapped:  # the slower writer sleeps through its reservation
        backend.clock.advance(31.0)
        backend.host.tick()
    store(early, keys)
    assert slots.seal().tolist() == [SealOutcome.ALREADY_SEALED]
    with early.acquire(keys) as lease:
        check_content(keys, lease.array(0)[None])


def test_removed_blocks_are_gone(kv: KV) -> None:
    keys = chain_of(kv, 3)
    store(kv, keys)
    assert kv.remove(keys[1:]) == 2
    assert kv.lookup(keys).states.tolist() == [HIT, MISS, MISS]
    assert kv.remove(keys[1:]) == 0


def test_touch_and_prefetch_count_blocks(kv: KV) -> None:
    keys = chain_of(kv, 3)
    store(kv, keys[:2])
    assert kv.touch(keys) == 2
    assert kv.prefetch(keys) == 0


def test_request_protects_and_ends(kv: KV) -> None:
    keys = chain_of(kv, 2)
    with kv.request() as request:
        with request.reserve(keys) as slots:
            for i in slots.new:
                slots.array(i)[:] = content(keys[i])
            slots.seal()
        with request.acquire(keys) as lease:
            assert lease.prefix == 2
        out = np.zeros((2, BLOCK_BYTES), np.uint8)
        assert request.read(keys, out).tolist() == [HIT, HIT]
        check_content(keys, out)
    assert kv.stats()["requests"] == 0


def test_request_in_whose_name_nothing_was_asked_ends_quietly(kv: KV) -> None:
    with kv.request():
        pass
    assert kv.stats()["requests"] == 0


def test_more_keys_than_one_call_takes(kv: KV) -> None:
    count = LIMIT * 2 + 3
    keys = chain_of(kv, count)
    for start in range(0, count, LIMIT):
        store(kv, keys[start : start + LIMIT], parent=keys[start - 1] if start else None)
    assert kv.lookup(keys).prefix == count
    out = np.zeros((count, BLOCK_BYTES), np.uint8)
    assert (kv.read(keys, out) == HIT).all()
    check_content(keys, out)
    assert kv.touch(keys) == count
    for refused in (kv.acquire, kv.reserve):
        with pytest.raises(InvalidArgumentError, match=f"{count} keys; one call takes {LIMIT}"):
            refused(keys)
    assert kv.remove(keys) == count


def test_no_room_is_said_and_loses_nothing(backend: Backend, space: Namespace) -> None:
    if not backend.mapped:
        pytest.skip("over streams nothing is reserved before the seal")
    kv = backend.connect(space)
    chains = [chain_of(kv, LIMIT, first_token=start * LIMIT * BLOCK_TOKENS) for start in range(9)]  # 1,152 blocks
    held: list[Reservation] = []
    with pytest.raises(ResourceExhaustedError, match="cpu"):
        held.extend(kv.reserve(keys, timeout_s=5.0) for keys in chains)
    assert sum(len(slots.new) for slots in held) <= 1024
    for slots in held:
        slots.abort()
    store(kv, chain_of(kv, 2))


def test_stats_are_the_hosts(backend: Backend, kv: KV) -> None:
    stats = kv.stats()
    assert stats["epoch"] == kv.epoch == backend.host.epoch
    assert stats["sessions"] == 1


def test_mapping_says_whether_and_why_not(backend: Backend, kv: KV) -> None:
    assert kv.mapped is backend.mapped
    assert bool(kv.unmapped_reason) is not backend.mapped
    assert kv.draining is False
    assert "m, rank 0/1" in repr(kv)


def test_views_of_a_mapped_session_are_not_copies(backend: Backend, kv: KV) -> None:
    if not backend.mapped:
        pytest.skip("over streams they are copies")
    keys = chain_of(kv, 1)
    store(kv, keys)
    with kv.acquire(keys) as one, kv.acquire(keys) as other:
        assert one.array(0).ctypes.data == other.array(0).ctypes.data
        assert one.view(0).data_ptr() == one.array(0).ctypes.data
