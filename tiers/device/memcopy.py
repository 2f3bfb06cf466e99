"""Copying many ranges of host memory in one call that holds no interpreter lock.

A loop of `np.copyto` takes the lock once per block; beside one busy Python thread each taking costs a switch interval
(5 ms), and 64 KiB blocks then move at about 13 MB/s. The loop is therefore compiled (`_copyloop.c`). Where it was installed
without a compiler, `process_vm_writev` on ourselves moves a whole batch per system call: it pins every page, which makes it
0.7 to 0.9 times as fast.
"""

import ctypes
import errno
import os

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import Bytes, Offsets
from hybridkv.tiers.device.batch import Runs
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError

try:
    from hybridkv.tiers.device import _copyloop
except ImportError:
    _compiled = None
else:
    _compiled = _copyloop.copy_runs

_IOV_MAX = 1024
_ONE_BY_ONE_BYTES = 4 << 20  # from here on the lock's cost is lost in the copy's, and a plain copy is the faster
_REFUSED = frozenset({errno.ENOSYS, errno.EPERM})  # an old kernel, a sandbox

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_writev.restype = ctypes.c_ssize_t
_libc.process_vm_writev.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)


def is_compiled() -> bool:
    """Whether this installation has the compiled loop."""
    return _compiled is not None


def copy_runs(destination: Bytes, source: Bytes, runs: Runs) -> None:
    """Copy every run from `source` to `destination`, both flat and contiguous, in order.

    Runs must lie within both, and the destination be writable. The compiled loop raises InvalidArgumentError otherwise, before
    anything is copied; the system call does not look, but raises UnavailableError when a page cannot be had, where the compiled
    loop is SIGBUS, as any copy is.
    """
    if _compiled is None:
        _copy_uncompiled(destination, source, runs)
        return
    try:
        to, at, lengths = (np.ascontiguousarray(column, np.int64) for column in runs)
        _compiled(destination, source, to, at, lengths)
    except ValueError as error:
        raise InvalidArgumentError("runs", str(error)) from None


def _copy_uncompiled(destination: Bytes, source: Bytes, runs: Runs) -> None:
    if len(runs.lengths) > 1 and int(runs.lengths.mean()) < _ONE_BY_ONE_BYTES:
        for first in range(0, len(runs.lengths), _IOV_MAX):
            part = Runs(*(column[first : first + _IOV_MAX] for column in runs))
            if not _copy_vectored(destination, source, part):
                _copy_one_by_one(destination, source, part)
    else:
        _copy_one_by_one(destination, source, runs)


def _copy_one_by_one(destination: Bytes, source: Bytes, runs: Runs) -> None:
    for to, at, length in runs.rows():
        np.copyto(destination[to : to + length], source[at : at + length])


def _copy_vectored(destination: Bytes, source: Bytes, runs: Runs) -> bool:
    """False when the kernel does not let us; then nothing was copied that a second copy would harm."""
    local, remote = _vectors(source, runs.sources, runs.lengths), _vectors(destination, runs.destinations, runs.lengths)
    count, total = len(runs.lengths), int(runs.lengths.sum())
    moved = _libc.process_vm_writev(os.getpid(), local.ctypes.data, count, remote.ctypes.data, count, 0)
    if moved == total:
        return True
    code = ctypes.get_errno() if moved < 0 else errno.EFAULT
    if code in _REFUSED:
        return False
    raise UnavailableError(f"copy of {total} bytes: {max(moved, 0)} moved, then {os.strerror(code)}")


def _vectors(memory: Bytes, offsets: Offsets, lengths: Offsets) -> npt.NDArray[np.uint64]:
    vectors = np.empty((len(offsets), 2), np.uint64)
    vectors[:, 0] = offsets + memory.ctypes.data
    vectors[:, 1] = lengths
    return vectors
