"""Runs against earlier ones: what counts as worse."""

import json
from pathlib import Path

import pytest

from hybridkv.benchmarks.against import read_rows, regressions
from hybridkv.benchmarks.report import Better, Row, skipped
from hybridkv.tiers.errors import InvalidArgumentError

LOWER = Better.LOWER


def _before(tmp_path: Path, *rows: Row) -> Path:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"rows": [row.as_json() for row in rows]}))
    return path


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (Row("r", 8.0, "GB/s", 10.0), Row("r", 4.0, "GB/s", 10.0), 0.5),
        (Row("r", 8.0, "GB/s", 10.0), Row("r", 4.0, "GB/s", 5.0), None),  # the machine was half as fast
        (Row("r", 2.0, "ms", None, None, LOWER), Row("r", 3.0, "ms", None, None, LOWER), 0.5),
        (Row("r", 2.0, "ms", None, None, LOWER), Row("r", 1.0, "ms", None, None, LOWER), None),
        (Row("r", 1.0, "GB/s"), Row("r", 0.85, "GB/s"), None),  # within the threshold
        (Row("r", 1.0, "GB/s"), Row("r", 0.75, "GB/s"), 0.25),
        (Row("r", 1.0, "GB/s"), Row("other", 0.1, "GB/s"), None),
        (Row("r", 1.0, "GB/s"), skipped("r", "GB/s", "no GPU"), None),
        (skipped("r", "GB/s", "no GPU"), Row("r", 1.0, "GB/s"), None),
    ],
)
def test_what_is_worse(tmp_path: Path, old: Row, new: Row, worse: float | None) -> None:
    found = regressions([new], read_rows(_before(tmp_path, old)), 0.2)
    assert [one.worse for one in found] == ([] if worse is None else [pytest.approx(worse)])


def test_the_worst_comes_first(tmp_path: Path) -> None:
    before = read_rows(_before(tmp_path, Row("a", 1.0, "x"), Row("b", 1.0, "x")))
    assert [one.name for one in regressions([Row("a", 0.5, "x"), Row("b", 0.1, "x")], before, 0.2)] == ["b", "a"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [{"name": "a"}]}'])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match="against"):
        read_rows(path)
