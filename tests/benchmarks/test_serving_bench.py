"""The serving benchmark's rows, and what it does where its engines are not; the engines themselves need `make test-engines`."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, Laps
from hybridkv.benchmarks.serving_bench import BENCH, BESIDE_LMCACHE, FIGURES, first_tokens, rows
from hybridkv.benchmarks.serving_processes import DaemonProcess, Logged, python_of, wait_until
from hybridkv.benchmarks.serving_rig import Rig, _lap
from hybridkv.tiers.errors import DeadlineExceededError, InternalError, UnavailableError

MS = {
    "recompute": 2000, "own_hit": 50, "cpu_hit": 60, "disk_hit": 90, "restarted": 95, "miss": 2020, "storing": 2100,
    "lmcache_hit": 80,
}  # fmt: skip


def laps(*subjects: str) -> dict[str, Laps]:
    return {name: Laps((Lap(MS[name] / 1e3),)) for name in subjects or MS}


def test_every_subject_of_the_rig_has_a_row_beside_its_floor() -> None:
    assert all(callable(getattr(Rig, name)) for name in FIGURES)
    found = {row.name: row for row in rows(laps(), "")}
    assert len(found) == len(FIGURES) + 1
    hit = found["hit in the CPU tier"]
    assert (hit.value, hit.floor, hit.ratio, hit.met) == (60, 50, 1.2, True)
    assert found["hit on disk, page cache"].met is False
    assert found["miss, nothing stored"].met is True
    assert found["miss, stored"].met is False
    beside = found[BESIDE_LMCACHE[0]]
    assert (beside.floor, beside.met) == (80, True)


def test_a_peer_that_is_missing_is_skipped_and_never_met() -> None:
    found = {
        row.name: row
        for row in rows(laps(*(name for name in MS if name != "lmcache_hit")), "LMCache is not installed (make peers)")
    }
    for name in (FIGURES["lmcache_hit"][0], BESIDE_LMCACHE[0]):
        assert "make peers" in (found[name].skipped or "")
        assert found[name].met is False
    assert found["hit in the CPU tier"].met is True


def test_without_an_engine_every_row_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_ENGINES_PYTHON", str(tmp_path / "none"))
    found = first_tokens(Setting(tmp_path, 1))
    assert len(found) == len(FIGURES) + 1
    assert all("make test-engines" in (row.skipped or "") and row.met is False for row in found)
    json.dump([row.as_json() for row in found], io.StringIO())


def test_every_row_stands_in_a_picture() -> None:
    shown = {name for panel in BENCH.panels for names in panel.series.values() for name in names}
    assert shown == {name for name, _, _ in FIGURES.values()}


def test_no_figure_of_something_else() -> None:
    assert _lap((0.5, 2048), 2048).wall_s == 0.5
    for found, belongs in ((0, 2048), (2048, 0), (1024, 2048)):
        with pytest.raises(InternalError, match=f"{found} tokens of the prompt came from a cache, {belongs} belong"):
            _lap((0.5, found), belongs)


def test_a_python_that_is_named_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_PYTHON", sys.executable)
    assert python_of("A_PYTHON", "none") == Path(sys.executable)
    monkeypatch.delenv("A_PYTHON")
    assert python_of("A_PYTHON", "no-such-folder") is None


def test_a_process_that_ended_says_what_it_said(tmp_path: Path) -> None:
    process = Logged(tmp_path / "peer.log")
    process.launch([sys.executable, "-c", "import sys; sys.exit('no such library')"])
    assert process._process is not None
    process._process.wait(60)
    with pytest.raises(UnavailableError, match=r"peer is not running.*no such library"):
        process.running()
    process.stop()
    with pytest.raises(DeadlineExceededError, match="pigs fly"):
        wait_until("pigs fly", lambda: False, 0.0)


def test_the_daemon_is_started_and_counts(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path, cpu="16MiB", disk="64MiB")
    try:
        daemon.start()
        assert (daemon.sealed(), daemon.sessions()) == (0, 0)
        assert os.path.isdir(tmp_path / "disk")
    finally:
        daemon.stop()
