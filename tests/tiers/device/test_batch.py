"""Joining neighbours, and the copy of many ranges at once."""

import ctypes
import errno
import threading
import time

import numpy as np
import pytest

from hybridkv.benchmarks.device_peer import pattern
from hybridkv.tiers.device import memcopy
from hybridkv.tiers.device.batch import Runs, changes, join_runs
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError


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


needs_compiled = pytest.mark.skipif(memcopy._compiled is None, reason="hybridkv was installed without a compiler")


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where hybridkv was installed without a compiler."""
    monkeypatch.setattr(memcopy, "_compiled", None)


@pytest.mark.parametrize("way", [pytest.param("compiled", marks=needs_compiled), "uncompiled", "refused"])
@pytest.mark.parametrize(("count", "nbytes"), [(3000, 512), (7, 2 << 20), (1, 4096), (0, 4096)])
def test_copy_runs(count: int, nbytes: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a compiler, and where the kernel does not let us copy by `process_vm_writev`."""
    if way != "compiled":
        monkeypatch.setattr(memcopy, "_compiled", None)
    if way == "refused":
        monkeypatch.setattr(memcopy, "_copy_vectored", lambda *_: False)
    source, destination = pattern(1, max(count, 1) * nbytes * 2), np.zeros(max(count, 1) * nbytes * 2, np.uint8)
    order = np.random.default_rng(2).permutation(count).astype(np.int64)
    to, at = order * 2 * nbytes, np.arange(count, dtype=np.int64) * 2 * nbytes
    memcopy.copy_runs(destination, source, join_runs(to, at, nbytes))
    for here, there in zip(to.tolist(), at.tolist(), strict=True):
        assert np.array_equal(destination[here : here + nbytes], source[there : there + nbytes])
    assert not destination[nbytes : 2 * nbytes].any()


@needs_compiled
@pytest.mark.parametrize(
    "outside",
    [
        Runs(column(0, -1), column(0, 0), column(8, 8)),
        Runs(column(0, 57), column(0, 0), column(8, 8)),
        Runs(column(0, 0), column(0, 25), column(8, 8)),
        Runs(column(0, 0), column(0, -1), column(8, 8)),
        Runs(column(0, 0), column(0, 0), column(8, -1)),
        Runs(column(0, 0), column(0, 0), column(8, 33)),
        Runs(column(0, 1), column(0, 1), column(8, (1 << 63) - 1)),
        Runs(column(0, (1 << 63) - 1), column(0, 0), column(8, 8)),
    ],
)
def test_a_run_that_leaves_a_buffer_is_refused_and_nothing_is_copied(outside: Runs) -> None:
    source, destination = np.ones(32, np.uint8), np.zeros(64, np.uint8)
    with pytest.raises(InvalidArgumentError, match="run 1"):
        memcopy.copy_runs(destination, source, outside)
    assert not destination.any()


@needs_compiled
def test_columns_and_buffers_that_do_not_fit_are_refused() -> None:
    source, destination = np.ones(32, np.uint8), np.zeros(64, np.uint8)
    with pytest.raises(InvalidArgumentError, match="equally long"):
        memcopy.copy_runs(destination, source, Runs(column(0), column(0, 8), column(8, 8)))
    with pytest.raises(InvalidArgumentError, match="equally long"):
        memcopy.copy_runs(destination, source, Runs(column(0, 8), column(0, 8), column(8)))
    destination.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="read-only"):
        memcopy.copy_runs(destination, source, Runs(column(0), column(0), column(8)))


@needs_compiled
def test_other_threads_run_while_a_batch_is_copied() -> None:
    source, destination = np.ones(64 << 20, np.uint8), np.zeros(64 << 20, np.uint8)
    whole = Runs(column(0), column(0), column(64 << 20))
    ticks: list[float] = []
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    spans = []
    for _ in range(10):
        began = time.monotonic()
        memcopy.copy_runs(destination, source, whole)
        spans.append((began, time.monotonic()))
    over.set()
    thread.join()
    assert sum(any(began < at < ended for began, ended in spans) for at in ticks) > 2 * len(spans)


@pytest.mark.usefixtures("uncompiled")
def test_memory_that_cannot_be_had_is_an_error() -> None:
    source, destination = np.ones(8192, np.uint8), np.zeros(8192, np.uint8)
    destination.flags.writeable = False
    gone = Runs(column(-(1 << 47), 4096), column(0, 4096), column(512, 512))
    with pytest.raises(UnavailableError, match="moved"):
        memcopy.copy_runs(destination, source, gone)


@pytest.mark.usefixtures("uncompiled")
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
