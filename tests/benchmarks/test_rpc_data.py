"""Tiny runs of `bench rpc` and `bench data`: every row has a figure, a floor where one belongs, and a name that is drawn."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridkv.benchmarks import crowd, data_bench, data_plane, rpc_bench, rpc_calls
from hybridkv.benchmarks.bench import Bench, Setting
from hybridkv.benchmarks.lane_rig import KIB, MIB
from hybridkv.benchmarks.report import Row
from hybridkv.service.client.translations import CALL_FREE


def _figures(rows: Sequence[Row]) -> None:
    assert rows
    for row in rows:
        assert row.value is not None
        assert row.value > 0
        assert row.floor is not None
        assert row.floor > 0


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, pairs=1)


def test_acquires(setting: Setting) -> None:
    rows = rpc_calls.acquires(setting, calls=2)
    _figures(rows)
    assert [(row.name, row.target) for row in rows] == [(rpc_calls.ACQUIRE, 1.6), (rpc_calls.ACQUIRE_ASYNC, None)]


def test_lookups(setting: Setting) -> None:
    _figures(rpc_calls.lookups(setting, blocks=5000, times=2))


def test_reads(setting: Setting) -> None:
    rows = data_plane.reads(setting, 16 * KIB, set_bytes=2 * MIB)
    _figures(rows)
    assert [row.target for row in rows] == [0.7, 0.9] + [None] * CALL_FREE


def test_writes(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_plane, "LAP_BYTES", MIB)
    _figures(data_plane.writes(setting, 16 * KIB))


def test_one_block(setting: Setting) -> None:
    _figures(data_plane.one_block(setting, 64 * KIB))


def test_many_workers_at_once(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "MANY", 3)
    rows = [*crowd.reads(setting, 8, 4, 0.01), *crowd.small_calls(setting, 0.01)]
    _figures(rows)
    assert [row.target for row in rows] == [0.8, 4.0, 4.0]


@pytest.mark.parametrize("bench", [rpc_bench.BENCH, data_bench.BENCH])
def test_pictures_name_rows_that_there_are(bench: Bench) -> None:
    known = {rpc_calls.ACQUIRE, rpc_calls.ACQUIRE_ASYNC} | {rpc_calls.lookup_name(n) for n in rpc_bench.BLOCKS}
    for size in data_plane.BLOCK_SIZES:
        known |= {data_plane.name_of(what, size) for what in data_plane.LEAST}
    drawn = {name for panel in bench.panels for names in panel.series.values() for name in names}
    assert drawn
    assert drawn <= known
