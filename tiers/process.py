"""Who a process is. A pid alone names nobody: it is reused, and it means nothing after a reboot.

The identity of a process is (pid, start time, boot id); it can be kept in shared memory and compared by a daemon that
started later.
"""

import os
from functools import cache
from pathlib import Path
from uuid import UUID

_START_TIME_FIELD = 22  # of /proc/<pid>/stat, counted from 1
_FIELDS_BEFORE_STATE = 2  # pid and (comm); comm may hold blanks and brackets, so fields are counted behind it


@cache
def boot_id() -> bytes:
    """The kernel's random id of this boot, 16 bytes; zeros where the kernel does not tell."""
    try:
        return UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)


def start_time(pid: int) -> int | None:
    """When `pid` started, in clock ticks since the boot; None when there is no such process.

    A process that has ended but was not yet waited for (a zombie) counts as gone: it runs no more code.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 1 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[_START_TIME_FIELD - _FIELDS_BEFORE_STATE - 1])


def is_same_process(pid: int, started: int, boot: bytes) -> bool:
    """Whether the process with this identity is running now. Safe against a reused pid and a reboot."""
    return boot == boot_id() and start_time(pid) == started


def own_start_time() -> int:
    """The start time of the calling process."""
    found = start_time(os.getpid())
    assert found is not None, "a running process has a start time"
    return found
