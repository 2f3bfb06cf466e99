"""What the directory tells policies about pools and rows."""

import numpy as np
import pytest

from hybridkv.tiers.directory.facts import DirectoryFacts
from tests.tiers.directory.conftest import CPU, DISK, GPU, SIZE, Kit, key


def facts_of(kit: Kit, pool: int) -> DirectoryFacts:
    return DirectoryFacts(pool, lambda: kit.directory.state)


def test_capacity_is_in_blocks_of_the_average_size(kit: Kit) -> None:
    assert facts_of(kit, GPU).capacity_slots() == 8
    kit.directory.add_space_by(b"g" * 32, 3 * SIZE, 8)
    assert facts_of(kit, GPU).capacity_slots() == 4


def test_before_there_is_a_directory_there_is_room_for_one(kit: Kit) -> None:
    facts = DirectoryFacts(GPU, lambda: None)
    assert facts.capacity_slots() == 1
    with pytest.raises(AssertionError):
        facts.identities(np.array([0]))


def test_an_identity_outlives_the_row(kit: Kit) -> None:
    rows = np.array(kit.seal(1, 2))
    before = facts_of(kit, GPU).identities(rows)
    kit.directory.copies.remove(rows)
    kit.seal(9)
    again = np.array(kit.seal(2, 1))
    assert again.tolist() != rows[::-1].tolist()
    assert facts_of(kit, GPU).identities(again).tolist() == before[::-1].tolist()
    assert before[0] != before[1]


def test_equal_keys_of_two_namespaces_are_two_blocks(kit: Kit) -> None:
    row = np.array(kit.seal(1))
    one = facts_of(kit, GPU).identities(row)
    kit.directory.blocks.namespace[row] = 1
    two = facts_of(kit, GPU).identities(row)
    kit.directory.blocks.namespace[row] = 0
    assert one.tolist() != two.tolist()
    assert kit.directory.blocks.keys[row[0]] == key(1)


def test_a_block_is_dirty_in_a_pool_until_a_lower_tier_has_it(kit: Kit) -> None:
    rows = np.array(kit.seal(1, 2))
    assert facts_of(kit, GPU).dirty(rows).tolist() == [True, True]
    kit.move([2], GPU, CPU, keep_source=True)
    assert facts_of(kit, GPU).dirty(rows).tolist() == [True, False]
    assert facts_of(kit, CPU).dirty(rows[1:]).tolist() == [True]
    kit.move([2], CPU, DISK, keep_source=True)
    assert facts_of(kit, CPU).dirty(rows[1:]).tolist() == [False]
    assert facts_of(kit, DISK).dirty(rows[1:]).tolist() == [True]


def test_history_and_sizes_are_the_blocks(kit: Kit) -> None:
    rows = np.array(kit.seal(1, 2))
    uses, _ = facts_of(kit, GPU).history(rows)
    kit.clock.advance(3.0)
    kit.directory.accesses.touch(rows[1:])
    counts, used_at = facts_of(kit, GPU).history(rows)
    assert counts[0] == uses[0]
    assert counts[1] == pytest.approx(uses[1] + 1, abs=0.01)
    assert used_at[1] == kit.clock.now()
    assert facts_of(kit, GPU).block_bytes(rows).tolist() == [SIZE, SIZE]
