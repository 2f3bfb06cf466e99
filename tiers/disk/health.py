"""Whether the store works, and what its callers are told when it does not. Changed by any thread; one lock."""

import os
import threading
from pathlib import Path
from typing import NoReturn

from hybridkv.tiers.disk.faults import StorageFault, Trouble
from hybridkv.tiers.disk.types import DiskState
from hybridkv.tiers.errors import ResourceExhaustedError, UnavailableError

_PROBE_NAME = "new-probe"
_PROBE_BYTES = 4096
_STATE_AFTER = {
    Trouble.FULL: DiskState.READ_ONLY,
    Trouble.READ_ONLY: DiskState.READ_ONLY,
    Trouble.DEVICE: DiskState.OFF,
    Trouble.GONE: DiskState.OFF,
    Trouble.DAMAGED: DiskState.OFF,
}


class Health:
    """State, its reason, and the trouble behind it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.status: tuple[DiskState, str] = (DiskState.OFF, "not open")
        self._trouble: Trouble | None = None

    @property
    def state(self) -> DiskState:
        return self.status[0]

    @property
    def trouble(self) -> Trouble | None:
        """What put the store out of its ON state; None when it is on, closed or not yet open."""
        return self._trouble

    def note(self, fault: StorageFault) -> None:
        """Change to the state `fault` calls for; a store that is off stays so."""
        with self._lock:
            if self.status[0] is not DiskState.OFF:
                self.status = (_STATE_AFTER[fault.trouble], str(fault))
                self._trouble = fault.trouble

    def become(self, state: DiskState, reason: str) -> None:
        """Change state for a reason that is no trouble."""
        with self._lock:
            self.status, self._trouble = (state, reason), None

    def require_on(self) -> None:
        """Raise what a write must raise when the store is not ON."""
        if self.state is not DiskState.ON:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raise ResourceExhaustedError when space is lacking, else UnavailableError."""
        state, reason = self.status
        if self._trouble is Trouble.FULL:
            raise ResourceExhaustedError("disk", reason)
        raise UnavailableError(f"the disk tier is {state.value}: {reason}")


def try_write(root: Path, room_bytes: int) -> None:
    """Write and sync a small file, and look for `room_bytes` of free space. Raises OSError or StorageFault."""
    path = root / _PROBE_NAME
    with path.open("wb") as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    found = os.statvfs(root)
    free = found.f_bavail * found.f_frsize
    if free < room_bytes:
        raise StorageFault(Trouble.FULL, f"{free} bytes free on the file system of {root}, {room_bytes} wanted")
