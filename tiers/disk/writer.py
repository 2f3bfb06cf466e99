"""Writes: batches, each one durable transaction, made room for before it begins. One thread at a time.

A transaction can reuse pages freed by the last but one and earlier, never by the last. Room is therefore made in
steps: doomed blocks are deleted with one transaction, a second one (a put elsewhere in the segment, or a tick that only
counts) makes their pages usable, the third puts.
"""

import os
from collections.abc import Iterator, Sequence

from hybridkv.tiers.disk.codec import lmdb_key
from hybridkv.tiers.disk.faults import StorageFault, Trouble, storage
from hybridkv.tiers.disk.placement import place
from hybridkv.tiers.disk.segment import Segment
from hybridkv.tiers.disk.shelf import Shelf
from hybridkv.tiers.disk.sizing import Sizes
from hybridkv.tiers.disk.tally import Tally
from hybridkv.tiers.disk.types import DiskBlock
from hybridkv.tiers.errors import DiskFullError


class Writer:
    """Puts into and deletes from the segments of a shelf. Raises StorageFault and DiskFullError."""

    def __init__(self, shelf: Shelf, tally: Tally) -> None:
        self._shelf = shelf
        self._tally = tally
        self._newest: int | None = None  # the segment put into last

    def put(self, block_bytes: int, blocks: Sequence[DiskBlock], now: float) -> Iterator[tuple[int, int]]:
        """Store blocks of one size in order; yields (blocks, segment) after each durable batch."""
        sizes, done = self._shelf.sizes(block_bytes), 0
        used: set[int] = set()
        while done < len(blocks):
            segment, count = self._next_place(sizes, len(blocks) - done, used)
            batch = blocks[done : done + count]
            try:
                self._apply(segment, batch, now)
            except StorageFault as fault:
                if fault.trouble is not Trouble.DAMAGED:
                    # It may have been committed all the same; the caller will not know of it.
                    segment.doom(lmdb_key(block.fingerprint, block.key) for block in batch)
                    raise
                self.condemn(segment.name.number, str(fault))
                continue
            self._tally.add(blocks_put=count, bytes_put=count * block_bytes, batches=1)
            done += count
            used.add(segment.name.number)
            self._newest = segment.name.number
            yield count, segment.name.number

    def flush(self, segment: Segment) -> None:
        """Delete all doomed blocks of a segment, durably; an emptied segment is unlinked."""
        if self._unlink_if_empty(segment):
            return
        while segment.doomed_blocks:
            self._apply(segment, (), 0.0)

    def tidy(self, segment: Segment) -> None:
        """Unlink a segment that is empty; delete its doomed blocks once they are worth a transaction."""
        if self._unlink_if_empty(segment):
            return
        while segment.doomed_blocks >= segment.sizes.delete_blocks and self._deletion_fits(segment):
            self._apply(segment, (), 0.0)

    def unlink(self, number: int) -> None:
        """Close and unlink a segment with all it holds."""
        with storage(f"unlink segment {number}"):
            self._shelf.remove(number)
        self._tally.add(segments_unlinked=1)

    def condemn(self, number: int, reason: str) -> None:
        """Move a damaged segment aside; its blocks are missing from now on."""
        with storage(f"move segment {number} aside"):
            self._shelf.set_aside(number, reason)
        self._tally.add(segments_aside=1)

    def _next_place(self, sizes: Sizes, wanted: int, used: set[int]) -> tuple[Segment, int]:
        while True:
            segments = self._shelf.of_size(sizes.shape.block_bytes)
            chosen = place(segments, sizes, wanted, self._shelf.used_bytes())
            if chosen is None:
                if not self._make_room(sizes, segments):
                    raise self._full(sizes, used)
            elif chosen.index is None:
                with storage("create a segment"):
                    self._tally.add(segments_created=1)
                    return self._shelf.create(sizes.shape.block_bytes), chosen.blocks
            else:
                return segments[chosen.index], chosen.blocks

    def _make_room(self, sizes: Sizes, segments: Sequence[Segment]) -> bool:
        """One step towards room for a block; False when nothing is left to do."""
        for segment in self._shelf.segments.values():
            if self._unlink_if_empty(segment):
                return True
        unripe = max(segments, key=lambda seg: seg.unripe_blocks, default=None)
        if unripe and unripe.unripe_blocks and self._deletion_fits(unripe):
            self._tally.add(ticks=1)
            self._apply(unripe, (), 0.0)
            return True
        doomed = max(segments, key=lambda seg: seg.doomed_blocks, default=None)
        if doomed and doomed.doomed_blocks and self._deletion_fits(doomed):
            self._apply(doomed, (), 0.0)
            return True
        with storage("remove a segment set aside"):
            return self._shelf.remove_oldest_aside()

    def _deletion_fits(self, segment: Segment) -> bool:
        cost = segment.sizes.delete_cost(min(segment.doomed_blocks, segment.sizes.delete_blocks))
        return self._shelf.used_bytes() + cost <= self._shelf.capacity_bytes

    def _unlink_if_empty(self, segment: Segment) -> bool:
        with storage(f"look into segment {segment.name.number}"):
            if not segment.doomed_blocks or not segment.is_empty():
                return False
        self._tally.add(blocks_deleted=segment.entries)
        self.unlink(segment.name.number)
        return True

    def _apply(self, segment: Segment, blocks: Sequence[DiskBlock], now: float) -> None:
        # Deleting along with a put saves a transaction, but the put's cost was reckoned without.
        both = segment.sizes.batch_cost(len(blocks)) + 2 * segment.sizes.slack_bytes
        fits = not blocks or self._shelf.used_bytes() + both <= self._shelf.capacity_bytes
        deletes = None if fits else 0
        try:
            with storage(f"write segment {segment.name.number}"):
                if not segment.in_place():
                    raise StorageFault(Trouble.GONE, f"{segment.path} has vanished")
                freed = segment.apply(blocks, now, deletes)
        except StorageFault as fault:
            if fault.trouble is Trouble.DEVICE and self._lacks_space(segment):
                raise StorageFault(Trouble.FULL, f"{Trouble.FULL.value}: {fault}") from fault
            raise
        self._tally.add(blocks_deleted=freed)

    def _lacks_space(self, segment: Segment) -> bool:
        """Whether the file system is (nearly) full: LMDB reports a write that was cut short as EIO, not ENOSPC.

        A device that does not even tell its figures has more trouble than that.
        """
        try:
            found = os.statvfs(segment.path)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < segment.sizes.largest_batch_cost

    def _full(self, sizes: Sizes, used: set[int]) -> DiskFullError:
        """The newest segment is kept as long as there is another: it fills up next, so it looks cheap and is not."""
        held, capacity = self._shelf.used_bytes(), self._shelf.capacity_bytes
        needed = sizes.batch_cost(1) + sizes.largest_batch_cost + sizes.slack_bytes
        keep = used if self._newest is None else used | {self._newest}
        cheapest = self._shelf.cheapest_to_empty(held + needed - capacity, keep)
        if cheapest is None:
            cheapest = self._shelf.cheapest_to_empty(held + needed - capacity, used)
        return DiskFullError(
            f"{held} of {capacity} bytes on disk; a block of {sizes.shape.block_bytes} bytes needs {needed} bytes free "
            f"or {sizes.shape.pages} freed pages in a segment of its size",
            cheapest,
        )
