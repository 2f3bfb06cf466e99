"""Joining neighbours, and the copy of many ranges at once."""

import ctypes
import errno

import numpy as np
import pytest

from hybridkv.benchmarks.device_peer import pattern
from hybridkv.tiers.device import memcopy
from hybridkv.tiers.device.batch import Runs, changes, join_runs
from hybridkv.tiers.errors import UnavailableError


def column(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(values, np.int64)


def listed(runs: Runs) -> list[tuple[int, int, int]]:
    return list(runs.rows())


def test_neighbours_on_both_sides_join() -> None:
    assert listed(join_runs(column(0, 10, 20, 50), column(100, 110, 120, 130), 10)) == [(0, 100, 30), (50, 130, 10)]


def test_neighbours_on_one_side_do_not() -> None:
    assert len(listed(join_runs(column(0, 10, 20), column(0, 20, 40), 10))) == 3
    assert len(listed(join_runs(column(20, 10, 0), column(20, 10, 0), 10))) == 3


def test_breaks_part_runs() -> None:
    labels = column(0, 0, 1, 1)
    assert listed(join_runs(column(0, 10, 20, 30), column(0, 10, 20, 30), 10, changes(labels))) == [
        (0, 0, 20),
        (20, 20, 20),
    ]


def test_nothing_joins_to_nothing() -> None:
    assert listed(join_runs(column(), column(), 10)) == []


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize(("count", "nbytes"), [(3000, 512), (7, 2 << 20), (1, 4096), (0, 4096)])
def test_copy_runs(count: int, nbytes: int, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the kernel does not let us copy by `process_vm_writev`."""
    if refused:
        monkeypatch.setattr(memcopy, "_copy_vectored", lambda *_: False)
    source, destination = pattern(1, max(count, 1) * nbytes * 2), np.zeros(max(count, 1) * nbytes * 2, np.uint8)
    order = np.random.default_rng(2).permutation(count).astype(np.int64)
    to, at = order * 2 * nbytes, np.arange(count, dtype=np.int64) * 2 * nbytes
    memcopy.copy_runs(destination, source, join_runs(to, at, nbytes))
    for here, there in zip(to.tolist(), at.tolist(), strict=True):
        assert np.array_equal(destination[here : here + nbytes], source[there : there + nbytes])
    assert not destination[nbytes : 2 * nbytes].any()


def test_memory_that_cannot_be_had_is_an_error() -> None:
    source, destination = np.ones(8192, np.uint8), np.zeros(8192, np.uint8)
    destination.flags.writeable = False
    gone = Runs(column(-(1 << 47), 4096), column(0, 4096), column(512, 512))
    with pytest.raises(UnavailableError, match="moved"):
        memcopy.copy_runs(destination, source, gone)


def test_a_kernel_that_refuses_is_told_from_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object) -> int:
        return -1

    monkeypatch.setattr(memcopy._libc, "process_vm_writev", refusing)
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EPERM)
    source, destination = np.ones(8192, np.uint8), np.zeros(8192, np.uint8)
    memcopy.copy_runs(destination, source, Runs(column(0, 4096), column(0, 4096), column(512, 512)))
    assert destination.sum() == 1024
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EFAULT)
    with pytest.raises(UnavailableError, match="Bad address"):
        memcopy.copy_runs(destination, source, Runs(column(0, 4096), column(0, 4096), column(512, 512)))
