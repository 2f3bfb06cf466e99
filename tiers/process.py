"""Who a process is. A pid alone names nobody: it is reused, and it means nothing after a reboot.

The identity of a process is (pid, start time, boot id); it can be kept in shared memory and compared by a daemon that
started later.
"""

import contextlib
import os
import select
from functools import cache
from pathlib import Path
from uuid import UUID

_START_TIME_FIELD = 22  # of /proc/<pid>/stat, counted from 1
_FIELDS_BEFORE_STATE = 2  # pid and (comm); comm may hold blanks and brackets, so fields are counted behind it

GONE = 2**64 - 1
"""The start time of a process that had ended before it was asked for: nobody's."""


@cache
def boot_id() -> bytes:
    """The kernel's random id of this boot, 16 bytes; zeros where the kernel does not tell."""
    try:
        return UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)


def pid_namespace() -> int:
    """The number of this process's pid namespace; 0 where the kernel does not tell."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def start_time(pid: int) -> int | None:
    """When `pid` started, in clock ticks since the boot; None when there is no such process.

    A process that has ended but was not yet waited for (a zombie) counts as gone: it runs no more code.
    """
    found = _state_and_start(pid)
    return None if found is None or found[0] in (b"Z", b"X") else found[1]


def _state_and_start(pid: int) -> tuple[bytes, int] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 1 :].split()
    return fields[0], int(fields[_START_TIME_FIELD - _FIELDS_BEFORE_STATE - 1])


def is_same_process(pid: int, started: int, boot: bytes) -> bool:
    """Whether the process with this identity is running now. Safe against a reused pid and a reboot."""
    return boot == boot_id() and start_time(pid) == started


class ProcessWatch:
    """A watch on one very process: `gone` once all its threads have ended, and never because its pid is another's."""

    def __init__(self, pid: int, started: int, boot: bytes) -> None:
        """A process that is gone already may be watched. Raises OSError where it cannot be watched."""
        self.pid = pid
        self._fd: int | None = None
        if boot != boot_id():
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        # The descriptor first: what is read now is of the process it names, or of one that came after that ended.
        found = _state_and_start(pid)
        if found is None or found[1] != started:
            os.close(fd)
        else:
            self._fd = fd

    @property
    def gone(self) -> bool:
        """Asks the kernel; does not wait."""
        if self._fd is None:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """End the watch. May be repeated; `gone` means nothing afterwards."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def __repr__(self) -> str:
        return f"ProcessWatch(pid {self.pid}, {'gone' if self.gone else 'alive'})"


def own_start_time() -> int:
    """The start time of the calling process."""
    found = start_time(os.getpid())
    assert found is not None, "a running process has a start time"
    return found
