"""The paging suite on tiny sizes: every row has a figure, and what must be exact is."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hybridkv.benchmarks import (
    fault_times,
    open_time,
    paging_fit,
    resize_cost,
    translation_rates,
    windowed_decode,
)
from hybridkv.benchmarks.bench import NAMES, Setting
from hybridkv.benchmarks.lengths import TRACES, lengths
from hybridkv.benchmarks.paging_bench import BENCH
from hybridkv.benchmarks.report import Row


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, pairs=1)


def _by_name(rows: Sequence[Row]) -> dict[str, float]:
    assert all(row.value is not None and row.skipped is None for row in rows)
    assert all(row.floor is None or row.floor > 0 for row in rows)
    return {row.name: row.value for row in rows if row.value is not None}


def test_the_suite_is_known_and_its_pictures_show_its_rows() -> None:
    assert NAMES["paging"] == "hybridkv.benchmarks.paging_bench"
    shown = {name for panel in BENCH.panels for names in panel.series.values() for name in names}
    assert len(shown) == 5 * len(TRACES) * len(paging_fit.PAGE_SIZES)


def test_the_samples_are_real_lengths() -> None:
    for trace in TRACES:
        assert len(lengths(trace)) == 2000
        assert len(lengths(trace, 10)) == 10
        assert 0 < lengths(trace).min() <= lengths(trace).max() < 10_000
    assert lengths("conv", 3).tolist() == [374 + 44, 396 + 109, 879 + 55]


def test_pages_hold_more_than_contiguous_ranges(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging_fit, "POOL_BLOCKS", 1024)
    found = _by_name(paging_fit.fits(setting, "conv", (1, 8)))
    small, large = (paging_fit.row_name(paging_fit.FIT, "conv", size) for size in (1, 8))
    blocks = -(-lengths("conv") // paging_fit.BLOCK_TOKENS)
    assert found[small] == np.searchsorted(np.cumsum(blocks), 1024, side="right")
    assert found[large] <= found[small]
    assert found[small] > found[f"conv: {paging_fit.FIT}, {paging_fit.MAXIMUM}"]
    waste = [found[paging_fit.row_name(paging_fit.WASTE, "conv", size)] for size in (1, 8)]
    assert 0 < waste[0] < waste[1] < 10
    faults = [found[paging_fit.row_name(paging_fit.FAULTS, "conv", size)] for size in (1, 8)]
    assert faults[0] > 6 * faults[1]


def test_translation_of_small_spaces(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation_rates, "SPACE_TOKENS", 1 << 16)
    monkeypatch.setattr(translation_rates, "POSITIONS", 1 << 12)
    rows = translation_rates.tables(setting) + translation_rates.buffered(setting)
    assert len(rows) == 2 * 3 + 1 + 3
    found = _by_name(rows)
    assert found["translation of one position, TLB hit"] < 1000


def test_faults_of_a_daemon_in_its_own_process(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_times, "CALLS", 2)
    monkeypatch.setattr(fault_times, "BATCH", 8)
    assert len(_by_name(fault_times.minor(setting))) == 2


def test_opening_a_cached_sequence(setting: Setting) -> None:
    (name,) = _by_name(open_time.opening(setting, 4000))
    assert "all 3,125 blocks cached, 4,000 blocks in the directory" in name


def test_a_decode_with_prefetch_faults_less(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_decode, "BLOCKS", 128)
    monkeypatch.setattr(windowed_decode, "WARM_STEPS", 8)
    without, ahead, _ = windowed_decode.decodes(setting)
    assert without.value is not None
    assert ahead.value is not None
    assert without.value > 0.8
    assert ahead.value < without.value


def test_resizing_copies_what_adjacency_demands(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize_cost, "BLOCKS", 64)
    monkeypatch.setattr(resize_cost, "APART_BLOCKS", 32)
    monkeypatch.setattr(resize_cost, "ROUNDS", 1)
    found = {row.name: row for row in resize_cost.resizes(setting)}
    adjacent = next(row for name, row in found.items() if name.endswith("adjacent: copied"))
    apart = next(row for name, row in found.items() if name.endswith("every other slot: copied"))
    assert adjacent.value == 0
    assert apart.value is not None
    assert apart.floor is not None
    assert 0 < apart.value <= apart.floor
