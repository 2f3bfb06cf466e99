"""`stacks`: the blocks of a lease or a reservation as few arrays."""

import numpy as np
import pytest

from hybridkv.service.client import KV
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from tests.service.client.conftest import Backend, chain_of, content, store

BLOCKS = 100  # of 4 KiB: more than one extent of 256 KiB


def test_a_lease_gives_every_block_once_in_few_arrays(kv: KV) -> None:
    keys = chain_of(kv, BLOCKS)
    store(kv, keys)
    with kv.acquire(keys) as lease:
        stacks = lease.stacks(np.arange(1, BLOCKS))
        found = {
            int(i): stack.blocks[row] for stack in stacks for i, row in zip(stack.indices, stack.rows, strict=True)
        }
        assert sorted(found) == list(range(1, BLOCKS))
        assert all(np.array_equal(found[i], content(keys[i])) for i in found)
        assert not any(stack.blocks.flags.writeable for stack in stacks)
        if kv.mapped:
            assert len(stacks) < 4


def test_a_reservation_is_written_through_its_arrays(kv: KV) -> None:
    keys = chain_of(kv, BLOCKS)
    with kv.reserve(keys) as slots:
        for stack in slots.stacks(np.array(slots.new)):
            stack.blocks[stack.rows] = np.stack([content(keys[i]) for i in stack.indices.tolist()])
        slots.seal()
    with kv.acquire(keys) as lease:
        assert all(np.array_equal(lease.array(i), content(keys[i])) for i in range(BLOCKS))


def test_what_is_no_hit_and_what_was_given_up_is_refused(kv: KV) -> None:
    keys = chain_of(kv, 2)
    store(kv, keys[:1])
    with kv.acquire(keys) as lease:
        with pytest.raises(FailedPreconditionError, match="MISS"):
            lease.stacks(np.array([1]))
    with pytest.raises(FailedPreconditionError, match="given back"):
        lease.stacks(np.array([0]))


def test_blocks_whose_size_does_not_divide_an_extent_are_where_they_are_said_to_be(backend: Backend) -> None:
    """Slots of the second extent do not begin where the extent does."""
    nbytes = 24576
    kv = backend.connect(Namespace(model="odd", layout=BlockLayout.opaque(nbytes, 16, "odd"), salt=""))
    keys = kv.keys(list(range(16 * 24)))
    with kv.reserve(keys) as slots:
        for stack in slots.stacks(np.array(slots.new)):
            stack.blocks[stack.rows] = np.stack([content(keys[i], nbytes) for i in stack.indices.tolist()])
        assert all(np.array_equal(slots.array(i), content(keys[i], nbytes)) for i in range(len(keys)))
        slots.seal()
    with kv.acquire(keys) as lease:
        for stack in lease.stacks(np.arange(len(keys))):
            for i, row in zip(stack.indices.tolist(), stack.rows.tolist(), strict=True):
                assert np.array_equal(stack.blocks[row], lease.array(i))
