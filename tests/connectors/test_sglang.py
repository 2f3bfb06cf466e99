"""The SGLang backend against a host pool in each layout, over a real daemon."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hybridkv.connectors.sglang import HybridKVHiCache
from hybridkv.connectors.sglang.pool import HostPool, TensorPages
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError
from tests.connectors.conftest import Backend
from tests.connectors.sglang_pool import LAYOUTS, ExtraInfo, FakePool, StorageConfig, page_key, page_keys

KEYS = page_keys(list(range(16 * 8)), 16)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit: random bytes hold NaNs."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def test_page_keys_are_those_of_sglang() -> None:
    assert page_key(list(range(16))) == "5d85718ec594b982c252d0279e5966ffca33a5eaf2a455038d3ab331fde70cea"
    second = page_key(list(range(16, 32)), page_key(list(range(16))))
    assert second == page_keys(list(range(40)), 16)[1]
    assert second != page_key(list(range(16, 32)))


@pytest.mark.parametrize("heads", [2, 0], ids=["mha", "mla"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_come_back_to_other_places_of_another_pool(
    daemon: DaemonThread, backend: Backend, layout: str, heads: int
) -> None:
    source, target = FakePool(layout, heads=heads, page_size=32, seed=1), FakePool(layout, heads=heads, page_size=32)
    assert backend(source).batch_set_v1(KEYS[:3], source.indices(5, 0, 2)) == [True] * 3
    reader = backend(target)
    assert reader.batch_exists(KEYS) == 3
    assert reader.batch_get_v1(KEYS[:3], target.indices(1, 7, 0)) == [True] * 3
    for there, here in ((5, 1), (0, 7), (2, 0)):
        assert same(target.get_data_page(here * 32), source.get_data_page(there * 32))
    untouched = target.get_data_page(3 * 32)
    assert not untouched.view(torch.uint8).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_block_is_the_flat_data_page_by_every_way_in_and_out(
    daemon: DaemonThread, backend: Backend, layout: str
) -> None:
    pool = FakePool(layout, seed=2)
    one = backend(pool)
    flat = [pool.get_data_page(page * 16) for page in range(4)]
    assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [True, True]
    assert one.batch_set(KEYS[2:4], flat[2:]) is True
    assert one.set(KEYS[0], flat[0]) is True
    places = [pool.get_dummy_flat_data_page() for _ in range(5)]
    found = one.batch_get(KEYS[:5], places)
    assert found[4] is None
    assert all(found[i] is places[i] and same(places[i], flat[i]) for i in range(4))
    alone = one.get(KEYS[3])
    assert alone.dtype == torch.bfloat16
    assert same(alone, flat[3])
    assert one.get(KEYS[5]) is None
    pool.fill(3)
    assert one.batch_get_v1(KEYS[2:4], pool.indices(6, 7)) == [True, True]
    assert same(pool.get_data_page(6 * 16), flat[2])


class OnlyFlat(FakePool):
    """A pool whose memory is not one host tensor."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__("page_first", seed=seed)
        self.hidden, self.kv_buffer = self.kv_buffer, [self.kv_buffer]  # type: ignore[assignment]

    def _page(self, index: int) -> torch.Tensor:
        return self.hidden[:, index : index + self.page_size]


def test_a_pool_without_one_tensor_is_served_by_flat_pages(daemon: DaemonThread, backend: Backend) -> None:
    source, target = OnlyFlat(seed=4), OnlyFlat()
    assert backend(source).batch_set_v1(KEYS[:2], source.indices(3, 4)) == [True, True]
    assert backend(target).batch_get_v1(KEYS[:3], target.indices(0, 1, 2)) == [True, True, False]
    assert same(target.get_data_page(16), source.get_data_page(4 * 16))
    other = FakePool("page_first")
    assert backend(other).batch_exists(KEYS) == 0


def test_hits_are_counted_from_the_start_only(daemon: DaemonThread, backend: Backend) -> None:
    pool = FakePool("page_first", seed=5)
    one = backend(pool)
    assert one.batch_set_v1([*KEYS[:2], KEYS[3]], pool.indices(0, 1, 3)) == [True] * 3
    assert one.batch_exists(KEYS[:4]) == 2
    assert one.batch_exists(KEYS[3:]) == 1
    assert one.batch_exists([]) == 0
    assert (one.exists(KEYS[3]), one.exists(KEYS[2])) == (True, False)
    pool.fill(6)
    before = pool.kv_buffer.clone()
    assert one.batch_get_v1(KEYS[:4], pool.indices(4, 5, 6, 7)) == [True, True, False, True]
    assert same(pool.get_data_page(6 * 16), before[:, 96:112].flatten()), "a miss writes nothing"


def test_more_pages_than_a_batch(daemon: DaemonThread, backend: Backend) -> None:
    tokens = list(range(300))
    pool = FakePool("page_first", page_size=4, pages=300, seed=7)
    keys = page_keys([t for t in tokens for _ in range(4)], 4)
    one = backend(pool)
    assert one.batch_set_v1(keys, pool.indices(*range(300)), ExtraInfo(prefix_keys=None)) == [True] * 300
    assert one.batch_exists(keys) == 300
    before = pool.kv_buffer.clone()
    pool.fill(8)
    assert one.batch_get_v1(keys, pool.indices(*range(300))) == [True] * 300
    assert same(pool.kv_buffer, before)
    second = bytes.fromhex(keys[128])
    (account,) = daemon.host.explain(second)
    assert account["parent"] == keys[127]


def test_the_key_before_a_batch_is_its_parent(daemon: DaemonThread, backend: Backend) -> None:
    pool = FakePool("page_first", seed=9)
    one = backend(pool)
    assert one.batch_set_v1(KEYS[:2], pool.indices(0, 1), ExtraInfo()) == [True, True]
    assert one.batch_set_v1(KEYS[2:3], pool.indices(2), ExtraInfo(prefix_keys=KEYS[:2])) == [True]
    (account,) = daemon.host.explain(bytes.fromhex(KEYS[2]))
    assert (account["parent"], account["orphan"]) == (KEYS[1], False)


@pytest.mark.parametrize(
    ("pool", "config", "options"),
    [
        (FakePool("layer_first"), {}, {}),
        (FakePool("page_first_direct"), {}, {}),
        (FakePool("page_first", dtype=torch.float16), {}, {}),
        (FakePool("page_first", page_size=32, pages=4), {}, {}),
        (FakePool("page_first"), {"tp_rank": 0, "tp_size": 2}, {}),
        (FakePool("page_first"), {"pp_rank": 0, "pp_size": 2}, {}),
        (FakePool("page_first"), {"model_name": "another/model"}, {}),
        (FakePool("page_first"), {}, {"revision": "2"}),
        (FakePool("page_first"), {}, {"salt": "tenant"}),
        (FakePool("page_first"), {}, {"config_digest": "rope 2"}),
    ],
)
def test_what_is_not_the_same_shares_nothing(
    daemon: DaemonThread, backend: Backend, pool: FakePool, config: dict[str, object], options: dict[str, object]
) -> None:
    source = FakePool("page_first", seed=10)
    assert backend(source).batch_set_v1(KEYS[:1], source.indices(0)) == [True]
    assert backend(FakePool("page_first", pages=3)).batch_exists(KEYS) == 1, "the pool's size makes no difference"
    assert backend(pool, options, **config).batch_exists(KEYS) == 0


def test_fp8_of_two_kinds_is_stored_as_uint8_and_not_shared(daemon: DaemonThread, backend: Backend) -> None:
    pools = [
        FakePool("page_first", 32, dtype=torch.uint8, kind=kind) for kind in (torch.float8_e4m3fn, torch.float8_e5m2)
    ]
    assert backend(pools[0]).batch_set_v1(KEYS[:1], pools[0].indices(0)) == [True]
    assert [backend(pool).batch_exists(KEYS) for pool in pools] == [1, 0]


def test_ranks_of_mla_share_and_other_ranks_do_not(daemon: DaemonThread, backend: Backend) -> None:
    pool = FakePool("page_first", 32, heads=0, seed=11)
    ranks = [backend(pool, tp_rank=rank, tp_size=2, is_mla_model=True) for rank in (0, 1)]
    assert ranks[0].batch_set_v1(KEYS[:1], pool.indices(0)) == [True]
    assert ranks[1].batch_exists(KEYS) == 1
    apart = [backend(pool, tp_rank=rank, tp_size=2) for rank in (0, 1)]
    assert apart[0].batch_set_v1(KEYS[:1], pool.indices(0)) == [True]
    assert [one.batch_exists(KEYS) for one in apart] == [1, 0]


def test_clear_removes_this_namespace_only(daemon: DaemonThread, backend: Backend) -> None:
    pool = FakePool("page_first", seed=12)
    one, other = backend(pool), backend(pool, {"salt": "b"})
    for each in (one, other):
        assert each.batch_set_v1(KEYS[:2], pool.indices(0, 1)) == [True, True]
    one.clear()
    assert (one.batch_exists(KEYS), other.batch_exists(KEYS)) == (0, 2)


def test_stats_are_what_was_moved_since(daemon: DaemonThread, backend: Backend) -> None:
    pool = FakePool("page_first", seed=13)
    one = backend(pool)
    one.batch_set_v1(KEYS[:2], pool.indices(0, 1))
    one.batch_set_v1(KEYS[:3], pool.indices(0, 1, 2))
    one.batch_get_v1(KEYS[:5], pool.indices(*range(5)))
    stats = one.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([2, 1], [3])
    assert all(rate > 0 for rate in (*stats.backup_bandwidth, *stats.prefetch_bandwidth))
    assert one.get_stats().backup_pgs == []


def test_nothing_of_sglang_or_torch_is_imported_with_the_module() -> None:
    code = "import sys, hybridkv.connectors.sglang; print('torch' in sys.modules, 'sglang' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_what_cannot_be_served_is_refused_at_the_start(daemon: DaemonThread, backend: Backend) -> None:
    with pytest.raises(InvalidArgumentError, match=r"page of 1 tokens has 2048 bytes.*--page-size 2 or more"):
        backend(FakePool("page_first", page_size=1))
    bare = SimpleNamespace(layout="page_first_kv_split", page_size=16, dtype=torch.bfloat16)
    with pytest.raises(InvalidArgumentError, match="layout 'page_first_kv_split'"):
        backend(bare)
    with pytest.raises(HybridKVError, match="extent"):
        backend(FakePool("page_first", page_size=512, pages=1))
    with pytest.raises(InvalidArgumentError, match=r"extra_config\.hybridkv\.model"):
        backend(FakePool("page_first"), model_name=None)


def test_a_pool_that_lies_otherwise_than_its_layout_says_is_refused(backend: Backend) -> None:
    pool = FakePool("page_first")
    pool.layout = "page_first_direct"  # which has one dimension more: the first would be that of pages
    with pytest.raises(InvalidArgumentError, match="host pool"):
        backend(pool)
    moved = FakePool("page_first")
    meta = moved.get_page_buffer_meta
    moved.get_page_buffer_meta = lambda indices: ([p + 8 for p in meta(indices)[0]], meta(indices)[1])  # type: ignore[method-assign]
    with pytest.raises(InvalidArgumentError, match="lies elsewhere"):
        backend(moved)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"adress": "x"}, "adress"),
        ({"salt": 3}, "salt"),
        ({"load_timeout_s": 0}, "load_timeout_s"),
        ({"retry_s": "1"}, "retry_s"),
        ({"store_timeout_s": True}, "store_timeout_s"),
        ("text", "extra_config.hybridkv"),
    ],
)
def test_a_wrong_option_is_named(options: object, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        HybridKVHiCache(StorageConfig(extra_config={"hybridkv": options}))


def test_offsets_of_a_batch_are_what_a_loop_says() -> None:
    for layout in LAYOUTS:
        pool = FakePool(layout)
        pages = HostPool(pool).pages
        assert isinstance(pages, TensorPages)
        for page in range(pool.page_num):
            places, _ = pool.get_page_buffer_meta(pool.indices(page))
            assert np.array_equal(pages.addresses(page), sorted(places))
