"""Chains: parents, children that came earlier, orphans, and the counts that law 7 rests on."""

import numpy as np

from hybridkv.tiers.directory.blocks import NOWHERE, BlockTable
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import BlockState, Tier
from tests.tiers.directory.conftest import CPU, DISK, GPU, Kit, key


def test_a_chain_knows_its_parents(kit: Kit) -> None:
    rows = kit.seal(1, 2, 3)
    assert kit.directory.blocks.parent[rows].tolist() == [NO_ROW, rows[0], rows[1]]
    assert not kit.directory.blocks.is_orphan(np.array(rows)).any()


def test_a_child_that_came_first_is_an_orphan_until_its_parent_comes(kit: Kit) -> None:
    child = kit.seal(2, parent=key(1))
    blocks = kit.directory.blocks
    assert blocks.is_orphan(np.array(child)).all()
    parent = kit.seal(1)
    assert blocks.parent[child].tolist() == parent
    assert blocks.orphans == {}
    assert blocks.children_from(np.array(parent), Tier.GPU).tolist() == [1]


def test_removal_of_a_parent_orphans_its_children_and_a_new_parent_adopts_them(kit: Kit) -> None:
    first, second = kit.seal(1, 2)
    kit.directory.copies.remove(np.array([first]))
    blocks = kit.directory.blocks
    assert blocks.is_orphan(np.array([second])).all()
    assert kit.directory.check() == []
    (again,) = kit.seal(1)
    assert blocks.parent[second] == again


def test_counts_follow_the_child_from_tier_to_tier(kit: Kit) -> None:
    parent, _ = kit.seal(1, 2)
    blocks, rows = kit.directory.blocks, np.array([parent])
    assert [blocks.children_from(rows, tier).item() for tier in Tier] == [1, 1, 1]
    kit.move([2], GPU, CPU)
    assert [blocks.children_from(rows, tier).item() for tier in Tier] == [0, 1, 1]
    kit.move([2], CPU, DISK)
    assert [blocks.children_from(rows, tier).item() for tier in Tier] == [0, 0, 1]


def test_a_reserved_child_counts_where_it_is_written(kit: Kit) -> None:
    (parent,) = kit.seal(1)
    held = kit.reserve(2, parent=key(1))
    assert kit.directory.blocks.children_from(np.array([parent]), Tier.GPU).tolist() == [1]
    kit.directory.writes.abort(held, np.array([0]))
    assert kit.directory.blocks.children_from(np.array([parent]), Tier.GPU).tolist() == [0]


def test_one_key_in_two_namespaces_is_two_blocks(kit: Kit) -> None:
    kit.seal(1)
    other = kit.directory.add_space_by(b"g" * 32, 4096, 8)
    assert kit.directory.sealed(other.index, [key(1)]).tolist() == [NO_ROW]


def test_recycled_rows_come_back_clean() -> None:
    table = BlockTable([Tier.GPU, Tier.CPU])
    table.add_namespace()
    rows = table.allocate(3)
    table.insert(0, [b"a", b"b", b"c"], rows, [b"", b"a", b"x"], BlockState.SEALED)
    table.set_highest(rows, Tier.CPU)
    assert len(table) == 3
    table.unindex(rows)
    table.recycle(rows)
    assert len(table) == 0
    assert table.orphans == {}
    assert table.find(0, [b"a", b"b", b"c"]).tolist() == [NO_ROW] * 3
    again = table.allocate(3)
    assert (table.highest[again] == NOWHERE).all()
    assert [table.keys[row] for row in again.tolist()] == [b"", b"", b""]


def test_the_table_grows_and_keeps_what_it_holds() -> None:
    table = BlockTable([Tier.CPU])
    table.add_namespace()
    rows = table.allocate(5000)
    keys = [key(n) for n in range(5000)]
    table.insert(0, keys, rows, [b""] * 5000, BlockState.SEALED)
    table.allocate(5000)
    assert table.find(0, keys).tolist() == rows.tolist()
    assert len(np.unique(rows)) == 5000


def test_one_key_is_found_as_many_are(kit: Kit) -> None:
    row, _ = kit.seal(1, 2)
    blocks = kit.directory.blocks
    assert blocks.find_one(kit.space.index, key(1)) == row
    assert [blocks.find_one(kit.space.index, k) for k in (key(3), b"", b"k" * 64, b"k" * 65)] == [NO_ROW] * 4
    assert blocks.find_one(kit.space.index + 1, key(1)) == NO_ROW


def test_namespaces_with_keys_of_different_widths(kit: Kit) -> None:
    (row,) = kit.seal(1)
    blocks, wide = kit.directory.blocks, [bytes([n]) * 40 for n in range(3)]
    number, rows = blocks.add_namespace(), blocks.allocate(3)
    blocks.insert(number, wide, rows, [b"", *wide[:-1]], BlockState.SEALED)
    assert blocks.find(number, wide).tolist() == rows.tolist()
    assert blocks.parent[rows].tolist() == [NO_ROW, *rows[:-1].tolist()]
    assert kit.rows(1) == [row]
    blocks.unindex(rows)
    blocks.recycle(rows)


def test_unindexing_the_middle_of_a_chain_orphans_only_who_stays() -> None:
    table = BlockTable([Tier.CPU])
    table.add_namespace()
    rows, keys = table.allocate(4), [key(n) for n in range(4)]
    table.insert(0, keys, rows, [b"", *keys[:-1]], BlockState.SEALED)
    table.set_highest(rows, Tier.CPU)
    table.unindex(rows[1:3])
    assert table.orphans == {(0, keys[2]): {int(rows[3])}}
    assert table.children_from(rows[:1], Tier.CPU).tolist() == [0]
    again = table.allocate(1)
    table.insert(0, [keys[2]], again, [keys[1]], BlockState.SEALED)
    assert table.parent[rows[3]] == again[0]
    assert table.orphans == {(0, keys[1]): {int(again[0])}}
