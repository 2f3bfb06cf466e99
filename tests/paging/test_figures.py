"""What stats and metrics tell of sequences, and keys of the config that change live."""

from collections.abc import Callable
from typing import Any

import pytest

from hybridkv.service.metrics import StatsCollector
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.states import Tier
from tests.paging.rig import BLOCK, TOKENS, Pages

Make = Callable[..., Pages]


def test_use_of_memory_and_waste(make_pages: Make) -> None:
    pages = make_pages(gpu_blocks=128)
    sequence = pages.open(tokens=2 * TOKENS + 4, page_blocks=4)
    pages.write(sequence, {0: 1, 1: 2, 2: 3})
    told: Any = pages.rig.host.stats()["paging"]
    pool = told["pools"]["gpu0"]
    assert pool["total_bytes"] == 128 * BLOCK
    assert pool["used_bytes"] == pool["reserved_bytes"] == pool["written_bytes"] == 4 * BLOCK
    assert pool["waste_bytes"] == BLOCK + BLOCK * 12 // 16, (
        "one block beyond the end, and three quarters of the last one"
    )
    assert (told["entries"], told["resident_blocks"]) == (1, 4)
    assert told["sequences"] == {"open": 1, "suspended": 0}


def test_what_happened_is_counted(make_pages: Make) -> None:
    pages = make_pages()
    pages.worker.put([1], tier=Tier.CPU)
    sequence = pages.open(2, [1])
    pages.read(sequence, {0: 1})
    pages.write(sequence, {1: 2})
    pages.write(pages.fork(sequence)[0], {1: 3})
    pages.suspend(sequence)
    pages.calls.note_tlb(pages.session, 10, 2, 1)
    pages.calls.note_tlb(pages.session, 5, 0, 0)
    told: Any = pages.rig.host.stats()["paging"]
    assert (told["minor_faults"], told["major_faults"]) == (2, 1)
    assert (told["copied_on_write"], told["copied_on_write_bytes"]) == (1, BLOCK)
    assert (told["forks"], told["suspends"]) == (1, 1)
    assert told["tlb"] == {"hits": 15, "misses": 2, "invalidations": 1}
    with pytest.raises(InvalidArgumentError, match="misses: -1"):
        pages.calls.note_tlb(pages.session, 0, -1, 0)


def test_metrics_tell_the_same(make_pages: Make) -> None:
    pages = make_pages()
    pages.write(pages.open(1), {0: 1})
    families = {family.name: family for family in StatsCollector(pages.rig.host.stats).collect()}
    assert families["hybridkv_paging_minor_faults"].samples[0].value == 1
    assert families["hybridkv_paging_entries"].samples[0].value == 1
    reserved = families["hybridkv_paging_pool_reserved_bytes"].samples
    assert {sample.labels["tier"]: sample.value for sample in reserved} == {"gpu0": BLOCK, "cpu": 0}
    assert {s.labels["state"]: s.value for s in families["hybridkv_paging_sequences"].samples} == {
        "open": 1,
        "suspended": 0,
    }


def test_keys_change_while_sequences_are_open(make_pages: Make) -> None:
    pages = make_pages()
    sequence = pages.open(1)
    pages.rig.host.update_config({"paging.page_blocks": 4, "paging.positions_count": 64, "paging.idle_timeout_s": 5})
    assert pages.info(sequence).page_blocks == 1
    assert pages.opened(1).page_blocks == 4
    with pytest.raises(InvalidArgumentError, match=r"tokens: 65: .*64"):
        pages.open(tokens=65)
    with pytest.raises(InvalidArgumentError, match=r"paging\.page_blocks.*power of two"):
        pages.rig.host.update_config({"paging.page_blocks": 3})
    pages.rig.clock.advance(6)
    pages.rig.host.tick()
    assert pages.info(sequence).suspended
