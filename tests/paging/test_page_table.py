"""The page table against a dictionary, its memory, its forks, and changes of the page size."""

import random

import numpy as np
import pytest

from hybridkv.paging.entries import PageFlag, Place, flags_of, mapped_in, offsets_of, pools_of, resident_in
from hybridkv.paging.page_table import PageTable
from hybridkv.tiers.errors import InvalidArgumentError

SIZE = 4096
RESIDENT = PageFlag.RESIDENT


def test_ten_pages_in_a_space_of_ten_million_tokens_cost_kilobytes() -> None:
    table = PageTable(32, SIZE)
    table.map(np.linspace(0, 10**7 // 32 - 1, 10).astype(int), 0, np.arange(10) * SIZE)
    assert table.mapped_count == 10
    assert table.nbytes < 40_000


def test_memory_comes_back_when_pages_are_unmapped_and_is_used_again() -> None:
    table = PageTable(32, SIZE)
    for _ in range(50):
        table.map(np.arange(1000), 0, np.arange(1000) * SIZE)
        table.unmap(np.arange(1000))
    assert table.mapped_count == table.entry_count == 0
    assert table.nbytes < 30_000


def test_one_position() -> None:
    table = PageTable(24, SIZE)
    table.map([3], 2, [7 * SIZE], PageFlag.RESIDENT | PageFlag.STICKY)
    flags = PageFlag.MAPPED | PageFlag.RESIDENT | PageFlag.STICKY
    assert table.translate(3 * 24 + 5) == Place(2, 7 * SIZE, 5, flags)
    assert table.translate(2 * 24) is None
    assert table.translate(10**9) is None


def test_arrays_of_positions_in_any_order() -> None:
    table = PageTable(16, SIZE)
    offsets = np.random.default_rng(3).permutation(500) * SIZE
    table.map(np.arange(0, 1000, 2), 1, offsets)
    positions = np.random.default_rng(4).integers(0, 40_000, 60_000)
    for asked in (positions, np.sort(positions), np.arange(0, 40_000)):
        words = table.translate_many(asked)
        block = asked // 16
        there = (block % 2 == 0) & (block < 1000)
        assert (mapped_in(words) == there).all()
        assert (resident_in(words) == there).all()
        assert (offsets_of(words[there]) == offsets[block[there] // 2]).all()
        assert (pools_of(words[there]) == 1).all()
    assert len(table.translate_many(np.empty(0, np.int64))) == 0


def test_adjacent_blocks_are_one_entry_and_others_are_split() -> None:
    table = PageTable(16, SIZE, page_blocks=4)
    table.map(np.arange(4), 0, np.arange(4) * SIZE)
    assert table.entry_count == 1
    table.map(np.arange(4, 8), 0, np.array([20, 8, 12, 9]) * SIZE)
    assert table.entry_count == 1 + 1 + 4
    assert offsets_of(table.words(np.arange(8))).tolist() == [n * SIZE for n in (0, 1, 2, 3, 20, 8, 12, 9)]
    table.map([2], 0, [100 * SIZE])
    assert table.entry_count == 10
    table.map(np.arange(8), 0, np.arange(8, 16) * SIZE)
    assert table.entry_count == 2


def test_a_page_does_not_cross_the_end_of_an_extent() -> None:
    table = PageTable(16, SIZE, page_blocks=4, extent_bytes={0: 8 * SIZE})
    table.map(np.arange(4), 0, np.arange(6, 10) * SIZE)
    assert table.entry_count == 5
    table.map(np.arange(4), 0, np.arange(4, 8) * SIZE)
    assert table.entry_count == 1


def test_flags_are_changed_for_mapped_blocks_only() -> None:
    table = PageTable(16, SIZE, page_blocks=2)
    table.map([0, 1], 0, [0, SIZE])
    table.set_flags([1, 5], on=PageFlag.STICKY, off=PageFlag.RESIDENT)
    assert flags_of(table.words([0, 1, 5])).tolist() == [
        PageFlag.MAPPED | RESIDENT,
        PageFlag.MAPPED | PageFlag.STICKY,
        0,
    ]
    assert table.entry_count == 3
    table.set_flags([1], on=PageFlag.RESIDENT, off=PageFlag.STICKY)
    assert table.entry_count == 1


def test_a_fork_is_equal_at_first_and_independent_then() -> None:
    table = PageTable(16, SIZE, page_blocks=2)
    table.map(np.arange(1000), 0, np.random.default_rng(1).permutation(1000) * SIZE)
    before = table.words(np.arange(1000))
    twin = table.clone()
    assert (twin.words(np.arange(1000)) == before).all()
    twin.map([3], 0, [5000 * SIZE])
    table.unmap(np.arange(500, 1000))
    assert (table.words(np.arange(500)) == before[:500]).all()
    assert (twin.words(np.arange(4, 1000)) == before[4:]).all()
    table.clear()
    assert (twin.words(np.arange(4, 1000)) == before[4:]).all()
    assert twin.mapped_count == 1000


def test_a_fork_copies_only_the_nodes_it_changes() -> None:
    table = PageTable(16, SIZE)
    table.map(np.arange(100_000), 0, np.arange(100_000) * SIZE)
    size = table.nbytes
    twin = table.clone()
    twin.map([5], 0, [0])
    assert twin.nbytes - size < 0.6 * size  # the array of nodes grows by half, once
    used = table._leaves.used
    assert used == -(-100_000 // 128) + 1
    twin.clear()
    assert table._leaves.used == used - 1


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1), (4, 8), (8, 2)])
def test_the_page_size_changes_without_a_block_moving(sizes: tuple[int, int]) -> None:
    before, after = sizes
    table = PageTable(16, SIZE, before)
    offsets = np.arange(64) * SIZE
    offsets[[16, 17, 18, 19]] = offsets[[19, 16, 18, 17]]
    table.map(np.arange(64), 3, offsets)
    words = table.words(np.arange(64))
    done = table.regroup(after)
    assert (table.words(np.arange(64)) == words).all()
    assert done.entries_after == table.entry_count
    pages = 64 // after
    if after == 1:
        assert table.entry_count == 64
        assert not len(done.scattered)
    else:
        assert done.scattered.tolist() == sorted({block // after for block in range(16, 20)})
        assert table.entry_count == pages + len(done.scattered) * after


def test_pages_that_lie_elsewhere_need_no_move() -> None:
    table = PageTable(16, SIZE)
    table.map([0, 1, 2, 3], 0, np.array([9, 3, 5, 7]) * SIZE, PageFlag(0))
    table.map([4, 5, 6], 0, np.array([19, 13, 15]) * SIZE)
    assert not len(table.regroup(4).scattered)


def test_bad_values_name_the_field_and_change_nothing() -> None:
    table = PageTable(16, SIZE)
    table.map([0], 0, [SIZE])
    words = table.words([0, 1])
    for call, field in (
        (lambda: table.map([0, 0], 0, [0, SIZE]), "blocks"),
        (lambda: table.map([-1], 0, [0]), "blocks"),
        (lambda: table.map([0.5], 0, [0]), "blocks"),
        (lambda: table.map([1], 0, [100]), "offsets"),
        (lambda: table.map([1], 1 << 15, [0]), "pools"),
        (lambda: table.map([1], 0, [0], PageFlag.SPLIT), "flags"),
        (lambda: table.regroup(3), "page_blocks"),
        (lambda: table.translate(-1), "position"),
        (lambda: table.translate_many([5, -1]), "positions"),
        (lambda: PageTable(16, 1000), "block_bytes"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"^{field}"):
            call()
    assert (table.words([0, 1]) == words).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_family_of_tables_against_dictionaries(seed: int) -> None:
    rng = random.Random(seed)
    family: list[tuple[PageTable, dict[int, tuple[int, int, int]]]] = [(PageTable(8, SIZE, rng.choice([1, 2, 4])), {})]
    for _ in range(150):
        table, model = rng.choice(family)
        step = rng.choice(["map", "map", "unmap", "flags", "clone", "regroup", "clear"])
        start, count = rng.choice([0, 100, 5000]) + rng.randrange(40), rng.randrange(1, 20)
        blocks = list(range(start, start + count))
        if step == "map":
            slot, pool = rng.randrange(10_000), rng.randrange(3)
            slots = [slot + n for n in range(count)] if rng.random() < 0.6 else [rng.randrange(10_000) for _ in blocks]
            table.map(blocks, pool, np.array(slots) * SIZE, PageFlag.RESIDENT)
            model.update({b: (pool, s * SIZE, int(RESIDENT)) for b, s in zip(blocks, slots, strict=True)})
        elif step == "unmap":
            rng.shuffle(blocks)
            table.unmap(blocks)
            for b in blocks:
                model.pop(b, None)
        elif step == "flags":
            table.set_flags(blocks, on=PageFlag.PRIVATE, off=RESIDENT)
            for b in set(blocks) & set(model):
                model[b] = (model[b][0], model[b][1], int(PageFlag.PRIVATE))
        elif step == "clone" and len(family) < 4:
            family.append((table.clone(), dict(model)))
        elif step == "regroup":
            table.regroup(rng.choice([1, 2, 4, 8]))
        elif step == "clear" and rng.random() < 0.2:
            table.clear()
            model.clear()
        for other, expected in family:
            _check(other, expected)


def _check(table: PageTable, model: dict[int, tuple[int, int, int]]) -> None:
    blocks, words = table.mapped()
    assert blocks.tolist() == sorted(model)
    found = list(zip(pools_of(words).tolist(), offsets_of(words).tolist(), flags_of(words).tolist(), strict=True))
    assert found == [(p, o, f | PageFlag.MAPPED) for p, o, f in (model[b] for b in sorted(model))]
    assert table.mapped_count == len(model)
    entries = table._leaves.rows()[table._root]
    ids = entries[(entries & PageFlag.SPLIT) != 0] >> 9
    assert table.entry_count == np.count_nonzero(entries) + np.count_nonzero(table._splits.rows()[ids])
