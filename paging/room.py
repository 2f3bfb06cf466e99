"""Is there room for a fault? Asked before anything is changed, so that a fault that cannot be served changes nothing."""

from hybridkv.migration.prefetch import Prefetches
from hybridkv.migration.reclaim import Reclaim
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.columns import add_at
from hybridkv.tiers.errors import ResourceExhaustedError
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.replacement import Rows


class Room:
    """Called under the directory's lock."""

    def __init__(self, directory: Directory, reclaim: Reclaim, prefetches: Prefetches) -> None:
        self._directory = directory
        self._reclaim = reclaim
        self._prefetches = prefetches

    def check(self, pool: int, size: int, need: int, staying: Rows) -> None:
        """Raises ResourceExhaustedError when `need` slots cannot become free in `pool` while the copies of `staying` stay."""
        book = self._directory.state.mapped(pool)
        if book.free_slots(size) >= need:
            return
        missing = need - book.free_slots(size) - self._reclaim.coming(pool, size) - book.table.uncarved_slots(size)
        if missing <= 0:
            return
        missing -= self._prefetches.displace(pool, size, missing)
        evictable = self._evictable(pool, size, missing, staying) if missing > 0 else 0
        if missing > evictable and not self._reclaim.may_take_from_others(book, size):
            uses = ", ".join(
                f"{use.name.lower()} {book.table.bytes_by_use[use]}" for use in SlotUse if use is not SlotUse.FREE
            )
            raise ResourceExhaustedError(
                str(book.id),
                f"no room for {need} blocks of {size} bytes: {book.used_bytes} of {book.capacity_bytes} bytes used ({uses})",
            )

    def _evictable(self, pool: int, size: int, want: int, staying: Rows) -> int:
        holds = self._directory.blocks.holds
        add_at(holds, staying, 1)
        try:
            return len(self._directory.choice.victims(pool, size, want))
        finally:
            add_at(holds, staying, -1)
