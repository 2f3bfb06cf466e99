"""Binding shared memory to a NUMA node, by the kernel call itself: no library is needed for one call."""

import ctypes
import errno
import os
import platform

import numpy as np
from numpy.typing import NDArray

_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_BIND = 2
_MAX_NODES = 1024

_libc = ctypes.CDLL(None, use_errno=True)


def bind_to_node(array: NDArray[np.uint8], node: int) -> str:
    """Have the pages behind `array` (page-aligned, not yet touched) come from `node`: why that failed, or ''.

    A failure is for stats and health to show, not a reason to stop: the memory is merely further away.
    """
    number = _MBIND.get(platform.machine())
    if number is None:
        return f"no NUMA binding on {platform.machine()}"
    if not 0 <= node < _MAX_NODES:
        return f"node {node}: must be 0 to {_MAX_NODES - 1}"
    mask = (ctypes.c_ulong * (_MAX_NODES // 64))()
    mask[node // 64] = 1 << (node % 64)
    address = array.__array_interface__["data"][0]
    # The kernel reads one bit less than it is told: maxnode counts one past the last.
    failed = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(array.nbytes),
        ctypes.c_int(_MPOL_BIND),
        mask,
        ctypes.c_ulong(_MAX_NODES + 1),
        ctypes.c_uint(0),
    )
    if not failed:
        return ""
    code = ctypes.get_errno()
    return f"node {node}: {errno.errorcode.get(code, code)} ({os.strerror(code)})"
