"""What the daemon's own process is allowed, spares and knows of itself."""

import ctypes
import gc
import os
import resource
import time

from hybridkv.tiers.process import own_start_time

DESCRIPTORS = 65_536

TRIM_EVERY_S = 30.0
"""Between two times that freed memory is given back to the host."""

_libc = ctypes.CDLL(None)


def allow_descriptors() -> None:
    """As many open files as the process may have, up to `DESCRIPTORS`: the usual 1,024 are gone with as many connections,
    and then nobody else gets in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def spare_collections() -> None:
    """What the process holds now stays to its end: garbage collections look at it no more, which took tens of
    milliseconds, often with the directory's lock held. The directory's own memory is columns, nothing to look at."""
    gc.collect()
    gc.freeze()


def give_back_freed_memory() -> None:
    """Pages of the C heap that nothing lies in any more go to the host. By itself the heap keeps holes between what lives:
    buffers of transactions and columns come and go all the time. Holds no interpreter lock; nothing where libc cannot."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def process_start() -> float:
    """When this process started, on the monotonic clock, to about 10 ms."""
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - own_start_time() / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
