"""Rows: ratio, target in either direction, and rows that were skipped."""

import io

import pytest
from rich.console import Console

from hybridkv.benchmarks.report import Better, Row, as_json, print_table, skipped

LOWER = Better.LOWER


@pytest.mark.parametrize(
    ("row", "ratio", "met"),
    [
        (Row("rate", 7.0, "GB/s", 10.0, 0.7), 0.7, True),
        (Row("rate", 6.9, "GB/s", 10.0, 0.7), 0.69, False),
        (Row("time", 6.0, "ms", 2.0, 3.0, LOWER), 3.0, True),
        (Row("time", 6.1, "ms", 2.0, 3.0, LOWER), 3.05, False),
        (Row("cost", 0.9, "µs", None, 1.0, LOWER), None, True),
        (Row("cost", 1.1, "µs", None, 1.0, LOWER), None, False),
        (Row("rate", 0.6, "GB/s", None, 0.5), None, True),
        (Row("told", 1.0, "GB/s", 2.0), 0.5, None),
    ],
)
def test_ratio_and_target(row: Row, ratio: float | None, met: bool | None) -> None:
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.met is met


def test_a_skipped_row_has_no_figure_and_meets_nothing() -> None:
    row = skipped("cuda", "GB/s", "no GPU", 0.9)
    assert row.ratio is None
    assert row.met is False
    assert row.as_json()["skipped"] == "no GPU"
    assert row.as_json()["value"] is None


def test_json_has_the_form_of_every_benchmark() -> None:
    report = as_json("x", [Row("rate", 1.0, "GB/s", 2.0, 0.4)])
    assert {"machine", "versions", "rows"} <= set(report)
    (row,) = report["rows"]
    wanted = {"name": "rate", "value": 1.0, "unit": "GB/s", "floor": 2.0, "ratio": 0.5, "target": 0.4, "met": True}
    assert row == wanted
    assert Row("time", 1.0, "ms", better=LOWER).as_json()["better"] == "lower"


def test_the_table_says_what_is_not_met_and_what_was_skipped() -> None:
    text = io.StringIO()
    rows = [Row("slow", 1.0, "GB/s", 10.0, 0.7), skipped("cuda", "GB/s", "no GPU", 0.9)]
    print_table("t", rows, Console(file=text, width=120))
    assert "NO" in text.getvalue()
    assert "skipped" in text.getvalue()
    assert "≥ 0.7" in text.getvalue()
