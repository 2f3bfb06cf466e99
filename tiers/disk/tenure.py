"""Having the directory: its lock, what is open in it, and how to have it again after it was lost."""

from collections.abc import Mapping
from pathlib import Path

from hybridkv.tiers.disk.faults import StorageFault, Trouble
from hybridkv.tiers.disk.health import try_write
from hybridkv.tiers.disk.lockfile import LOCK_NAME, DirectoryLock
from hybridkv.tiers.disk.segment import Segment
from hybridkv.tiers.disk.shelf import Shelf
from hybridkv.tiers.disk.start import bring_up
from hybridkv.tiers.disk.types import Recovered


class Tenure:
    """A store's hold on its directory. Belongs to the store's writer. OSErrors are the caller's to translate."""

    def __init__(self, path: Path, shelf: Shelf, *, verify: bool) -> None:
        self._path = path
        self._shelf = shelf
        self._verify = verify
        self._lock = DirectoryLock(path)
        self._device: int | None = None  # st_dev of the directory when it was opened first
        self._before: Mapping[int, Segment] = {}  # what was open when the store went off

    def begin(self) -> Recovered:
        """Take the lock and open what can be trusted. After any error the caller ends the tenure."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock.take()
        if self._device is None:
            self._device = self._path.stat().st_dev
        return bring_up(self._shelf, verify=self._verify)

    def end(self) -> None:
        """Close everything, then give the lock up; may be called twice."""
        self._shelf.close()
        self._lock.release()

    def require_in_place(self) -> None:
        """Raise StorageFault unless lock and segments are still the files of the directory."""
        if not (self._lock.in_place() and self._shelf.in_place()):
            raise StorageFault(Trouble.GONE, f"{self._path} or a segment in it has vanished")

    def segment(self, number: int) -> Segment | None:
        """The segment that is open, or was when the store went off."""
        return self._shelf.segments.get(number) or self._before.get(number)

    def resume(self) -> None:
        """Begin anew after the store was off; what is not there as it was is lost. On any error all is closed."""
        self._require_same_file_system()
        self._path.mkdir(mode=0o700, exist_ok=True)
        try_write(self._path, 0)
        if self._shelf.segments:
            self._before = self._shelf.segments
        self.end()
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        before, self._before = self._before, {}
        self._shelf.carry_doomed(before)
        now = self._shelf.segments
        self._shelf.lost |= {n for n, old in before.items() if n not in now or now[n].inode != old.inode}

    def _require_same_file_system(self) -> None:
        """Where a disk was unmounted, its empty mount point is not our directory: we would fill another's disk."""
        if (self._path / LOCK_NAME).exists():
            return
        nearest = self._path if self._path.exists() else self._path.parent
        if nearest.stat().st_dev != self._device:
            raise StorageFault(Trouble.GONE, f"the file system of {self._path} is not mounted")
