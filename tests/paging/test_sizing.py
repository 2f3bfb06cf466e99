"""The report on page sizes, by hand."""

import numpy as np
import pytest

from hybridkv.paging.sizing import advised, report
from hybridkv.tiers.errors import InvalidArgumentError


def test_waste_tables_and_faults_of_three_sequences() -> None:
    one, four = report([0, 16, 100], 16, 4096, (1, 4))
    assert (one.pages, four.pages) == (1 + 7, 1 + 2)
    assert one.used_bytes == 116 * 256
    assert one.waste == pytest.approx(1 - 116 / (8 * 16))
    assert four.waste == pytest.approx(1 - 116 / (3 * 64))
    assert four.table_bytes == 3 * 8
    assert four.faults == 3


def test_larger_pages_waste_more_and_fault_less() -> None:
    rows = report(np.random.default_rng(0).integers(1, 5000, 500), 16, 4096)
    assert [row.waste for row in rows] == sorted(row.waste for row in rows)
    assert [row.faults for row in rows] == sorted((row.faults for row in rows), reverse=True)
    assert advised(rows, 0.05).waste <= 0.05
    assert advised(rows, 0.0).page_blocks == 1
    assert advised(rows, 1.0).page_blocks == 32


def test_nothing_observed_and_nonsense() -> None:
    assert report([], 16, 4096, (1,))[0].waste == 0.0
    with pytest.raises(InvalidArgumentError, match=r"^lengths"):
        report([-1], 16, 4096)
    with pytest.raises(InvalidArgumentError, match=r"^page_blocks"):
        report([1], 16, 4096, (3,))
    with pytest.raises(InvalidArgumentError, match=r"^rows"):
        advised([])
