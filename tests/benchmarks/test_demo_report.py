"""What the demo calls a success, and how it says so."""

import io
import json
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from hybridkv.benchmarks import demo
from hybridkv.benchmarks.demo_faults import Finding, leaks
from hybridkv.benchmarks.demo_plot import plot
from hybridkv.benchmarks.demo_replay import Replay, Sample
from hybridkv.benchmarks.demo_report import Report, Thresholds
from hybridkv.benchmarks.demo_setup import sizes_for

GOOD = {"gpu": 49_359, "cpu": 21_520, "disk": 3_931}
INFINITE = 74_810
MOVE = {"from": "gpu0", "to": "cpu", "reason": "reclaim", "outcome": "done", "count": 12, "bytes": 786_432}


def report_of(
    hits: dict[str, int] | None = None, *, wrong: int = 0, daemon: int | None = None, findings: tuple[Finding, ...] = ()
) -> Report:
    served = Counter(GOOD | (hits or {}))
    counts = {"asked": 80_954, "derived": 80_954 - served.total(), "sealed": 6_144, "wrong": wrong}
    replay = Replay(
        counts=Counter(counts),
        hits=served,
        requests=500,
        wall_s=10.0,
        stats={"hits": {"all": served.total() if daemon is None else daemon}, "moves": [MOVE]},
    )
    return Report(sizes_for(6_144), 4, INFINITE, replay, findings, Thresholds(), 20.0)


def failed(report: Report) -> list[str]:
    return [finding.what for finding in report.verdict() if not finding.ok]


def test_what_one_worker_and_exclusive_tiers_serve_is_a_success() -> None:
    assert report_of().ok


@pytest.mark.parametrize("tier", ["gpu", "cpu", "disk"])
def test_a_tier_that_served_too_few_fails_it(tier: str) -> None:
    report = report_of({tier: 999})
    assert f"{tier} served ≥ 1,000 blocks" in failed(report)
    assert not report.ok
    assert f"{tier} served ≥ 1,000 blocks" not in failed(report_of({tier: 1_000}))


def test_too_few_hits_fail_it() -> None:
    below = 67_328 - GOOD["cpu"] - GOOD["disk"]  # 90 % of 74,810 are 67,329
    assert failed(report_of({"gpu": below})) == ["hits ≥ 90% of a cache without limits"]
    assert report_of({"gpu": below + 1}).ok


def test_a_wrong_byte_a_miscount_or_a_fault_that_went_badly_fails_it() -> None:
    assert failed(report_of(wrong=1)) == ["every byte read was verified"]
    assert failed(report_of(daemon=74_809)) == ["the daemon counts as many hits as the workers verified"]
    assert failed(report_of(findings=(Finding("slots are free", False, ""),))) == ["slots are free"]


def test_saved_is_served_times_the_difference() -> None:
    report = report_of()
    report.replay.counts.update({"derive_s": 6.144 * 0.5, "serve_s": 7.481})
    saved = report.saved()
    assert saved.derive_s == pytest.approx(500e-6)
    assert saved.serve_s == pytest.approx(100e-6)
    assert saved.total_s == pytest.approx(74_810 * 400e-6)


@pytest.mark.parametrize("derive_s", [0.1, 60.0])
def test_people_see_hits_moves_bytes_and_what_was_saved(derive_s: float) -> None:
    report = report_of()
    report.replay.counts.update({"derive_s": derive_s, "serve_s": 7.481})
    shown = io.StringIO()
    report.print(Console(file=shown, width=160))
    text = shown.getvalue()
    for expected in ("49,359", "gpu0 → cpu", "4.90 GB", "time that hits saved: served × (derive − serve)", "yes"):
        assert expected in text
    assert ("hits pay where" in text) == (derive_s < 1)


def test_json_says_the_same(tmp_path: Path) -> None:
    said = json.loads(json.dumps(report_of({"disk": 10}).as_json()))
    assert said["ok"] is False
    assert said["replay"]["served"] == said["replay"]["verified_bytes"] // 65_536 == 49_359 + 21_520 + 10
    assert next(line["what"] for line in said["verdict"] if not line["ok"]) == "disk served ≥ 1,000 blocks"


@pytest.mark.parametrize(("hits", "code"), [({}, 0), ({"disk": 10}, 1)])
def test_the_exit_code_is_the_verdict(
    hits: dict[str, int], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "run", lambda _options, _console: report_of(hits))
    assert demo.main(["--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)
    assert demo.main([]) == code
    assert "hits by tier" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--requests", "0"], ["--workers", "1"], ["--nonsense"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_leaks_are_named() -> None:
    clean = {
        **dict.fromkeys(("leases", "reservations", "lapsed_holds", "requests", "transfers"), 0),
        "tiers": {"cpu": {"reserved_bytes": 0, "quarantined_bytes": 0}, "disk": {}},
    }
    assert leaks(clean) == []
    assert leaks({**clean, "leases": 2}) == ["leases 2"]
    assert leaks({**clean, "tiers": {"cpu": {"quarantined_bytes": 4096}}}) == ["cpu quarantined_bytes 4096"]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    samples = [Sample(n, {"gpu": n, "cpu": n, "disk": 0}, {"gpu0": n, "cpu": n, "disk": n}) for n in (5, 10)]
    path = tmp_path / "out" / "demo.png"
    assert plot(samples, path)
    assert path.read_bytes().startswith(b"\x89PNG")
